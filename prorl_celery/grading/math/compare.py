"""Whether what a reply says is what the key says. Lists, sets, tuples and intervals are taken apart here, numbers and
words compared here; an expression goes to whom it may concern (`Verify`).

- A list (`1, 2`; `x = 1 or x = 2`; a set) is the same in any order, and has as many entries as the key.
- A tuple or an interval has the key's brackets and order.
- `\\pm a` is the list of two.
- A name before the last `=` is left out unless both have one: `x = 5` is 5, and `y = 5` is not `x = 5`.
- Where the key is a number, an expression that is made of the problem's numbers only is the problem again, no answer to
  it: `3 + 4` is not 7 to who asked for 3 + 4. So is, whatever the key, a formula that stands in the problem as it is,
  and an integral, a sum or a limit that the key has not.
- A chain is right if its last side is, and no side is another number: `8 = 7` is not 7.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from prorl_celery.grading.math.forms import Key, as_word, same_word
from prorl_celery.grading.math.latex import bracketed, close, formulas, parts, split_top
from prorl_celery.grading.math.numbers import different_units, equal, plain_number, split_unit

MOST_PARTS = 64

Verify = Callable[[str, str], bool]
"""Whether two expressions are equal: the key's, the reply's."""

_PLUS_MINUS = re.compile(r"\\pm(?![a-zA-Z])|\+/-|\+-")
_RELATION = re.compile(r"=|<|>|\\(?:le|ge|ne|in|lt|gt|leqslant|geqslant|equiv|approx|subset)(?![a-zA-Z])")
_NAME = re.compile(r"\s*\\?[A-Za-z]+(?:_\{?\w+\}?)?(?:\([a-z](?:, ?[a-z])*\))?\s*")
_BEYOND = re.compile(r"[-+]?[\d.]+[eE][-+]?\d{4,}")
"""A number with an exponent beyond those that are read."""
_LOG = re.compile(r"\\log(?![a-zA-Z])(?!\s*_)")
"""The natural logarithm, to whose key is in `\\ln`."""
_DIGITS = re.compile(r"\d+(?:\.\d+)?|\.\d+")
_UNDONE = re.compile(
    r"\\(?:int|iint|oint|sum|prod|lim)(?![a-zA-Z])|[∫∑∏]|\\frac\s*\{\s*(?:d|\\partial)\s*\}\s*\{\s*(?:d|\\partial)"
)
"""What asks for work, and says nothing of what comes of it."""
_OPERATION = re.compile(r"[-+*/^!=<>|]|\\[a-zA-Z]+|\d[a-zA-Z(]")
_NEUTRAL = re.compile(r"[-+]\s*0(?![\d.])|(?:\\cdot|\\times|[*/^])\s*\{?\s*1\s*\}?(?![\d.])")
"""What changes nothing."""
_APART = re.compile(r"\d\s+(?!\d{3}(?!\d))\d")
"""Two numbers; `1 000` is one."""


class NeedsVerify(Exception):
    """An expression would have to be parsed."""


def never(key: str, got: str) -> bool:
    """A `Verify` for a process that parses nothing."""
    raise NeedsVerify


def says(key: Key, got: str, problem: str, verify: Verify) -> bool:
    """Whether a reply's answer, in one spelling, is the key's. Raises what `verify` does."""
    if key.kind == "word":
        return same_word(key.text, got)
    if key.kind == "number" and plain_number(got) is None and "\\" not in got and _APART.search(got) is not None:
        return False
    if close(key.text) == close(got):
        return True
    if key.kind == "number" and (_BEYOND.fullmatch(got) is not None or repeats(got, problem)):
        return False
    if _copied(got, problem):
        return False
    return _same(key.text, got, verify)


def repeats(got: str, problem: str) -> bool:
    """Whether an answer is an expression, no plain number, whose numbers are all the problem's."""
    if plain_number(got) is not None or len(split_top(got, "=")) > 1:
        return False
    numbers = _DIGITS.findall(_NEUTRAL.sub("", got))
    return bool(numbers) and set(numbers) <= set(_DIGITS.findall(problem))


def _copied(got: str, problem: str) -> bool:
    """Whether an answer with something to do in it, a fraction to reduce for one, is a formula of the problem. Where
    that is the key it is right before this is asked.
    """
    number = plain_number(got)
    reduced = number is not None and ("frac" not in got or _DIGITS.findall(got) == _DIGITS.findall(str(number.value)))
    if reduced or _OPERATION.search(got) is None:
        return False
    said = close(got)
    return any(close(formula).rstrip("=?") == said for formula in formulas(problem))


def _same(key: str, got: str, verify: Verify) -> bool:
    if _contradicts_itself(got):
        return False
    key, got = _without_names(key, got)
    if _UNDONE.search(got) is not None and _UNDONE.search(key) is None:
        return False
    keys, gots = _entries(key), _entries(got)
    if len(keys) != len(gots) or len(keys) > MOST_PARTS:
        return False
    if len(keys) > 1 or _is_set(key) or _is_set(got):
        return _any_order(keys, gots, verify)
    return _one(keys[0], gots[0], verify)


def _contradicts_itself(got: str) -> bool:
    """Whether a chain of equals has two different numbers."""
    if len(parts(got)) != 1:
        return False
    sides = [number for side in split_top(got, "=") if (number := plain_number(side.strip())) is not None]
    return any(not (equal(one, sides[-1]) or equal(sides[-1], one)) for one in sides[:-1])


def _any_order(keys: list[str], gots: list[str], verify: Verify) -> bool:
    left = list(gots)
    for key in keys:
        # What looks the same is tried first, so that an expression is seldom parsed for nothing.
        left.sort(key=lambda got, key=key: close(got) != close(key))  # type: ignore[misc]
        for at, got in enumerate(left):
            if close(key) == close(got) or _one(*_without_names(key, got), verify):
                del left[at]
                break
        else:
            return False
    return True


def _one(key: str, got: str, verify: Verify) -> bool:
    """One entry each."""
    key_number = plain_number(key)
    got_number = plain_number(got, unit=key_number.unit if key_number else None)
    if key_number is not None and got_number is not None:
        return equal(key_number, got_number)
    key, key_unit = split_unit(key) if key_number is None else (key, key_number.unit)
    got, got_unit = split_unit(got) if got_number is None else (got, got_number.unit)
    if different_units(key_unit, got_unit):
        return False
    if close(key) == close(got):
        return True
    word = as_word(key)
    if word is not None and as_word(got) is not None:
        return same_word(word, got)
    unions = split_top(key, r"\cup"), split_top(got, r"\cup")
    if len(unions[0]) > 1 and len(unions[0]) == len(unions[1]) and all(map(bracketed, unions[0] + unions[1])):
        if _any_order(unions[0], unions[1], verify):
            return True
        return verify(key, got)
    if r"\ln" in key and r"\log" not in key and r"\ln" not in got:
        got = _LOG.sub(r"\\ln", got)
    held, got_held = bracketed(key), bracketed(got)
    if held is not None and got_held is not None:
        keys, gots = parts(held[1]), parts(got_held[1])
        if len(keys) > 1 or len(gots) > 1:
            same_kind = (held[0], held[2]) == (got_held[0], got_held[2])
            return (
                same_kind
                and len(keys) == len(gots)
                and all(_one(*_without_names(k, g), verify) for k, g in zip(keys, gots, strict=True))
            )
    else:
        several = [one is not None and len(parts(one[1])) > 1 for one in (held, got_held)]
        if several[0] and _RELATION.search(got) is None and r"\begin" not in got:
            return False
        if several[1] and key_number is not None:
            return False
    return verify(key, got)


def _entries(text: str) -> list[str]:
    """The entries of a list or a set; an only one for anything else."""
    entries = parts(text)
    if len(entries) == 1 and _is_set(entries[0]):
        held = bracketed(entries[0])
        entries = parts(held[1]) if held is not None else entries
    return [one for entry in entries for one in both_signs(entry)] or [text]


def both_signs(entry: str) -> list[str]:
    r"""The two that an entry with one `\pm` is, else the entry."""
    if len(_PLUS_MINUS.findall(entry)) != 1:
        return [entry]
    plus, minus = (_PLUS_MINUS.sub(sign, entry).strip() for sign in "+-")
    return [plus.removeprefix("+").strip(), minus]


def _is_set(text: str) -> bool:
    held = bracketed(text)
    return held is not None and held[0] == r"\{" and r"\mid" not in text and "|" not in text


def _without_names(key: str, got: str) -> tuple[str, str]:
    """Both without what is before the last equals sign, where only one has such a sign, or the reply's are a chain."""
    if r"\begin" in key or r"\begin" in got:
        return key, got
    key_sides, got_sides = (split_top(text, "=") if len(parts(text)) == 1 else [text] for text in (key, got))
    if len(got_sides) > 1 and _RELATION.search(key) is None:
        return key, got_sides[-1].strip()
    if len(key_sides) == 2 and _NAME.fullmatch(key_sides[0]) and _RELATION.search(got) is None:
        return key_sides[1].strip(), got
    element = re.fullmatch(r"\s*\\?[A-Za-z]+\s*\\in(?![a-zA-Z])(.+)", got)
    if element is not None and _RELATION.search(key) is None:
        return key, element[1].strip()
    element = re.fullmatch(r"\s*\\?[A-Za-z]+\s*\\in(?![a-zA-Z])(.+)", key)
    if element is not None and _RELATION.search(got) is None:
        return element[1].strip(), got
    return key, got
