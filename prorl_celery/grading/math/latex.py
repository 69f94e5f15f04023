"""LaTeX as text: one spelling for what looks the same, what stands in brackets, what stands between commas. Nothing is
computed here, and every function takes time in proportion to its text.
"""

from __future__ import annotations

import re
from itertools import accumulate

OPEN, CLOSE = "([{", ")]}"

_CHARACTERS = str.maketrans(
    {
        "−": "-", "–": "-", "—": "-", "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "÷": "/", "∞": r"\infty ",
        "π": r"\pi ", "√": r"\sqrt", "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "±": r"\pm ",
        "∪": r"\cup ", "∩": r"\cap ", "∅": r"\emptyset ", "∈": r"\in ", "°": r"^\circ ", "≈": r"\approx ",
        "\u00a0": " ", "\u2009": " ", "\u202f": " ",
        "½": r"\frac{1}{2}", "⅓": r"\frac{1}{3}", "⅔": r"\frac{2}{3}", "¼": r"\frac{1}{4}", "¾": r"\frac{3}{4}",
        "，": ", ", "（": "(", "）": ")", "％": "%",
    }
)  # fmt: skip
_SUPERSCRIPTS = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-", strict=True))
_RAISED = re.compile(f"[{''.join(_SUPERSCRIPTS)}]+")
_SPELLINGS = [
    (re.compile(r"\\(?:[dtc])frac(?![a-zA-Z])"), r"\\frac"),
    (re.compile(r"\\(?:left|right|displaystyle|textstyle|limits|big|Big|bigl|bigr|Bigl|Bigr)(?![a-zA-Z])\.?"), ""),
    (re.compile(r"\\(?:mathrm|mathbf|mathit|mathsf|textbf|textit|textrm|textsf|texttt|mbox|operatorname)\s*\{"),
     r"\\text{"),
    (re.compile(r"\\(?:lbrace|\{)(?![a-zA-Z])"), r"\\{"),
    (re.compile(r"\\(?:rbrace|\})(?![a-zA-Z])"), r"\\}"),
    (re.compile(r"\\leq(?![a-zA-Z])"), r"\\le"),
    (re.compile(r"\\geq(?![a-zA-Z])"), r"\\ge"),
    (re.compile(r"\\neq(?![a-zA-Z])"), r"\\ne"),
    (re.compile(r"\\(?:varnothing)(?![a-zA-Z])"), r"\\emptyset"),
    (re.compile(r"\\!|\\(?:phantom|hphantom|vphantom)\{[^{}]*\}"), ""),
    (re.compile(r"\{,\}"), ","),
    (re.compile(r"(?<=\d)(?:\\,|\\ |~)(?=\d{3}(?!\d))"), ""),  # 1\,000
    (re.compile(r"(?<!\\)\\[,;: ]|(?<!\\)~|\\(?:quad|qquad)(?![a-zA-Z])"), " "),
    (re.compile(r"\^\s*\{\s*\\circ\s*\}|\^\s*\\circ(?![a-zA-Z])|\\degree(?![a-zA-Z])"), r"^\\circ "),
    (re.compile(r"\s+"), " "),
]  # fmt: skip
_WRAPPERS = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"), ("**", "**"), ("`", "`"))


def spelled(text: str) -> str:
    """The same in one spelling: Unicode's signs and LaTeX's variants of a command as the plain command, no spacing
    commands, none of the wrappers that say only that this is mathematics.
    """
    text = _RAISED.sub(lambda found: "^{" + "".join(_SUPERSCRIPTS[c] for c in found.group()) + "}", text)
    text = text.translate(_CHARACTERS)
    for pattern, replacement in _SPELLINGS:
        text = pattern.sub(replacement, text)
    return unwrapped(text)


def unwrapped(text: str) -> str:
    """Without dollars, bold stars and the like around it, and without the full stop behind it."""
    while True:
        before = text
        text = text.strip().rstrip(" .,;")
        for left, right in _WRAPPERS:
            inner = text[len(left) : len(text) - len(right)]
            if len(text) > len(left) + len(right) and text.startswith(left) and text.endswith(right):
                if left not in inner and right not in inner:
                    text = inner
                break
        for command in (r"\boxed", r"\fbox"):
            if text.startswith(command) and (end := _closing(text, len(command))) == len(text) - 1:
                text = text[len(command) + 1 : end]
        if text.startswith("{") and _closing(text, 0) == len(text) - 1:
            inner = text[1:-1]
            text = rf"\{{{inner}\}}" if "," in inner else inner
        if text == before:
            return text


def close(text: str) -> str:
    """As `spelled`, for telling whether two texts are the same: no spaces, one sign for a product."""
    text = spelled(text).replace(r"\times", "*").replace(r"\cdot", "*")
    return re.sub(r"\s+", "", text)


_FORMULA = re.compile(r"\$\$(.+?)\$\$|\$(.+?)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)


def formulas(text: str) -> list[str]:
    """What a text has between dollars or other signs that set mathematics off."""
    return [next(group for group in found.groups() if group) for found in _FORMULA.finditer(text)]


def boxes(text: str, most: int) -> list[tuple[int, int, str]]:
    r"""The last `most` boxes, `\boxed{...}` or `\fbox{...}`: where each begins and ends, and what is in it. A box
    within a box is part of it; one that is never closed is none.
    """
    found: list[tuple[int, int, str]] = []
    at = len(text)
    for _ in range(4 * most):
        if len(found) == most:
            break
        at = max(text.rfind(r"\boxed", 0, at), text.rfind(r"\fbox", 0, at))
        if at < 0:
            break
        brace = at + (6 if text.startswith(r"\boxed", at) else 5)
        end = _closing(text, brace)
        if end is not None:
            while found and found[-1][0] < end:
                found.pop()
            found.append((at, end + 1, text[brace + 1 : end]))
    return found[::-1]


LONGEST_BOX = 10_000


def _closing(text: str, brace: int) -> int | None:
    """Where the brace that opens at `brace` closes; None where none opens or it closes too far away."""
    if not text.startswith("{", brace):
        return None
    depth = 0
    for at in range(brace, min(len(text), brace + LONGEST_BOX)):
        char = text[at]
        if char in "{}" and text[at - 1] != "\\":
            depth += 1 if char == "{" else -1
            if depth == 0:
                return at
    return None


def balance_problem(text: str, deepest: int) -> str | None:
    """What is wrong with the braces of a text; None when nothing is."""
    depth = 0
    for at, char in enumerate(text):
        if char in "{}" and (at == 0 or text[at - 1] != "\\"):
            depth += 1 if char == "{" else -1
            if depth < 0:
                return "a brace is closed that was not opened"
            if depth > deepest:
                return f"braces stand in more than {deepest} others"
    if depth:
        return "a brace is not closed"
    inside = max(accumulate((char == "(") - (char == ")") for char in text), default=0)
    return f"brackets stand in more than {deepest} others" if inside > deepest else None


_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?![\d,])")


def without_thousands(text: str) -> str:
    """Without the commas of `1,000`; those of `(1, 000)` and `1,00` stay."""
    return _THOUSANDS.sub(lambda found: found.group().replace(",", ""), text)


_SEPARATOR = re.compile(r",|;|\\text\s*\{\s*,?\s*(?:and|or)\s*\}|(?<![a-zA-Z\\])(?:and|or)(?![a-zA-Z])|\\lor\b|\\vee\b")


def parts(text: str) -> list[str]:
    """What stands between the commas, semicolons, `and` and `or` that are in no brackets."""
    text = without_thousands(text)
    found, begin, at, depth = [], 0, 0, 0
    while at < len(text):
        char = text[at]
        separator = _SEPARATOR.match(text, at) if depth == 0 else None
        if separator is not None:
            found.append(text[begin:at])
            at = begin = separator.end()
            continue
        if char == "\\" and at + 1 < len(text) and text[at + 1] in OPEN + CLOSE:
            at += 1
            char = text[at]
        if char in OPEN:
            depth += 1
        elif char in CLOSE:
            depth = max(0, depth - 1)
        at += 1
    found.append(text[begin:])
    return [part.strip() for part in found if part.strip()]


def split_top(text: str, sign: str) -> list[str]:
    """The text between the signs that are in no brackets."""
    found, begin, depth = [], 0, 0
    for at, char in enumerate(text):
        if char in OPEN:
            depth += 1
        elif char in CLOSE:
            depth = max(0, depth - 1)
        elif depth == 0 and text.startswith(sign, at) and not (sign == "=" and text[at - 1 : at] in ("<", ">", "!")):
            found.append(text[begin:at])
            begin = at + len(sign)
    return [*found, text[begin:]]


def bracketed(text: str) -> tuple[str, str, str] | None:
    r"""The opening bracket, what is inside, and the closing one, where one pair holds it all: `(`, `[` or `\{` with
    `)`, `]` or `\}`. Interval's brackets need not match.
    """
    text = text.strip()
    for left in (r"\{", "(", "["):
        for right in (r"\}", ")", "]"):
            if (left == r"\{") != (right == r"\}"):
                continue
            if len(text) >= len(left) + len(right) and text.startswith(left) and text.endswith(right):
                inner = text[len(left) : len(text) - len(right)]
                if _stays_inside(inner):
                    return left, inner.strip(), right
    return None


def _stays_inside(inner: str) -> bool:
    depth = 0
    for char in inner:
        if char in OPEN:
            depth += 1
        elif char in CLOSE:
            depth -= 1
            if depth < 0:
                return False
    return depth == 0
