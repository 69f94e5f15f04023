"""What is taken off a reward for the looks of its trajectory: too long, or saying the same again. Pure functions.

Both look at what the model sampled, turn by turn; what tools and templates put between counts for nothing. Where a
backend gives token ids these are the sampled tokens; where it gives none (chat mode), length is its own count of
completion tokens, and the n-grams are of words (split at white space) of what the model said: reasoning, text, calls.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from prorl_celery.errors import LengthUnknown
from prorl_celery.jobs.models import Overlong, RewardShaping
from prorl_celery.jobs.turns import Turn

BLOCK = 16
"""Tokens that are compared as they are; longer n-grams by the numbers of their parts."""


@dataclass(frozen=True, slots=True)
class Shaped:
    """A reward, and what was added to the raw one to give it, by name; none of the parts is above 0."""

    reward: float
    parts: dict[str, float]


def shape(reward: float, turns: Sequence[Turn], shaping: RewardShaping) -> Shaped:
    """The reward with all that the shaping takes off. Raises `LengthUnknown` as `length_of`."""
    parts: dict[str, float] = {}
    if shaping.overlong is not None:
        parts["overlong"] = overlong(length_of(turns), shaping.overlong)
    if shaping.repetition is not None:
        share = repeated_share(pieces_of(turns), shaping.repetition.ngram)
        parts["repetition"] = 0.0 - shaping.repetition.penalty * share
    return Shaped(reward + sum(parts.values()), parts)


def overlong(length: int, limits: Overlong) -> float:
    """The soft overlong punishment of Yu et al. 2025 ("DAPO", arXiv 2503.14476, section 3.4, equation 13), times
    `penalty`: with L_max = `max_tokens` and L_cache = `buffer_tokens`, it is 0 for a length up to L_max - L_cache,
    ((L_max - L_cache) - length) / L_cache up to L_max, and -1 beyond.
    """
    over = length - (limits.max_tokens - limits.buffer_tokens)
    if over <= 0:
        return 0.0
    if length > limits.max_tokens:
        return 0.0 - limits.penalty
    return 0.0 - limits.penalty * (over / limits.buffer_tokens)


def repeated_share(pieces: Iterable[Sequence[Hashable]], ngram: int) -> float:
    """The share of all n-grams that stood before: 1 - distinct / all, in [0, 1); 0 where there is none.

    That is "seq-rep-n" of Welleck et al. 2020 ("Neural text generation with unlikelihood training"), over all pieces
    together; none reaches over the border of two. N-grams as a penalty: Yeo et al. 2025 ("Demystifying long
    chain-of-thought reasoning in LLMs", appendix C.2).

    Exact, and linear in the length (times log n): n-grams are given numbers, equal ones the same; first those of up to
    `BLOCK` tokens, then twice as long ones by the two that they are made of, and so on.
    """
    length = min(ngram, BLOCK)
    distinct, grams = _numbered(_blocks(piece, length) for piece in _as_ids(pieces) if len(piece) >= ngram)
    while length < ngram:
        step = min(length, ngram - length)  # the two overlap where n is no such multiple
        distinct, grams = _numbered(zip(row, row[step:], strict=False) for row in grams)
        length += step
    total = sum(map(len, grams))
    return 1.0 - distinct / total if total else 0.0


def length_of(turns: Iterable[Turn]) -> int:
    """Tokens that were sampled in a trajectory, in all turns together.

    Raises `LengthUnknown` where the backend gave neither the ids of a turn nor their count.
    """
    length = 0
    for turn in turns:
        count = len(turn.sampled_ids) or max(0, turn.completion_tokens)
        if count == 0 and turn.finish_reason != "abort" and _words(turn):
            raise LengthUnknown(f"the backend does not tell how many tokens turn {turn.index} has")
        length += count
    return length


def pieces_of(turns: Sequence[Turn]) -> list[Sequence[Hashable]]:
    """What the model sampled, turn by turn: ids where all turns have them, else words."""
    with_ids = [turn.sampled_ids for turn in turns if turn.sampled_ids]
    if len(with_ids) == sum(1 for turn in turns if turn.sampled_ids or turn.completion_tokens):
        return [*with_ids]
    return [_words(turn) for turn in turns]


def _as_ids(pieces: Iterable[Sequence[Hashable]]) -> list[array[int]]:
    """Each thing as a number, equal things as the same; token ids as they are."""
    given = list(pieces)
    ids = [piece for piece in given if isinstance(piece, array)]
    return ids if len(ids) == len(given) else [array("i", row) for row in _numbered(given)[1]]


def _blocks(ids: array[int], length: int) -> Iterator[bytes]:
    """The runs of so many ids, as bytes."""
    data, step = ids.tobytes(), ids.itemsize
    return (data[at : at + length * step] for at in range(0, len(data) - length * step + 1, step))


def _numbered(rows: Iterable[Iterable[Hashable]]) -> tuple[int, list[list[int]]]:
    """How many different things there are in all rows, and each as a number, equal things as the same."""
    numbers: dict[Hashable, int] = {}
    found = [[numbers.setdefault(thing, len(numbers)) for thing in row] for row in rows]
    return len(numbers), found


def _words(turn: Turn) -> list[str]:
    """Of the turn's reply, its last assistant message: the first turn has the prompt's messages too."""
    replies = [one for one in turn.messages if one.get("role") == "assistant"]
    message = replies[-1] if replies else {}
    calls = [call.get("function", {}) for call in message.get("tool_calls") or ()]
    said = (
        message.get("reasoning_content"),
        message.get("content"),
        *(part for call in calls for part in (call.get("name"), call.get("arguments"))),
    )
    return [word for text in said if isinstance(text, str) for word in text.split()]
