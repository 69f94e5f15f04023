"""How the turn log is packed: a list of values in a fixed order for each entry, so that no name is stored per turn.

An entry is a turn, or what a call of the turn before it gave; the latter starts with None where a turn has its index.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from prorl_celery.jobs.turns import Observation, Turn
from prorl_celery.store.blobs import pack, unpack


def pack_turn(turn: Turn, *, limit_bytes: int, job_id: str) -> bytes:
    """The turn's blob. Raises `TooLarge`; ValueError when ids, log-probabilities and versions differ in length."""
    count = len(turn.sampled_ids)
    if len(turn.logprobs) != count or len(turn.versions) != count:
        raise ValueError(
            f"turn {turn.index} of {job_id}: {count} sampled ids, {len(turn.logprobs)} log-probabilities, "
            f"{len(turn.versions)} versions"
        )
    values = (
        turn.index,
        turn.delta_ids,
        turn.sampled_ids,
        turn.logprobs,
        _fold(turn.versions),
        turn.new_segment,
        turn.split_reason,
        turn.messages,
        turn.llm_s,
        turn.tool_s,
        turn.total_s,
        turn.prompt_tokens,
        turn.completion_tokens,
        turn.backend,
        turn.policy_version,
        turn.finish_reason,
        turn.cached_tokens,
        turn.malformed_calls,
        turn.run,
        turn.closed,
        turn.outcome,
        turn.model,
        turn.mode,
        turn.given,
    )
    return pack(values, limit_bytes=limit_bytes, what=f"turn {turn.index}", job_id=job_id)


def pack_observation(seen: Observation, *, limit_bytes: int, job_id: str) -> bytes:
    """The observation's blob. Raises `TooLarge`."""
    values = (None, seen.index, seen.call, seen.messages, seen.tool_s, seen.total_s, seen.closes, seen.outcome)
    what = f"the observation of call {seen.call} of turn {seen.index}"
    return pack(values, limit_bytes=limit_bytes, what=what, job_id=job_id)


def unpack_turns(blobs: Iterable[bytes]) -> list[Turn]:
    """The turns of a log, each with what its calls gave."""
    turns: list[Turn] = []
    for blob in blobs:
        values = unpack(blob)
        if values[0] is not None:
            turns.append(_turn(values))
            continue
        *_, messages, tool_s, total_s, closes, outcome = values
        turn = turns[-1]
        turns[-1] = replace(
            turn,
            messages=turn.messages + messages,
            tool_s=turn.tool_s + tool_s,
            total_s=total_s,
            closed=closes,
            outcome=outcome,
        )
    return turns


def _turn(values: list[Any]) -> Turn:
    versions: Any = values[4]
    if not isinstance(versions, array):
        versions = array("i", (versions,)) * len(values[2])
    return Turn(
        index=values[0],
        delta_ids=values[1],
        sampled_ids=values[2],
        logprobs=values[3],
        versions=versions,
        new_segment=values[5],
        split_reason=values[6],
        messages=values[7],
        llm_s=values[8],
        tool_s=values[9],
        total_s=values[10],
        prompt_tokens=values[11],
        completion_tokens=values[12],
        backend=values[13],
        policy_version=values[14],
        finish_reason=values[15],
        cached_tokens=values[16],
        malformed_calls=values[17],
        # Logs of before turns were logged in parts end here.
        run=values[18] if len(values) > 18 else 0,
        closed=values[19] if len(values) > 18 else True,
        outcome=values[20] if len(values) > 18 else None,
        model=values[21] if len(values) > 18 else None,
        mode=values[22] if len(values) > 18 else None,
        given=values[23] if len(values) > 18 else None,
    )


def _fold(versions: array[int]) -> array[int] | int:
    """One number where all are the same, as they are unless the weights changed within the turn."""
    if len(versions) > 0 and versions.count(versions[0]) == len(versions):
        return versions[0]
    return versions
