"""What kind of answer a key is, told from its text alone: cheap and safe enough for the process that takes jobs in.

A number is compared exactly (`numbers`), a word letter by letter, and anything else is mathematics in LaTeX, which is
parsed in a child process only.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any, Literal

from prorl_celery.grading.math.latex import balance_problem, boxes, spelled
from prorl_celery.grading.math.numbers import Number, plain_number

LONGEST_ANSWER = 2_000
"""Characters of an answer: of a key, and of what is taken from a reply."""
DEEPEST = 40

Kind = Literal["number", "word", "latex"]


class UnreadableKey(ValueError):
    """The answer key cannot be read: no reply can be right or wrong by it."""


@dataclass(frozen=True, slots=True)
class Key:
    """An answer key: as it is written in one spelling, its kind, and its number where it is one."""

    text: str
    kind: Kind
    number: Number | None = None


_WORDS = re.compile(r"[A-Za-z][A-Za-z'’ \-]*")
_TIME = re.compile(r"(\d{1,2}:\d{2})(?::\d{2})?\s*(?:([ap])\.?m\.?)", re.IGNORECASE)
_CHOICE = re.compile(r"\(?([A-Z])\)?")
_ONLY_TEXT = re.compile(r"(?:\\text\s*\{([^{}]*)\}\s*)+")
_NAMES = frozenset(
    ("pi", "sqrt", "sin", "cos", "tan", "log", "ln", "exp", "theta", "alpha", "beta", "gamma", "infinity", "inf", "abs",
     "mod", "max", "min", "gcd", "lcm")
)  # fmt: skip


def read_key(answer: Any) -> Key:
    """The key that an instance's answer is: text, or a number. Raises: `UnreadableKey` that says why."""
    if isinstance(answer, bool) or not isinstance(answer, str | int | float):
        raise UnreadableKey(f"an answer is text or a number, not {type(answer).__name__}")
    if isinstance(answer, float) and not math.isfinite(answer):
        raise UnreadableKey(f"an answer is a finite number, not {answer}")
    if isinstance(answer, int) and answer.bit_length() > 4 * LONGEST_ANSWER:
        raise UnreadableKey("the answer has too many digits")
    text = str(answer)
    if not 0 < len(text.strip()) <= 4 * LONGEST_ANSWER:
        raise UnreadableKey(f"an answer has 1 to {LONGEST_ANSWER} characters, not {len(text.strip())}")
    found = boxes(text, 1)
    text = spelled(found[-1][2] if found else text)
    if not 0 < len(text) <= LONGEST_ANSWER:
        raise UnreadableKey(f"an answer has 1 to {LONGEST_ANSWER} characters, not {len(text)}")
    if any(ord(char) < 32 or char == "\x7f" for char in text):
        raise UnreadableKey("the answer has control characters")
    problem = balance_problem(text, DEEPEST)
    if problem is not None:
        raise UnreadableKey(f"the answer is no LaTeX: {problem}")
    number = plain_number(text)
    if number is not None:
        return Key(text, "number", number)
    word = as_word(text)
    if word is not None:
        return Key(word, "word")
    if not re.search(r"[0-9A-Za-z\\]", text):
        raise UnreadableKey(f"the answer says nothing: {text!r}")
    return Key(text, "latex")


def as_word(text: str) -> str | None:
    r"""The word or words that a text in one spelling is: `Tuesday`, `\text{even}`, `(C)`, `yes`, `5:30 PM`; None where
    it may be mathematics, such as `x` or `xy`.
    """
    time = _TIME.fullmatch(re.sub(r"\\text\s*\{([^{}]*)\}", r" \1", text).strip())
    if time is not None:
        return f"{time[1]} {time[2].lower()}m"
    only = _ONLY_TEXT.fullmatch(text)
    if only is not None:
        inner = " ".join(re.findall(r"\\text\s*\{([^{}]*)\}", text)).strip()
        choice = _CHOICE.fullmatch(inner)
        if choice is not None:
            return choice[1]
        return _plain(inner) if _WORDS.fullmatch(inner) else None
    choice = _CHOICE.fullmatch(text)
    if choice is not None:
        return choice[1]
    words = text.split()
    if _WORDS.fullmatch(text) and max(map(len, words)) >= 3 and not _NAMES & {word.lower() for word in words}:
        return _plain(text)
    return _plain(text) if text.lower() == "no" else None


def same_word(word: str, text: str) -> bool:
    """Whether a text in one spelling says a key's word: whatever the case, in brackets or not; a choice's letter may be
    followed by what it stands for (`C. 42`).
    """
    said = re.sub(r"\\text\s*\{([^{}]*)\}", r"\1", text).strip()
    if len(word) == 1:
        choice = re.fullmatch(r"\(?([A-Za-z])\)?(?:\s*[.:)]\s.*)?", said, re.DOTALL)
        return choice is not None and choice[1].upper() == word
    return _plain(said) == word or as_word(text) == word


def _plain(text: str) -> str:
    return " ".join(text.replace("’", "'").split()).strip(" .!\"'()").casefold()
