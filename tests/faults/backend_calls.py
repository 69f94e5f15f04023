"""What the scripted backend was asked for by which job."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from prorl_celery.testing import ScriptedBackend


@dataclass(frozen=True, slots=True)
class ModelCall:
    """One call as the backend saw it. Given up when its caller went away, or it was aborted."""

    turn: int
    finished: bool
    started: float
    prompt: list[int]
    sampled: list[int]


def calls_of(backend: ScriptedBackend, job_id: str) -> list[ModelCall]:
    """The calls for one job, the first first."""
    return [
        ModelCall(
            int(found["turn"]), call["outcome"] in ("stop", "length"), call["started"], call["prompt_ids"],
            call["sampled_ids"],
        )
        for call in backend.calls(4000)
        if (found := re.search(rf"\b{re.escape(job_id)}-t(?P<turn>\d+)-[0-9a-f]{{8}}$", call["request_id"]))
    ]  # fmt: skip


def finished_twice(backend: ScriptedBackend, ids: Iterable[str]) -> dict[tuple[str, int], int]:
    """The turns that were sampled to their end more than once: (job, turn) -> how often."""
    counts = Counter((job_id, call.turn) for job_id in ids for call in calls_of(backend, job_id) if call.finished)
    return {turn: count for turn, count in counts.items() if count > 1}
