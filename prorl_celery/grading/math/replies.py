r"""Where a reply says its answer.

In this order: the last `\boxed{}`, or the last few where only commas and `and` stand between them; the last `#### `;
the last "the answer is"; a short text, whole; the last number, or the last `$...$`. What says several things is their
list, and a list is no single answer: a reply that tries `1, 2, 3, 4` or `5 or 7` is not right by one of them. Only the
end of a long text is read.
"""

from __future__ import annotations

import re

from prorl_celery.grading.math.forms import LONGEST_ANSWER, Kind
from prorl_celery.grading.math.latex import boxes, spelled
from prorl_celery.grading.math.numbers import plain_number

READ_CHARACTERS = 100_000
"""How much of the end of a reply is searched for boxes."""
TAIL_CHARACTERS = 4_000
"""How much of it is searched for anything else."""
MOST_BOXES = 16
SHORT = 200

_BETWEEN_BOXES = re.compile(
    r"(?:[\s$,;]|\\[()\[\],;: ]|\\quad|\\text\s*\{\s*(?:and|or)\s*\}|\b(?:and|or)\b|[a-zA-Z]\s*=)*"
)
_HASHES = re.compile(r"^\s*####\s*(\S.*)$", re.MULTILINE)
_ANSWER_IS = re.compile(r"\banswers?\b(?:\s+(?:is|are)\b)?\s*[:=]?\s*(?:\*\*)?\s*(\S.*)", re.IGNORECASE)
_SENTENCE_END = re.compile(r"(?<=[^\s\d])[.!?](?:\s|$)|(?<=\d)[.!?](?:\s|$)|\s(?:because|since|as)\s|\*\*(?=[\s.]|$)")
_NUMBER = re.compile(r"[-+−]?(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?:\s*\\?%|/\d+|[eE][-+]?\d{1,3}(?!\d))?")
_LISTED = re.compile(r"[\s,;.]*(?:\b(?:and|or)\b)?[\s,;]*")
_BOLD = re.compile(r"\*\*([^*]+)\*\*")
_SPAN = re.compile(r"\$\$(.+?)\$\$|\$(.+?)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)


def said_answer(reply: str, kind: Kind, *, problem: str = "") -> str | None:
    """What a reply says the answer is, in one spelling, for a key of that kind; None where it says none. A reply that
    is a part of the problem says none.
    """
    reply = reply[-READ_CHARACTERS:].strip()
    if not reply:
        return None
    found = _boxed(reply)
    if found is not None:
        return _bounded(found)
    if problem and len(reply) >= 3 and _flat(reply) in _flat(problem) and kind != "word":
        return None
    tail = reply[-TAIL_CHARACTERS:]
    hashes = _HASHES.findall(tail)
    if hashes:
        return _bounded(hashes[-1])
    phrase = _phrase(tail, kind)
    if phrase is not None:
        return phrase
    if len(reply) <= SHORT and "\n" not in reply:
        whole = _whole(reply, kind)
        if whole is not None:
            return whole
    return _last_number(tail) if kind == "number" else _last_span(tail)


def _boxed(reply: str) -> str | None:
    """What the last boxes say, those before the last only where nothing but separators lies between."""
    found = boxes(reply, MOST_BOXES)
    if not found:
        return None
    said = [found[-1]]
    for box in reversed(found[:-1]):
        between = reply[box[1] : said[0][0]]
        if len(between) > 40 or _BETWEEN_BOXES.fullmatch(between) is None or not between.strip():
            break
        if not re.search(r"[,;=]|and|or", between):
            break
        said.insert(0, box)
    return ", ".join(dict.fromkeys(box[2].strip() for box in said))


def _phrase(tail: str, kind: Kind) -> str | None:
    """What follows the last "the answer is", up to the end of its sentence."""
    for line in reversed(_ANSWER_IS.findall(tail)):
        end = _SENTENCE_END.search(line)
        text = _bounded(line[: end.start()] if end else line)
        if text and len(text) <= SHORT:
            whole = _whole(text, kind)
            if whole is not None:
                return whole
        return None
    return None


def _whole(text: str, kind: Kind) -> str | None:
    """A short text, where it is an answer and not prose."""
    spans = [next(group for group in found if group) for found in _SPAN.findall(text)]
    if spans and re.search(r"[A-Za-z]{3}", _SPAN.sub("", text)) is not None:
        return _last_span(text)
    text = spelled(text)
    prose = re.sub(r"\\(?:text|begin|end)\s*\{[^{}]*\}|\\[A-Za-z]+", " ", text)
    if kind == "word":
        bold = _BOLD.findall(text)
        return bold[0] if len(bold) == 1 else text
    if kind == "number" and plain_number(text) is None and re.search(r"[A-Za-z]{2}", prose) is not None:
        return None
    return text if len(re.findall(r"[A-Za-z]{3,}", prose)) <= 3 else None


def _last_number(tail: str) -> str | None:
    """The last number; with those before it that it is listed with."""
    numbers = list(_NUMBER.finditer(tail))
    if not numbers:
        return None
    begin = end = len(numbers) - 1
    while begin > 0 and _LISTED.fullmatch(tail[numbers[begin - 1].end() : numbers[begin].start()]):
        begin -= 1
    return _bounded(", ".join(found.group().rstrip(",") for found in numbers[begin : end + 1]))


def _last_span(tail: str) -> str | None:
    """What the last dollars hold, with the spans before it that it is listed with."""
    spans = list(_SPAN.finditer(tail))
    if not spans:
        return None
    begin = len(spans) - 1
    while begin > 0:
        between = tail[spans[begin - 1].end() : spans[begin].start()]
        if len(between) > 10 or _LISTED.fullmatch(between) is None or not between.strip():
            break
        begin -= 1
    return _bounded(", ".join(next(group for group in found.groups() if group) for found in spans[begin:]))


def _bounded(text: str) -> str:
    return spelled(text) if len(text) <= LONGEST_ANSWER else text[: LONGEST_ANSWER + 1]


def _flat(text: str) -> str:
    return re.sub(r"\W+", " ", text).casefold().strip()
