"""From a job's record (the hash of `store/keys.py`) to the status that trainers read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime

from prorl_celery.jobs.models import STAGES, TERMINAL, JobError, JobStatus, Stage, StageTiming, Stalled

Record = dict[str, str]


def decode(raw: Mapping[bytes, bytes]) -> Record:
    """A record as Redis gave it, as text."""
    return {field.decode(): value.decode() for field, value in raw.items()}


def turns_count(record: Record) -> int:
    """Turns of the current attempt: the log may still be an earlier one's."""
    return int(record.get("nturns", 0)) if record.get("log") == record.get("rf") else 0


def status_of(job_id: str, record: Record, now_ms: int | None = None) -> JobStatus:
    """The status. Of a job whose result has expired little more than the state is left.

    `now_ms` is the server's time, which a job that is stalled needs.
    """
    ended = record["state"] in TERMINAL
    return JobStatus.model_construct(
        job_id=job_id,
        state=record["state"],
        stage=record["stage"] if record.get("stage") in STAGES else None,
        attempt=int(record["attempt"]),
        node=record.get("node"),
        backend=record.get("backend") if ended or record.get("held") == "1" else None,
        turns=turns_count(record),
        last_activity=rfc3339(record["active"]) if "active" in record else None,
        created_at=rfc3339(record["created"]),
        finished_at=rfc3339(record["finished"]) if ended else None,
        batch_id=record.get("batch"),
        group_id=record.get("group"),
        tags=tags_of(record),
        cancel_requested="cancel" in record and not ended,
        timing=timing_of(record),
        reward=float(record["reward"]) if "reward" in record else None,
        error=error_of(record),
        stalled=stalled_of(record, now_ms) if now_ms is not None else None,
    )


def stalled_of(record: Record, now_ms: int) -> Stalled | None:
    """What the job is at, if that has taken too long."""
    if "stall" not in record:
        return None
    stall = json.loads(record["stall"])
    return Stalled.model_construct(
        stage=record["stage"],
        node=record["node"],
        process=record["process"],
        thread=stall["thread"],
        act=stall["act"],
        seconds=(now_ms - stall["since"]) / 1000,
    )


def timing_of(record: Record) -> dict[Stage, StageTiming]:
    """Seconds in queues and at work, for each stage."""
    return {
        stage: StageTiming.model_construct(
            queued=int(record.get(f"q_{stage}", 0)) / 1000, running=int(record.get(f"r_{stage}", 0)) / 1000
        )
        for stage in STAGES
    }


def error_of(record: Record) -> JobError | None:
    """Why the job failed. A stage that this version does not know is left out."""
    if "error" not in record:
        return None
    error = json.loads(record["error"])
    return JobError.model_validate(error | {"stage": error["stage"] if error["stage"] in STAGES else None})


def tags_of(record: Record) -> dict[str, str]:
    """The request's tags."""
    return json.loads(record["tags"]) if "tags" in record else {}


def rfc3339(milliseconds: str) -> str:
    """A time of the server's clock, in UTC."""
    seconds, rest = divmod(int(milliseconds), 1000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:03d}Z"
