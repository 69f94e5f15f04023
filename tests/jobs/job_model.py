"""What should become of a job, in plain Python: the model that the store is compared with.

It knows nothing of Redis. Each method is a step of the store's, and changes the job as that step should.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

from prorl_celery.jobs.messages import Message
from prorl_celery.jobs.models import TERMINAL, Stage, State

SUSPECT = 2
FREE_RESTARTS = 3
Outcome = Message | Literal["ended", "fenced"]


@dataclass
class ModelTurn:
    """A turn of the log: whether calls of it are to come, and how many have ended."""

    open: bool
    calls: int = 0


@dataclass
class ModelJob:
    """One job."""

    job_id: str
    most: int
    alive: set[str]
    """Homes ("node.boot") of the nodes that are alive; all jobs share this set."""
    counts: Counter[str]
    """What went wrong, by the store's names; shared as well."""
    state: State = "queued"
    stage: Stage = "init"
    fence: int = 0
    attempt: int = 1
    evals: int = 0
    """Of this attempt, those that failed."""
    queue: str = "init"
    on: str = ""
    process: str = ""
    sandboxes: bool = False
    bound: bool = False
    going_on: bool = False
    log: list[ModelTurn] = field(default_factory=list)
    losses: int = 0
    lost: tuple[str, int] | None = None
    restarts: int = 0
    retries: int = 0
    held: bool = False
    cancel: bool = False
    stalled: bool = False
    dead: bool = False
    last: str = ""
    ends: int = 0
    """How often it came to an end."""

    @property
    def ended(self) -> bool:
        return self.state in TERMINAL

    def holds(self, fence: int) -> bool:
        """Whether the claim of this fence is the job's."""
        return self.state == "running" and self.fence == fence

    def message(self) -> Message:
        """The message that waits for it."""
        return Message(self.stage, self.queue, self.job_id, self.fence, 5)

    def claim(self, node: str, process: str) -> None:
        self.fence += 1
        self.state, self.on, self.process = "running", node, process
        if self.stage == "rollout" and not self.going_on:
            self.log = []

    def turn(self, calls_follow: bool) -> None:
        self.log.append(ModelTurn(calls_follow))
        self.stalled = False
        if self.lost and self.lost[0] == "rollout" and len(self.log) > self.lost[1]:
            self._forgive()

    def observation(self, closes: bool) -> None:
        self.log[-1].calls += 1
        self.log[-1].open = not closes
        self.stalled = False

    def commit(self, stage: Stage, home: str | None, sandboxes: bool, bound: bool) -> Outcome:
        if self.cancel:
            return self._end("cancelled", "cancel")
        if self.lost and self.lost[0] == self.stage:
            self._forgive()
        self.sandboxes, self.bound, self.going_on = sandboxes, sandboxes and bound, False
        return self._queue("commit", stage, home)

    def finish(self, state: State) -> Outcome:
        return self._end("cancelled" if self.cancel else state, "finish")

    def fail(self, retryable: bool) -> Outcome:
        if self.cancel:
            return self._end("cancelled", "fail")
        return self._charge("fail", "sandbox") if retryable else self._end("failed", "fail", "sandbox")

    def hand_back(self, sandboxes_lost: bool) -> Outcome:
        if self.cancel:
            return self._end("cancelled", "cancel")
        if self.stage == "init":
            return self._queue("hand_back", "init", None)
        if sandboxes_lost and (self.stage == "rollout" or self.bound):
            return self._start_over("hand_back")
        return self._again("hand_back")

    def restart(self, for_an_error: bool) -> Outcome:
        if self.cancel:
            return self._end("cancelled", "cancel")
        self.restarts += for_an_error
        if for_an_error and self.restarts > FREE_RESTARTS:
            return self._charge("restart", "sandbox", gone=True)
        return self._start_over("restart")

    def lose(self, company: int) -> Outcome:
        """Its lease has lapsed, and so many jobs ran in its process."""
        self.fence += 1
        self.counts[f"lost:{self.stage}"] += 1
        if self.cancel:
            return self._end("cancelled", "sweep")
        charged = (company == 1 and not self._can_go_on()) or self.losses >= SUSPECT
        self.losses += 1
        self.lost = (self.stage, len(self.log))
        return self._charge("sweep", "lost_worker") if charged else self._again("sweep")

    def abandon(self) -> Outcome:
        """It waits for a node that is gone."""
        self.fence += 1
        if self.stage == "eval":
            return self._repeat_eval("sweep")
        if self.going_on and self._can_go_on():
            return self._go_on("sweep")
        return self._start_over("sweep")

    def ask_to_cancel(self) -> str:
        if self.ended:
            return "already_ended"
        if self.state == "running":
            self.cancel = True
            return "requested"
        self.fence += 1
        self._end("cancelled", "cancel")
        return "ended"

    def retry(self) -> Outcome:
        self.fence += 1
        self.attempt, self.evals, self.losses, self.lost, self.restarts, self.log = 1, 0, 0, None, 0, []
        self.retries += 1
        self.dead = self.cancel = False
        outcome = self._queue("retry", "init", None)
        self.last = "retry"
        return outcome

    def home(self) -> str | None:
        """The "node.boot" whose queue it is in, or came from."""
        return self.queue.split(".", 1)[1] if "." in self.queue else None

    def _forgive(self) -> None:
        self.losses, self.lost = 0, None

    def _queue(self, step: str, stage: Stage, home: str | None) -> Outcome:
        self.state, self.stage, self.held, self.stalled = "queued", stage, False, False
        name = "solo" if self.losses >= SUSPECT else stage
        self.queue = name if home is None else f"{name}.{home}"
        self.on = "" if home is None else home.split(".")[0]
        self.last = f"{step}:{self.fence}"
        return self.message()

    def _can_go_on(self) -> bool:
        return self.stage == "rollout" and (not self.sandboxes or (self.bound and self.home() in self.alive))

    def _go_on(self, step: str) -> Outcome:
        self.going_on = True
        self.counts["went_on"] += 1
        home = self.home()
        return self._queue(step, "rollout", home if home in self.alive else None)

    def _start_over(self, step: str, charged: bool = False) -> Outcome:
        self.attempt += charged
        self.counts["started_over"] += self.stage != "init"
        self.sandboxes = self.bound = self.going_on = False
        self.log, self.evals = [], 0
        return self._queue(step, "init", None)

    def _can_repeat(self) -> bool:
        return self.stage == "eval" and not (self.bound and self.home() not in self.alive)

    def _repeat_eval(self, step: str) -> Outcome:
        if not self._can_repeat():
            return self._start_over(step)
        if self.bound:
            return self._queue(step, "eval", self.home())
        self.sandboxes = False
        return self._queue(step, "eval", None)

    def _charge(self, step: str, kind: str, gone: bool = False) -> Outcome:
        alone = self._can_repeat() and not gone
        self.evals += alone
        if (self.evals if alone else self.attempt) >= self.most:
            self.dead = True
            return self._end("failed", step, kind)
        self.counts[f"retries:{kind}:{self.stage}"] += 1
        return self._repeat_eval(step) if alone else self._start_over(step, True)

    def _again(self, step: str) -> Outcome:
        if self._can_go_on():
            return self._go_on(step)
        return self._repeat_eval(step) if self.stage == "eval" else self._start_over(step)

    def _end(self, state: State, step: str, kind: str | None = None) -> Outcome:
        if kind is not None:
            self.counts[f"failed:{kind}"] += 1
        self.state, self.on, self.last = state, "", f"{step}:{self.fence}"
        self.held = self.stalled = self.going_on = self.sandboxes = self.bound = False
        self.ends += 1
        return "ended"
