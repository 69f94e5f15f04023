"""The store in memory does what the real one does: the same steps give the same claims, messages, refusals, results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from prorl_celery.errors import FenceLost, ProrlError
from prorl_celery.jobs.claims import Claim
from prorl_celery.jobs.models import JobError, JobRequest, Stage
from prorl_celery.jobs.store import JobStore
from prorl_celery.jobs.turns import Observation, Turn, ids_array, logprobs_array
from prorl_celery.scheduling.nodes import NodeRegistry
from prorl_celery.settings import Settings
from prorl_celery.store.clients import script_client
from prorl_celery.testing.local.store import LocalStore

NODE, BOOT = "n1", "b1"
OWN = f"rollout.{NODE}.{BOOT}"
BODY = {
    "job_id": "a",
    "instance": {"data_source": "d", "instance_id": "one", "x": [1, {"y": None}]},
    "max_attempts": 1,
    "priority": 7,
    "tags": {"k": "v"},
}
BROKEN = JobError(kind="handler", stage="rollout", message="no", retryable=False)
TIMES = {"worked_s": 1.5, "waited_s": 0.25}
Step = Callable[["Play"], Any]


class Play:
    """A job in a store, and the steps of a stage process on it; each step's outcome is noted."""

    def __init__(self, store: Any, message: Any, cancel: Callable[[], Any]) -> None:
        self.store = cast(JobStore, store)
        self.message = self._first = message
        self._earlier: Claim | None = None
        self._cancel = cancel
        self.claim: Claim | None = None
        self.heard: list[Any] = []

    def note(self, what: Any) -> None:
        self.heard.append(what)

    def take(self) -> None:
        """Claim what the last message names."""
        message = self.message
        claim = self.store.claim(message.stage, message.job_id, message.fence, node=NODE, process="p", op="00000000")
        assert claim is not None
        self._earlier, self.claim = self.claim, claim
        self.note((claim.stage, claim.attempt, claim.init, claim.rollout, claim.going_on, claim.spent_s))
        self.note((claim.request, claim.queue, claim.sandboxes))

    def take_again(self) -> None:
        """A second delivery of a message that was claimed."""
        self._offer(self.message)

    def take_the_first(self) -> None:
        """The job's first message comes once more."""
        self._offer(self._first)

    def lag(self) -> None:
        """From here on it is an earlier claim that writes."""
        self.claim = self._earlier

    def _offer(self, message: Any) -> None:
        again = self.store.claim(message.stage, message.job_id, message.fence, node=NODE, process="p", op="11111111")
        self.note(again)

    def commit(self, next_stage: Stage, **fields: Any) -> None:
        queue = fields.pop("queue", next_stage)
        self._send(
            lambda: self.store.commit(
                self._mine, {"of": self._mine.stage}, next_stage=next_stage, queue=queue, **TIMES, **fields
            )
        )

    def turn(self, index: int, *, closed: bool = True, goes_on: bool = False) -> None:
        turn = Turn(
            index=index,
            delta_ids=ids_array([1, 2]),
            sampled_ids=ids_array([3]),
            logprobs=logprobs_array([-0.123456789]),
            versions=ids_array([4]),
            new_segment=index == 0,
            messages=[{"role": "assistant", "content": f"turn {index}"}],
            closed=closed,
        )
        self._do(lambda: self.store.append_turn(self._mine, turn, goes_on))

    def seen(self, index: int, call: int, *, closes: bool = False) -> None:
        seen = Observation(
            index=index, call=call, messages=[{"role": "tool", "content": f"{index} {call}"}], closes=closes
        )
        self._do(lambda: self.store.append_observation(self._mine, seen))

    def finish(self) -> None:
        more: dict[str, Any] = {"reward": 0.5, "resolved": False, "artifacts": {"f": "x"}, "eval": {"why": "so"}}
        self._do(lambda: self.store.finish(self._mine, state="completed", finish_reason="stop", **more, **TIMES))

    def fail(self, error: JobError = BROKEN) -> None:
        self._send(lambda: self.store.fail(self._mine, error, **TIMES))

    def hand_back(self, **fields: Any) -> None:
        self._send(lambda: self.store.hand_back(self._mine, **TIMES, **fields))

    def restart(self) -> None:
        self._send(lambda: self.store.restart(self._mine, **TIMES))

    def cancel(self) -> None:
        self._cancel()

    def log(self) -> None:
        self.note(self.store.turns("a"))

    def result(self) -> None:
        self._do(lambda: self.note(self.store.result("a").model_dump(exclude={"timing"})))

    @property
    def _mine(self) -> Claim:
        assert self.claim is not None
        return self.claim

    def _send(self, step: Callable[[], Any]) -> None:
        def send() -> None:
            sent = step()
            self.message = sent or self.message
            self.note(sent and (sent.stage, sent.queue, sent.priority, sent.fence == self._mine.fence))

        self._do(send)

    def _do(self, step: Callable[[], Any]) -> None:
        try:
            step()
        except ProrlError as error:
            self.note(type(error))


@pytest.fixture
def plays(redis_settings: Settings) -> tuple[Play, Play]:
    """The same job in the real store, on a node that lives, and in the one in memory."""
    settings = redis_settings.with_(node=NODE)
    client = script_client(settings)
    nodes = NodeRegistry(client, settings)
    nodes.beat({"node": NODE, "boot": BOOT})
    process = {"id": "p", "name": "p", "stage": "rollout", "pid": 1, "slots": 1, "busy": 0, "handlers": []}
    nodes.beat_process(NODE, BOOT, process)
    real, job = JobStore(client, settings), JobRequest.model_validate(BODY)
    local = LocalStore(job, limit_bytes=settings.max_blob_bytes)
    return (
        Play(real, real.create([job])[0].message, lambda: real.cancel("a")),
        Play(local, local.message(), local.cancel),
    )


def to_rollout(play: Play) -> None:
    play.take()
    play.commit("rollout", queue=OWN, node=NODE, sandboxes=["s1"], bound=True)
    play.take()


def to_eval(play: Play) -> None:
    to_rollout(play)
    play.turn(0)
    play.commit("eval")
    play.take()


STORIES: dict[str, list[Step]] = {
    "a whole job": [to_eval, Play.log, Play.finish, Play.result],
    "a message twice": [Play.take, Play.take_again],
    "a message of the past": [Play.take, Play.hand_back, Play.take_the_first, Play.take],
    "a claim that was fenced out": [
        to_rollout,
        Play.hand_back,
        Play.take,
        Play.lag,
        lambda p: p.turn(0),
        lambda p: p.commit("eval"),
        Play.finish,
        Play.fail,
        Play.log,
    ],
    "calls one by one": [
        to_rollout,
        lambda p: p.turn(0, closed=False),
        lambda p: p.turn(1, goes_on=True),  # too early: a call is open
        lambda p: p.seen(0, 1),  # too early: another comes first
        lambda p: p.seen(0, 0),
        lambda p: p.seen(0, 0),  # again
        lambda p: p.seen(0, 1, closes=True),
        lambda p: p.seen(0, 2),  # too late
        lambda p: p.seen(3, 0),  # of no turn
        lambda p: p.turn(0),  # again
        lambda p: p.turn(2),  # too early
        lambda p: p.turn(1, goes_on=True),
        Play.log,
    ],
    "an error in rollout": [to_rollout, lambda p: p.turn(0), Play.fail, Play.result],
    "time is up": [to_rollout, lambda p: p.fail(BROKEN.model_copy(update={"kind": "timeout"})), Play.result],
    "writes after the end": [to_eval, Play.finish, Play.fail, Play.hand_back, lambda p: p.turn(1)],
    "a rollout that goes on": [
        to_rollout,
        lambda p: p.turn(0),
        Play.hand_back,
        Play.take,
        Play.log,
        lambda p: p.turn(1, goes_on=True),
        lambda p: p.commit("eval"),
        Play.take,
        Play.finish,
        Play.result,
    ],
    "a rollout whose sandboxes are gone": [
        to_rollout,
        lambda p: p.turn(0),
        lambda p: p.hand_back(sandboxes_lost=True),
        Play.take,
        Play.log,
    ],
    "a rollout that cannot be gone on with": [to_rollout, lambda p: p.turn(0), Play.restart, Play.take, Play.log],
    "an init that is given back": [Play.take, Play.hand_back, Play.take],
    "an eval that is given back": [to_eval, Play.hand_back, Play.take, Play.finish, Play.result],
    "a rollout without sandboxes that is given back": [
        Play.take,
        lambda p: p.commit("rollout"),
        Play.take,
        lambda p: p.turn(0),
        Play.hand_back,
        Play.take,
        Play.log,
    ],
    "cancelled while it waits": [Play.cancel, Play.result],
    "cancelled before a commit": [Play.take, Play.cancel, lambda p: p.commit("rollout"), Play.result],
    "cancelled before it finishes": [to_eval, Play.cancel, Play.finish, Play.result],
    "cancelled before it fails": [to_rollout, Play.cancel, Play.fail, Play.result],
    "cancelled before it is given back": [to_rollout, Play.cancel, Play.hand_back, Play.result],
    "cancelled before it starts over": [to_rollout, Play.cancel, Play.restart, Play.result],
}


@pytest.mark.parametrize("story", STORIES)
def test_both_stores_tell_the_same_story(story: str, plays: tuple[Play, Play]) -> None:
    for play in plays:
        for step in STORIES[story]:
            step(play)
    real, local = plays
    for number, (wanted, given) in enumerate(zip(real.heard, local.heard, strict=True)):
        assert given == wanted, f"note {number} of {story!r}"


def test_a_loss_can_be_played() -> None:
    store = LocalStore(JobRequest.model_validate(BODY), limit_bytes=1 << 20)
    store.lose_before.add("commit init")
    play = Play(store, store.message(), store.cancel)
    play.take()
    play.commit("rollout")
    assert play.heard[-1] is FenceLost
    play.message = store.message()
    play.take()
    play.commit("rollout")
    assert play.heard[-1] == ("rollout", "rollout", 7, True)


def test_a_store_goes_on_in_another_process() -> None:
    store = LocalStore(JobRequest.model_validate(BODY), limit_bytes=1 << 20)
    play = Play(store, store.message(), store.cancel)
    to_rollout(play)
    play.turn(0)
    play.commit("eval")
    other = LocalStore.restored(store.snapshot(), limit_bytes=1 << 20)
    again = Play(other, other.message(), other.cancel)
    for one in (play, again):
        one.take()
        one.log()
        one.finish()
    assert again.heard == play.heard[-len(again.heard) :]
    assert other.result("a").reward == 0.5
