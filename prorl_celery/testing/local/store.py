"""A job store in memory, for one job with one attempt: what the stages ask of `JobStore`, and no more.

What is stored goes through the packing of the real store, so that the later stages get what they would get there: plain
JSON, ids and log-probabilities of the same widths, `TooLarge` at the same limits. The steps that end a claim, and those
that are refused, are as in the scripts of `prorl_celery/store/lua`; `tests/testing/test_local_store.py` compares them.

There is no second attempt: what the service would try again ends the job with its error. Nor can a step be repeated
because its answer was lost, since none is. A loss can be played: the process that would make a step of `lose_before`
counts as dead before it, and the job goes on as the service would have it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from prorl_celery.errors import FenceLost, LogBehind, NotFinished, TooLarge
from prorl_celery.jobs.claims import JSON, Claim
from prorl_celery.jobs.messages import Message, parse_queue
from prorl_celery.jobs.models import (
    TERMINAL,
    FinishReason,
    JobError,
    JobRequest,
    Result,
    Stage,
    StageTiming,
    State,
)
from prorl_celery.jobs.replies import fenced
from prorl_celery.jobs.results import messages, segments, summaries
from prorl_celery.jobs.turnlog import pack_observation, pack_turn, unpack_turns
from prorl_celery.jobs.turns import Observation, Turn
from prorl_celery.store.blobs import pack_json, unpack_json

Seen = Callable[[str], None]
"""Is told of each step that was written: "turn 0", "call 0 0", "commit init"..."""


class LocalStore:
    """The record of one job. Thread-safe."""

    def __init__(self, job: JobRequest, *, limit_bytes: int, seen: Seen = lambda step: None) -> None:
        self._lock = threading.RLock()
        self._limit = limit_bytes
        self._seen = seen
        self.job = job
        self.state: State = "queued"
        self.stage: Stage = "init"
        self.fence = 0
        self.cancel_requested = False
        self.lose_before: set[str] = set()
        """Steps before which the claim is lost, once each: "commit rollout", "finish"."""
        self.outputs: dict[Stage, bytes] = {}
        """What init and rollout committed, packed."""
        self.timing: dict[Stage, StageTiming] = {}
        self.sandboxes: tuple[str, ...] = ()
        """Those that live on for the next stage, as the last commit named them."""
        self._queue = "init"
        self._bound = False
        self._going_on = False
        self._spent_s = 0.0
        self._log: list[bytes] = []
        self._log_bytes = 0
        self._calls = 0
        self._open = False
        self._end: dict[str, Any] = {}

    def snapshot(self) -> dict[str, Any]:
        """What a stage needs of those before it, as JSON, for a store of another process (`restored`)."""
        with self._lock:
            return {
                "job": self.job.model_dump_json(),
                "stage": self.stage,
                "fence": self.fence,
                "queue": self._queue,
                "sandboxes": list(self.sandboxes),
                "bound": self._bound,
                "outputs": {stage: packed.hex() for stage, packed in self.outputs.items()},
                "log": [blob.hex() for blob in self._log],
            }

    @classmethod
    def restored(cls, told: Mapping[str, Any], *, limit_bytes: int) -> LocalStore:
        """A store that goes on with such a job, queued for its stage."""
        store = cls(JobRequest.model_validate_json(told["job"]), limit_bytes=limit_bytes)
        store.stage, store.fence = told["stage"], told["fence"]
        store.outputs = {stage: bytes.fromhex(packed) for stage, packed in told["outputs"].items()}
        store._queue, store.sandboxes, store._bound = told["queue"], tuple(told["sandboxes"]), told["bound"]
        store._log = [bytes.fromhex(blob) for blob in told["log"]]
        store._log_bytes = sum(map(len, store._log))
        return store

    def message(self) -> Message | None:
        """The message that waits to be worked off; None while the job runs, and when it has ended."""
        with self._lock:
            return self._message() if self.state == "queued" else None

    def claim(self, message_stage: Stage, job_id: str, fence: int, *, node: str, process: str, op: str) -> Claim | None:
        """As `JobStore.claim`."""
        with self._lock:
            wanted = (self.state, self.stage, self.fence, self.job.job_id)
            if wanted != ("queued", message_stage, fence, job_id):
                return None
            self.state, self.fence = "running", fence + 1
            return Claim(
                job_id=job_id,
                fence=self.fence,
                stage=message_stage,
                attempt=1,
                request=JobRequest.model_validate_json(self.job.model_dump_json()),
                init=self.output("init"),
                rollout=self.output("rollout"),
                queue=self._queue,
                node=node,
                process=process,
                sandboxes=self.sandboxes,
                going_on=self._going_on,
                spent_s=self._spent_s,
            )

    def output(self, stage: Stage) -> JSON | None:
        """What a stage committed, or None."""
        packed = self.outputs.get(stage)
        return None if packed is None else unpack_json(packed)

    def append_turn(self, claim: Claim, turn: Turn, goes_on: bool = False) -> None:
        """As `TurnWriter.append_turn`."""
        blob = pack_turn(turn, limit_bytes=self._limit, job_id=claim.job_id)
        with self._lock:
            self._check(claim, "append to the turn log")
            count = self._count()
            if turn.index < count:
                return
            if turn.index > count or (goes_on and self._open):
                raise LogBehind(f"turn {turn.index} of {claim.job_id} comes before what it follows")
            self._append(blob, claim, f"turn {turn.index}")
            self._calls, self._open = 0, not turn.closed
        self._seen(f"turn {turn.index}")

    def append_observation(self, claim: Claim, seen: Observation) -> None:
        """As `TurnWriter.append_observation`."""
        blob = pack_observation(seen, limit_bytes=self._limit, job_id=claim.job_id)
        what = f"call {seen.call} of turn {seen.index}"
        with self._lock:
            self._check(claim, "append to the turn log")
            last = self._count() - 1
            if seen.index < last or (seen.index == last and seen.call < self._calls):
                return
            if seen.index > last or (seen.call > self._calls and not seen.ends_the_run_alone):
                raise LogBehind(f"{what} of {claim.job_id} comes before what it follows")
            if not self._open and not seen.ends_the_run_alone:
                raise LogBehind(f"{what} of {claim.job_id} comes after the turn's last call")
            self._append(blob, claim, what)
            self._calls, self._open = seen.call + 1, not seen.closes
        self._seen(f"call {seen.index} {seen.call}")

    def turns(self, job_id: str) -> list[Turn]:
        """As `ResultReader.turns`."""
        with self._lock:
            return unpack_turns(self._log)

    def commit(
        self,
        claim: Claim,
        output: JSON,
        *,
        next_stage: Stage,
        queue: str,
        worked_s: float,
        waited_s: float = 0.0,
        node: str | None = None,
        sandboxes: Sequence[str] = (),
        bound: bool = True,
    ) -> Message:
        """As `JobStore.commit`."""
        packed = pack_json(output, limit_bytes=self._limit, what=f"what {claim.stage} returned", job_id=claim.job_id)
        with self._lock:
            self._play_loss(claim, f"commit {claim.stage}")
            self._end_claim(claim, "commit", worked_s, waited_s)
            self.outputs[claim.stage] = packed
            self.sandboxes, self._bound = tuple(sandboxes), bool(sandboxes) and bound
            self._going_on, self._spent_s = False, 0.0
            message = self._requeue(next_stage, queue)
        self._seen(f"commit {claim.stage}")
        return message

    def finish(
        self,
        claim: Claim,
        *,
        state: State,
        finish_reason: FinishReason,
        reward: float | None = None,
        resolved: bool | None = None,
        artifacts: dict[str, Any] | None = None,
        eval: dict[str, Any] | None = None,
        error: JobError | None = None,
        worked_s: float,
        waited_s: float = 0.0,
    ) -> None:
        """As `JobStore.finish`."""
        if state not in TERMINAL:
            raise ValueError(f"{state} is not a terminal state")
        told = {"artifacts": artifacts or {}, "eval": eval or {}}
        what = "the result's artifacts and eval"
        packed = pack_json(told, limit_bytes=self._limit, what=what, job_id=claim.job_id)
        with self._lock:
            self._play_loss(claim, "finish")
            self._add_times(claim, "finish", worked_s, waited_s)
            if self.cancel_requested and state != "cancelled":
                self._conclude_cancelled()
                return
            end = {"reward": reward, "resolved": resolved, "error": error, **unpack_json(packed)}
            self._conclude(state, finish_reason, **end)
        self._seen("finish")

    def fail(
        self,
        claim: Claim,
        error: JobError,
        *,
        finish_reason: FinishReason = "error",
        worked_s: float,
        waited_s: float = 0.0,
    ) -> None:
        """As `JobStore.fail` where no attempt is left."""
        ends: dict[str, State] = {"timeout": "timed_out", "cancelled": "cancelled"}
        reasons: dict[str, FinishReason] = {"timeout": "timeout", "cancelled": "cancelled"}
        with self._lock:
            self._add_times(claim, "fail", worked_s, waited_s)
            if finish_reason == "error":
                finish_reason = reasons.get(error.kind, finish_reason)
            if self.cancel_requested and error.kind != "cancelled":
                self._conclude_cancelled()
            else:
                self._conclude(ends.get(error.kind, "failed"), finish_reason, error=error)

    def hand_back(
        self, claim: Claim, *, worked_s: float = 0.0, waited_s: float, sandboxes_lost: bool = False
    ) -> Message:
        """As `JobStore.hand_back` on a node that lives."""
        with self._lock:
            self._end_claim(claim, "hand back", worked_s, waited_s)
            if sandboxes_lost and (claim.stage == "rollout" or self._bound):
                return self._start_over()
            if claim.stage == "rollout":
                if self.sandboxes and not self._bound:
                    return self._start_over()
                self._going_on = True
                self._spent_s += worked_s
            return self._requeue(claim.stage, self._queue if self._bound else claim.stage)

    def restart(
        self,
        claim: Claim,
        *,
        error: JobError | None = None,
        keeper_lost: bool = False,
        worked_s: float,
        waited_s: float = 0.0,
    ) -> Message | None:
        """As `JobStore.restart`; with an `error`, as where no attempt is left."""
        with self._lock:
            if error is not None:
                self.fail(claim, error, worked_s=worked_s, waited_s=waited_s)
                return None
            self._end_claim(claim, "restart", worked_s, waited_s)
            return self._start_over()

    def cancel(self) -> None:
        """The job is no longer wanted: it ends as cancelled with its claim's next step, at once where nobody has it."""
        with self._lock:
            self.cancel_requested = True
            if self.state == "queued":
                self._conclude_cancelled()

    def lose(self, why: str) -> None:
        """The job's process is gone, and no other comes."""
        with self._lock:
            if self.state not in TERMINAL:
                error = JobError(kind="lost_worker", stage=self.stage, message=why, retryable=True)
                self._conclude("failed", "error", error=error)

    def result(self, job_id: str) -> Result:
        """As `ResultReader.result`. Raises `NotFinished`."""
        with self._lock:
            if self.state not in TERMINAL:
                raise NotFinished(f"{job_id} is {self.state}", job_id=job_id)
            turns = unpack_turns(self._log)
            committed = self.output("rollout")
            left = committed.get("artifacts", {}) if isinstance(committed, Mapping) else {}
            record: dict[str, Any] = {
                "job_id": job_id,
                "state": self.state,
                "messages": messages(turns),
                "segments": segments(turns),
                "turns": summaries(turns),
                "timing": dict(self.timing),
                "instance_id": self.job.instance.instance_id,
                "tags": dict(self.job.tags),
                "artifacts": left,
            }
            return Result.model_validate(record | self._end)

    def _play_loss(self, claim: Claim, step: str) -> None:
        if step in self.lose_before:
            self.lose_before.discard(step)
            self.hand_back(claim, waited_s=0.0)
            raise fenced(claim, step)

    def _check(self, claim: Claim, step: str) -> None:
        if (self.state, self.fence) != ("running", claim.fence):
            raise fenced(claim, step)

    def _end_claim(self, claim: Claim, step: str, worked_s: float, waited_s: float) -> None:
        """Of a step behind which the job would live on."""
        self._add_times(claim, step, worked_s, waited_s)
        if self.cancel_requested:
            self._conclude_cancelled()
            raise FenceLost(f"{claim.job_id} was cancelled before it could {step}", job_id=claim.job_id)

    def _add_times(self, claim: Claim, step: str, worked_s: float, waited_s: float) -> None:
        self._check(claim, step)
        spent = self.timing.setdefault(claim.stage, StageTiming())
        spent.running += worked_s
        spent.queued += waited_s

    def _conclude_cancelled(self) -> None:
        why = JobError(kind="cancelled", stage=self.stage, message="the job was cancelled", retryable=False)
        self._conclude("cancelled", "cancelled", error=why)

    def _requeue(self, stage: Stage, queue: str) -> Message:
        self.state, self.stage, self._queue = "queued", stage, queue
        return self._message()

    def _start_over(self) -> Message:
        self.outputs.clear()
        self.sandboxes, self._bound, self._going_on, self._spent_s = (), False, False, 0.0
        self._forget_log()
        return self._requeue("init", "init")

    def _message(self) -> Message:
        queue = self._queue if parse_queue(self._queue) else self.stage
        return Message(self.stage, queue, self.job.job_id, self.fence, self.job.priority)

    def _conclude(self, state: State, finish_reason: FinishReason, **end: Any) -> None:
        self.state = state
        self._end = {"finish_reason": finish_reason, **end}

    def _forget_log(self) -> None:
        self._log, self._log_bytes, self._calls, self._open = [], 0, 0, False

    def _count(self) -> int:
        return len(unpack_turns(self._log))

    def _append(self, blob: bytes, claim: Claim, what: str) -> None:
        if self._log_bytes + len(blob) > self._limit:
            raise TooLarge(
                f"the log with {what} ({len(blob)} bytes packed) passes the limit of {self._limit} bytes",
                job_id=claim.job_id,
            )
        self._log.append(blob)
        self._log_bytes += len(blob)
