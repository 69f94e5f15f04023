"""What a reply to a mathematical problem is worth: right or wrong, and why.

Numbers and words are compared where the caller is. Whatever has to be parsed is parsed in a child process that can be
killed, and there in a fork of it with a limit on its processor time and memory: LaTeX of a few characters can ask for
more than there is. What breaks a limit while the key is read is the key's fault, and after that the reply's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from prorl_celery.errors import BadInstance, EvalError
from prorl_celery.grading.bounds import Say, bounded
from prorl_celery.grading.math.compare import NeedsVerify, both_signs, never, says
from prorl_celery.grading.math.forms import DEEPEST, LONGEST_ANSWER, Key, UnreadableKey, read_key
from prorl_celery.grading.math.latex import balance_problem, bracketed, parts, split_top
from prorl_celery.grading.math.numbers import plain_number
from prorl_celery.grading.math.replies import said_answer

CPU_SECONDS = 5
"""Processor time for one answer; math-verify's own default is as long."""
MEMORY_BYTES = 512 << 20
WALL_SECONDS = 120.0
"""For the machine to give it that."""

WARM = ("prorl_celery.grading.math.verifier",)
"""Imported in the process that forks children, before it forks the first that runs a function of this module."""


class InChild(Protocol):
    """`ctx.in_child` of a stage."""

    def __call__(self, function: Callable[[Any], Any], argument: Any, *, timeout: float) -> Any: ...


def key_of(answer: Any) -> Key:
    """The key, read as far as its text goes. Raises: `BadInstance` for one that says nothing or is no LaTeX."""
    try:
        return read_key(answer)
    except UnreadableKey as error:
        raise BadInstance(str(error), field="answer") from error


def check_key(answer: Any, in_child: InChild) -> None:
    """See that a key can be parsed, before anything is sampled. Raises: `BadInstance`, and what `in_child` raises."""
    key = key_of(answer)
    if key.kind == "latex":
        _refuse(in_child(parse_key, {"key": answer}, timeout=WALL_SECONDS))


def verdict(answer: Any, reply: str | None, problem: str, in_child: InChild) -> dict[str, Any]:
    """`{"reward": 0.0 or 1.0, "resolved": bool, "answer": what the reply says, "why": of a wrong one}`.

    Raises: `BadInstance` for a key that cannot be parsed, `EvalError`, and what `in_child` raises.
    """
    key = key_of(answer)
    got = said_answer(reply or "", key.kind, problem=problem)
    if not got:
        return _wrong(None, "the reply says no answer")
    if len(got) > LONGEST_ANSWER:
        return _wrong(None, f"the answer has more than {LONGEST_ANSWER} characters")
    unread = balance_problem(got, DEEPEST)
    if unread is not None:
        return _wrong(got, f"the answer is no LaTeX: {unread}")
    try:
        if key.kind == "latex":
            raise NeedsVerify
        right = says(key, got, problem, never)
    except NeedsVerify:
        found = in_child(compare_parsed, {"key": answer, "got": got, "problem": problem}, timeout=WALL_SECONDS)
        _refuse(found)
        if found["why"] is not None:
            return _wrong(got, f"the answer could not be read: {found['why']}")
        right = found["right"]
    return {"reward": 1.0, "resolved": True, "answer": got} if right else _wrong(got, "another answer than the key's")


def parse_key(argument: dict[str, Any]) -> dict[str, Any]:
    """In a child: `{"key_problem": why the key cannot be parsed, or None, "lost": bool}`."""
    import prorl_celery.grading.math.verifier  # noqa: F401 - that it is missing is no fault of a key

    key = read_key(argument["key"])
    ended = bounded(lambda say: say(_key_problem(key)), cpu_seconds=CPU_SECONDS, memory_bytes=MEMORY_BYTES)
    return {"key_problem": ended.said[0] if ended.said else ended.how, "lost": ended.lost}


def compare_parsed(argument: dict[str, Any]) -> dict[str, Any]:
    """In a child: `{"key_problem", "lost", "right", "why"}`; `why` says why the reply's answer could not be read."""
    import prorl_celery.grading.math.verifier  # noqa: F401

    key, got, problem = read_key(argument["key"]), argument["got"], argument["problem"]

    def work(say: Say) -> None:
        key_problem = _key_problem(key)
        say(key_problem)
        if key_problem is None:
            say(says(key, got, problem, _verify))

    ended = bounded(work, cpu_seconds=CPU_SECONDS, memory_bytes=MEMORY_BYTES)
    key_problem = ended.said[0] if ended.said else ended.how
    return {"key_problem": key_problem, "lost": ended.lost, "right": ended.said[1:] == [True], "why": ended.how}


def _key_problem(key: Key) -> str | None:
    """Parses a key and works it out, or where it is no one expression every part that may be compared by itself."""
    if key.kind != "latex":
        return None
    from prorl_celery.grading.math.verifier import has_value, parsed

    whole = parsed(key.text)
    if whole is not None:
        return None if has_value(whole) else "it has no value"
    held = bracketed(key.text)
    pieces = [one for piece in parts(held[1] if held else key.text) for one in both_signs(piece)]
    for piece in pieces:
        for side in split_top(piece, "="):
            if plain_number(side) is None and parsed(side) is None:
                return f"{side!r} cannot be parsed"
    return None


def _verify(key: str, got: str) -> bool:
    from prorl_celery.grading.math.verifier import equivalent, parsed

    expected, said = parsed(key), parsed(got)
    if expected is None or said is None:
        return False
    return equivalent(expected, said, plain_number(key), plain_number(got))


def _refuse(found: dict[str, Any]) -> None:
    if found["lost"]:
        raise EvalError("the process that compares answers was killed")
    if found["key_problem"] is not None:
        raise BadInstance(f"the answer key cannot be parsed: {found['key_problem']}", field="answer")


def _wrong(got: str | None, why: str) -> dict[str, Any]:
    return {"reward": 0.0, "resolved": False, "answer": got, "why": why}
