"""The job store: what `web`, the stages and the upkeep do to jobs. Every operation is one script, one client command.

    create -> claim -> heartbeat, append_turn, append_observation -> commit -> claim ... -> finish
                                                                     '-> fail, hand_back, restart: queued, or ended

`JobStore` is given a client (`store/clients.py`) and the settings. What it returns as `Message` the caller publishes;
a message that nobody published is found by `sweep`. Reading is in `reading.py`, `result_reading.py` and `history.py`,
the turn log in `turn_writing.py`, the sweep in `upkeep.py`. Everything raises `StoreUnavailable` when Redis is away; a
call that did may be repeated as it is.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from prorl_celery.errors import JobConflict, JobNotFound, NotFailed, QueueFull, ResultExpired, StoreFull
from prorl_celery.jobs.claims import JSON, Beat, CancelOutcome, Claim, Created
from prorl_celery.jobs.messages import Message, level_of
from prorl_celery.jobs.models import TERMINAL, FinishReason, JobError, JobRequest, Stage, State
from prorl_celery.jobs.replies import fenced, message_of, message_or_fenced, milliseconds
from prorl_celery.jobs.upkeep import Upkeep
from prorl_celery.store.blobs import pack_json, seal, unpack_json, unseal
from prorl_celery.store.clients import reaching_redis

SEED_STEP = 1_000_003
"""Between the seeds of a batch's samples of one prompt, whose requests are the same."""

FREE_RESTARTS = 3
"""How often in all a job may lose what its rollout began, and find no way back to it, before that is charged."""


class JobStore(Upkeep):
    """All operations on jobs. Safe to share between threads."""

    def create(
        self, jobs: Sequence[JobRequest], *, group_id: str | None = None, batch_id: str | None = None
    ) -> list[Created]:
        """Accept jobs, all or none. A job accepted before with the same body is accepted again, and not `fresh`.

        Raises: `JobConflict` (the id is taken by another body), `QueueFull`, `StoreFull`, `TooLarge`.
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
        with reaching_redis():
            lacks = self._room.lacks(sum(len(part) for part in arguments if isinstance(part, bytes)))
        most = self._settings.max_queued if lacks is None else 0  # those accepted before are accepted again
        op = secrets.token_hex(6)
        word, answer, *_ = self._run("create", op, most, batch_id or "", group_id or "", *arguments)
        if word == b"conflict":
            job_id = answer.decode()
            raise JobConflict(f"{job_id} was accepted before with another body", job_id=job_id)
        if word == b"full" and lacks is not None:
            raise StoreFull(lacks)
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
        claimed, attempt, losses, queue, sandboxes, batch, group, spec, init, rollout, going_on, spent, sample = reply
        return Claim(
            job_id=job_id,
            fence=claimed,
            stage=message_stage,
            attempt=attempt,
            request=_request(unseal(spec), job_id, sample),
            init=unpack_json(init) if init else None,
            rollout=unpack_json(rollout) if rollout else None,
            queue=queue.decode(),
            node=node,
            process=process,
            sandboxes=tuple(sandboxes.decode().split()) if sandboxes else (),
            losses=losses,
            going_on=going_on == b"1",
            spent_s=spent / 1000,
            batch_id=batch.decode() if batch else None,
            group_id=group.decode() if group else None,
        )

    def heartbeat(self, claims: Sequence[tuple[str, int]], waited_s: Mapping[str, float] | None = None) -> Beat:
        """Renew the leases of these (job_id, fence), all in one command. A lease that is gone stays gone.

        `waited_s`: by job, how much of the claim's time was waiting, where that has changed. Should the process be
        lost, it is charged to no stage.
        """
        if not claims:
            return Beat(set(), set())
        waits = {job_id: milliseconds(seconds) for job_id, seconds in (waited_s or {}).items()}
        told = ((fence, job_id, waits.get(job_id, "")) for job_id, fence in claims)
        lost, cancelled = self._run("heartbeat", *(part for claim in told for part in claim))
        return Beat({job.decode() for job in lost}, {job.decode() for job in cancelled})

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
            "commit", claim.job_id, claim.fence, next_stage, queue, blob,
            milliseconds(worked_s), milliseconds(waited_s), node or "",
            " ".join(sandboxes), "1" if bound else "",
        )  # fmt: skip
        return message_or_fenced(reply, claim, "commit")

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
            summary, milliseconds(worked_s), milliseconds(waited_s),
        )  # fmt: skip
        if word == b"fenced":
            raise fenced(claim, "finish")

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
        the job has ended as `failed` (`timed_out`, `cancelled` for errors of that kind). Eval is repeated alone, as
        often as the job may have attempts, and that is none: only where a sandbox that it needs is gone it starts over.

        Raises: `FenceLost`.
        """
        ends: dict[str, State] = {"timeout": "timed_out", "cancelled": "cancelled"}
        reasons: dict[str, FinishReason] = {"timeout": "timeout", "cancelled": "cancelled"}
        if finish_reason == "error":
            finish_reason = reasons.get(error.kind, finish_reason)
        reply = self._run(
            "fail", claim.job_id, claim.fence, int(error.retryable), ends.get(error.kind, "failed"), finish_reason,
            error.model_dump_json(), milliseconds(worked_s), milliseconds(waited_s),
        )  # fmt: skip
        return None if reply == b"ended" else message_or_fenced(reply, claim, "fail")

    def hand_back(
        self, claim: Claim, *, worked_s: float = 0.0, waited_s: float, sandboxes_lost: bool = False
    ) -> Message:
        """Give the job back, uncharged, under a new fence: init to its queue, eval to where it can be repeated. A
        rollout goes on in another process (`Claim.going_on`) where its sandboxes are there, or it had none; else it
        starts over from init.

        `sandboxes_lost`: they are known to be gone, whatever the node's record says.

        Raises: `FenceLost` (also when a cancel came first: the job has then ended as cancelled).
        """
        gone = "1" if sandboxes_lost else ""
        reply = self._run("hand_back", claim.job_id, claim.fence, milliseconds(worked_s), milliseconds(waited_s), gone)
        return message_or_fenced(reply, claim, "hand back")

    def restart(
        self,
        claim: Claim,
        *,
        error: JobError | None = None,
        keeper_lost: bool = False,
        worked_s: float,
        waited_s: float = 0.0,
    ) -> Message | None:
        """Send the job back to init, uncharged, since what its rollout began cannot be gone on with.

        `error` says what went wrong (of kind `sandbox`: it could not be taken over); after `FREE_RESTARTS` of those it
        is charged like a failure, and None is returned when no attempt is left: the job has then ended. Without an
        `error` that is how the handler is made. `keeper_lost`: it counts as a loss, as of the job's process.

        Raises: `FenceLost` (also when a cancel came first: the job has then ended as cancelled).
        """
        reply = self._run(
            "restart", claim.job_id, claim.fence, milliseconds(worked_s), milliseconds(waited_s),
            "" if error is None else error.model_dump_json(), FREE_RESTARTS, "1" if keeper_lost else "",
        )  # fmt: skip
        return None if reply == b"ended" else message_or_fenced(reply, claim, "restart")

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

    def retry(self, job_id: str) -> Message:
        """Give a job that failed or timed out a new life: from init, with all its attempts. Its result is withdrawn.

        Raises: `JobNotFound`, `NotFailed` (it is live, or ended otherwise), `ResultExpired`.
        """
        reply = self._run("retry", job_id, secrets.token_hex(6))
        if reply == b"unknown":
            raise JobNotFound(f"no job {job_id} was ever accepted", job_id=job_id)
        if reply == b"gone":
            raise ResultExpired(f"what {job_id} was is no longer kept", job_id=job_id)
        if reply == b"not_failed":
            raise NotFailed(f"{job_id} has not failed", job_id=job_id)
        if reply == b"of_batch":
            why = "a sample of a batch, which has counted its end and draws failed samples anew by itself"
            raise NotFailed(f"{job_id} cannot be retried: it is {why}", job_id=job_id)
        return message_of(reply)


def _request(spec: bytes, job_id: str, sample: bytes | None) -> JobRequest:
    """A claim's request. That of a batch's sample is its prompt's, under its own id; where a seed is given it has its
    own.
    """
    if sample is None:
        return JobRequest.model_validate_json(spec)
    body = {**json.loads(spec), "job_id": job_id}
    if (seed := body["sampling_params"].get("seed")) is not None:
        body["sampling_params"]["seed"] = (seed + int(sample) * SEED_STEP) % 2**63
    return JobRequest.model_validate(body)


def request_body(job: JobRequest) -> bytes:
    """The request as stored and fingerprinted: JSON with sorted keys, so that the order of fields does not matter."""
    return json.dumps(job.model_dump(mode="json"), sort_keys=True, separators=(",", ":")).encode()
