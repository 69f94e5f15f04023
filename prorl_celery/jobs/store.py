"""The job store: what `web`, the stages and the upkeep do to jobs. Every operation is one script, one client command.

    create -> claim -> heartbeat, append_turn -> commit -> claim ... -> finish
                                                 '-> fail, hand_back: queued again, or ended

`JobStore` is given a client (`store/clients.py`) and the settings. What it returns as `Message` the caller publishes;
a message that nobody published is found by `sweep`. Reading is in `reading.py` and `result_reading.py`. Everything
raises `StoreUnavailable` when Redis is away; a call that did may be repeated as it is.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Sequence
from typing import Any, Literal

from prorl_celery.errors import FenceLost, JobConflict, JobNotFound, QueueFull, TooLarge
from prorl_celery.jobs.claims import JSON, Beat, CancelOutcome, Claim, Created, SweepOutcome
from prorl_celery.jobs.messages import Message, level_of
from prorl_celery.jobs.models import TERMINAL, FinishReason, JobError, JobRequest, Stage, State
from prorl_celery.jobs.result_reading import ResultReader
from prorl_celery.jobs.turnlog import pack_turn
from prorl_celery.jobs.turns import Turn
from prorl_celery.store.blobs import pack_json, seal, unpack_json, unseal

CANCEL_PATIENCE_SECONDS = 10.0
"""How long a worker has to act on a cancel before the sweep ends the job."""

SWEEP_JOBS = 200
"""Most jobs of one kind that one sweep looks at, so that no script holds Redis for long."""

BROKER_SEPARATOR = "\x06\x16"
"""What kombu puts between a queue and a level other than 0 in the name of a list."""

BROKER_BINDINGS = "_kombu.binding.prorl"
"""Where kombu keeps the queues of our exchange."""

LEAD_SWEEPS = 3
"""Sweeps that the leading process may miss before another takes over."""


class JobStore(ResultReader):
    """All operations on jobs. Safe to share between threads."""

    def create(
        self, jobs: Sequence[JobRequest], *, group_id: str | None = None, batch_id: str | None = None
    ) -> list[Created]:
        """Accept jobs, all or none. A job accepted before with the same body is accepted again, and not `fresh`.

        Raises: `JobConflict` (the id is taken by another body), `QueueFull`, `TooLarge`.
        """
        if not jobs:
            return []
        arguments: list[str | int | bytes] = []
        for job in jobs:
            body = request_body(job)
            arguments += (
                job.job_id,
                hashlib.blake2b(body, digest_size=16).hexdigest(),
                job.priority,
                level_of(job.priority),
                job.max_attempts,
                json.dumps(job.tags) if job.tags else "",
                job.instance.instance_id or "",
                seal(body, limit_bytes=self._limit, what="the request", job_id=job.job_id),
            )
        op = secrets.token_hex(6)
        word, answer, *_ = self._run(
            "create", op, self._settings.max_queued, batch_id or "", group_id or "", *arguments
        )
        if word == b"conflict":
            job_id = answer.decode()
            raise JobConflict(f"{job_id} was accepted before with another body", job_id=job_id)
        if word == b"full":
            raise QueueFull(
                f"{answer} jobs wait already and {len(jobs)} more would pass the limit of {self._settings.max_queued}"
            )
        return [
            Created(
                job.job_id,
                bool(fresh),
                Message("init", "init", job.job_id, 0, job.priority) if fresh else None,
            )
            for job, fresh in zip(jobs, answer, strict=True)
        ]

    def claim(self, message_stage: Stage, job_id: str, fence: int, *, node: str, process: str, op: str) -> Claim | None:
        """Claim what a message names; None when the message is of the past (claimed before, or the job has ended).

        `op` is a random id of this delivery: the same call again gives the same claim.
        """
        reply = self._run("claim", job_id, message_stage, fence, op, node, process)
        if reply is None:
            return None
        claimed, attempt, losses, queue, sandboxes, batch, group, spec, init, rollout = reply
        return Claim(
            job_id=job_id,
            fence=claimed,
            stage=message_stage,
            attempt=attempt,
            request=JobRequest.model_validate_json(unseal(spec)),
            init=unpack_json(init) if init else None,
            rollout=unpack_json(rollout) if rollout else None,
            queue=queue.decode(),
            node=node,
            process=process,
            sandboxes=tuple(sandboxes.decode().split()) if sandboxes else (),
            losses=losses,
            batch_id=batch.decode() if batch else None,
            group_id=group.decode() if group else None,
        )

    def heartbeat(self, claims: Sequence[tuple[str, int]]) -> Beat:
        """Renew the leases of these (job_id, fence), all in one command. A lease that is gone stays gone."""
        if not claims:
            return Beat(set(), set())
        lost, cancelled = self._run("heartbeat", *(part for job_id, fence in claims for part in (fence, job_id)))
        return Beat({job.decode() for job in lost}, {job.decode() for job in cancelled})

    def append_turn(self, claim: Claim, turn: Turn) -> None:
        """Append a turn to the job's log; the same turn again changes nothing. A claim's first turn has index 0.

        Raises: `FenceLost`, `TooLarge` (the turn or the whole log), ValueError (an index beyond the log's end).
        """
        blob = pack_turn(turn, limit_bytes=self._limit, job_id=claim.job_id)
        word = self._run("append_turn", claim.job_id, claim.fence, turn.index, blob, self._limit)
        if word == b"fenced":
            raise _fenced(claim, "append a turn")
        if word == b"gap":
            raise ValueError(f"turn {turn.index} of {claim.job_id} comes before the turns it follows")
        if word == b"large":
            raise TooLarge(
                f"the log with turn {turn.index} ({len(blob)} bytes packed) passes the limit of {self._limit} bytes",
                job_id=claim.job_id,
            )

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
        """Store what the stage returned and queue the next stage. Name `node` when `queue` is a node's own.

        `sandboxes` live on for it; not `bound`: it can do without them, elsewhere too, should they be lost.

        Raises: `FenceLost` (also when a cancel came first: the job has then ended as cancelled), `TooLarge`,
        TypeError or ValueError when the output is not JSON.
        """
        blob = pack_json(output, limit_bytes=self._limit, what=f"what {claim.stage} returned", job_id=claim.job_id)
        reply = self._run(
            "commit", claim.job_id, claim.fence, next_stage, queue, blob, _ms(worked_s), _ms(waited_s), node or "",
            " ".join(sandboxes), "1" if bound else "",
        )  # fmt: skip
        return self._message_or_fenced(reply, claim, "commit")

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
        """End the job. Where a cancel came first it ends as cancelled instead.

        Raises: `FenceLost`, `TooLarge`, TypeError or ValueError when artifacts or eval are not JSON.
        """
        if state not in TERMINAL:
            raise ValueError(f"{state} is not a terminal state")
        summary: bytes | str = ""
        if artifacts or eval:
            summary = pack_json(
                {"artifacts": artifacts or {}, "eval": eval or {}},
                limit_bytes=self._limit,
                what="the result's artifacts and eval",
                job_id=claim.job_id,
            )
        word = self._run(
            "finish", claim.job_id, claim.fence, state, finish_reason,
            "" if reward is None else repr(float(reward)),
            "" if resolved is None else int(resolved),
            "" if error is None else error.model_dump_json(),
            summary, _ms(worked_s), _ms(waited_s),
        )  # fmt: skip
        if word == b"fenced":
            raise _fenced(claim, "finish")

    def fail(
        self,
        claim: Claim,
        error: JobError,
        *,
        finish_reason: FinishReason = "error",
        worked_s: float,
        waited_s: float = 0.0,
    ) -> Message | None:
        """An attempt failed. Returns the next one's message where one is left and the error is retryable; else None:
        the job has ended as `failed` (`timed_out`, `cancelled` for errors of that kind). Eval is repeated alone.

        Raises: `FenceLost`.
        """
        ends: dict[str, State] = {"timeout": "timed_out", "cancelled": "cancelled"}
        reasons: dict[str, FinishReason] = {"timeout": "timeout", "cancelled": "cancelled"}
        if finish_reason == "error":
            finish_reason = reasons.get(error.kind, finish_reason)
        reply = self._run(
            "fail", claim.job_id, claim.fence, int(error.retryable), ends.get(error.kind, "failed"), finish_reason,
            error.model_dump_json(), _ms(worked_s), _ms(waited_s),
        )  # fmt: skip
        return None if reply == b"ended" else self._message_or_fenced(reply, claim, "fail")

    def hand_back(self, claim: Claim, *, worked_s: float = 0.0, waited_s: float) -> Message:
        """Give the job back, uncharged, under a new fence: init to its queue, rollout to init, since what was begun in
        its sandboxes cannot be begun again there, eval to where it can be repeated.

        Raises: `FenceLost` (also when a cancel came first: the job has then ended as cancelled).
        """
        reply = self._run("hand_back", claim.job_id, claim.fence, _ms(worked_s), _ms(waited_s))
        return self._message_or_fenced(reply, claim, "hand back")

    def cancel(self, job_id: str) -> CancelOutcome:
        """Cancel a job: a queued one ends in this call, a running one is told. Raises `JobNotFound`."""
        word = self._run("cancel", job_id, secrets.token_hex(6)).decode()
        outcomes: dict[str, Literal["ended", "requested", "already_ended"]] = {
            "ended": "ended",
            "requested": "requested",
            "already_ended": "already_ended",
        }
        if word not in outcomes:
            raise JobNotFound(f"no job {job_id} was ever accepted", job_id=job_id)
        return outcomes[word]

    def sweep(self) -> SweepOutcome:
        """Repair what dead processes left, find lost messages, purge what expired. Bounded work; call it often."""
        lapsed, ended = self._run("sweep_leases", SWEEP_JOBS, _ms(CANCEL_PATIENCE_SECONDS))
        lost = self._run(
            "sweep_queues", SWEEP_JOBS, _ms(self._settings.republish_after_seconds), BROKER_SEPARATOR, BROKER_BINDINGS
        )
        purged = self._run("purge", SWEEP_JOBS)
        return SweepOutcome([_message(parts) for parts in lapsed + lost], [job.decode() for job in ended], purged)

    def resign(self, process_id: str) -> None:
        """Give the lead up, so that another process sweeps at once."""
        self._run("resign", process_id)

    def lead(self, process_id: str) -> bool:
        """Whether this process is the one that sweeps. Ask before every sweep: asking keeps the lead."""
        return bool(self._run("lead", process_id, _ms(LEAD_SWEEPS * self._settings.sweep_seconds)))

    @property
    def _limit(self) -> int:
        return self._settings.max_blob_bytes

    def _message_or_fenced(self, reply: Any, claim: Claim, step: str) -> Message:
        if reply == b"fenced":
            raise _fenced(claim, step)
        if reply == b"cancelled":
            raise FenceLost(f"{claim.job_id} was cancelled before it could {step}", job_id=claim.job_id)
        return _message(reply)


def request_body(job: JobRequest) -> bytes:
    """The request as stored and fingerprinted: JSON with sorted keys, so that the order of fields does not matter."""
    return json.dumps(job.model_dump(mode="json"), sort_keys=True, separators=(",", ":")).encode()


def _message(parts: Any) -> Message:
    stage, queue, job_id, fence, priority = parts
    return Message(stage.decode(), queue.decode(), job_id.decode(), fence, priority)


def _fenced(claim: Claim, step: str) -> FenceLost:
    return FenceLost(
        f"claim {claim.fence} of {claim.job_id} may not {step}: it has ended or lapsed", job_id=claim.job_id
    )


def _ms(seconds: float) -> int:
    return max(0, round(seconds * 1000))
