"""Small rules of sampling that both forms of conversation share: seeds, request ids, room in the context."""

from __future__ import annotations

import secrets

UNKNOWN_VERSION = -1
"""The version of a token sampled by weights whose version nobody told."""
SEED_STEP = 0x9E3779B97F4A7C15
"""An odd constant (the golden ratio's), so that the seeds of a job's calls lie far apart and none comes twice."""
CALLS_PER_TURN = 1 << 10


def call_seed(seed: int | None, turn: int, call: int = 0) -> int | None:
    """The seed of one call of a job whose `sampling_params.seed` is `seed`.

    The first call uses the seed itself. Later turns, and later calls of one turn, use others that follow from it:
    with one seed for all of them the noise would repeat from turn to turn. Below 2^63, as servers want it.
    """
    if seed is None:
        return None
    return (seed + (turn * CALLS_PER_TURN + call) * SEED_STEP) % 2**63


def request_id(job_id: str, turn: int) -> str:
    """Names one call to the backend; no two calls share one, for an engine may refuse an id that it still knows."""
    return f"{job_id}-t{turn}-{secrets.token_hex(4)}"


def room_for(wanted: int, prompt_tokens: int, *limits: int | None) -> int:
    """How many of `wanted` tokens fit behind the prompt, under the least of `limits`; below 1: none."""
    known = [limit for limit in limits if limit is not None]
    return min(wanted, min(known) - prompt_tokens) if known else wanted
