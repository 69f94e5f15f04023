"""Multiple choice.

Choices are a list, whose labels are A, B, C..., or an object of labels and texts; they are shown as they are given. The
key is a label, a choice's text, or a number: the place in the list, counted from 0. A key that could be two of these
and mean different choices is refused.

A reply's answer is a label ("C", "(C)", "C) because", "option C"), or a choice's whole text. Where it names more than
one choice, it is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prorl_celery.errors import BadInstance
from prorl_celery.grading.stem.grade import NO_ANSWER, Grade, wrong
from prorl_celery.grading.stem.latex import plain
from prorl_celery.grading.stem.said import places

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_LABEL = re.compile(r"[A-Za-z0-9]{1,3}")
_MARKED = (
    re.compile(r"[(\[]([A-Za-z0-9]{1,3})[)\]]"),
    re.compile(r"\b(?:options?|choices?|letters?)\s{1,3}([A-Za-z0-9]{1,3})\b", re.IGNORECASE),
    re.compile(r"^([A-Za-z0-9]{1,3})\s?[).:,]"),
    re.compile(r"(?<![\w'])([A-Z])\s?(?:,|/|&|\band\b|\bor\b)\s?([A-Z])(?![\w'])"),
)
"""What marks a label: "(C)", "option C", "C) because ...", and several of them: "A or C"."""
_LONE = re.compile(r"(?<![\w'])(?:[B-HJ-Z](?![\w'])|A(?=[.,;:!]|$))")
"""A capital on its own, where nothing is marked; "A" and "I" are words as well."""
_AROUND = " \t.,;:!*_`\"'"


@dataclass(frozen=True, slots=True)
class Choices:
    """`texts` by label, in the order they are shown; `key` is the right label."""

    texts: Mapping[str, str]
    key: str

    @classmethod
    def of(cls, instance: Mapping[str, Any]) -> Choices:
        """Of `choices` and `answer`. Raises `BadInstance` with `field`."""
        texts = _texts(instance["choices"])
        if instance.get("answer") is None:
            raise BadInstance("the instance has no 'answer'", field="answer")
        return cls(texts, _key(texts, instance["answer"]))

    def shown(self) -> str:
        """The choices as the model reads them, a line each."""
        return "\n".join(f"({label}) {text}" for label, text in self.texts.items())

    def grade(self, reply: str) -> Grade:
        """Whether the reply names the right choice, and no other."""
        for place in places(reply):
            named = self._named(place)
            if len(named) == 1:
                [label] = named
                return (
                    Grade(True, None, label) if label == self.key else wrong(f"it says {label}, not {self.key}", label)
                )
            if named:
                return wrong(f"it names more than one choice: {', '.join(sorted(named))}", place)
        return NO_ANSWER

    def _named(self, place: str) -> set[str]:
        """The labels that this place names."""
        text = plain(place).strip(_AROUND)
        alone = self._label(text.strip("()[] "))
        same = {label for label, choice in self.texts.items() if _same(choice, place) or _same(plain(choice), text)}
        if alone is not None and same <= {alone}:
            return {alone}
        if same:
            return same | ({alone} if alone is not None else set())
        found = {
            self._label(name) for pattern in _MARKED for match in pattern.finditer(text) for name in match.groups()
        }
        if found <= {None}:
            found = {self._label(match[0]) for match in _LONE.finditer(text)}
        return {label for label in found if label is not None}

    def _label(self, text: str) -> str | None:
        return next((label for label in self.texts if label.upper() == text.upper()), None)


def _texts(choices: Any) -> dict[str, str]:
    if isinstance(choices, dict):
        pairs = list(choices.items())
        if not all(_LABEL.fullmatch(label) for label, _ in pairs):
            raise BadInstance("a choice's label is 1 to 3 letters or digits", field="choices")
    elif isinstance(choices, Sequence) and not isinstance(choices, str):
        if len(choices) > len(LETTERS):
            raise BadInstance(f"{len(choices)} choices; {len(LETTERS)} are the most", field="choices")
        pairs = list(zip(LETTERS, choices, strict=False))
    else:
        raise BadInstance(f"'choices' must be list or object, not {type(choices).__name__}", field="choices")
    texts: dict[str, str] = {}
    for label, text in pairs:
        if isinstance(text, bool) or not isinstance(text, str | int | float):
            raise BadInstance("each choice must be a text or a number", field="choices")
        texts[label] = str(text)
    if len(texts) < 2:
        raise BadInstance("there must be two choices or more", field="choices")
    if len({_folded(text) for text in texts.values()}) < len(texts):
        raise BadInstance("two choices are the same", field="choices")
    labels = {label.upper(): label for label in texts}
    if any(labels.get(text.strip().upper(), label) != label for label, text in texts.items()):
        raise BadInstance("a choice's text is another's label", field="choices")
    if len(labels) < len(texts):
        raise BadInstance("two labels differ in case alone", field="choices")
    return texts


def _key(texts: Mapping[str, str], answer: Any) -> str:
    labels = list(texts)
    if isinstance(answer, bool) or not isinstance(answer, str | int | float):
        raise BadInstance("'answer' must be a label, a choice's text, or its place", field="answer")
    meant = {label for label, text in texts.items() if _same(text, str(answer))}
    if isinstance(answer, str):
        meant |= {label for label in labels if label == answer.strip().strip("()")}
    elif isinstance(answer, int) and 0 <= answer < len(labels):
        meant.add(labels[answer])
    if not meant:
        raise BadInstance(f"'answer' is none of the choices: {str(answer)[:80]!r}", field="answer")
    if len(meant) > 1:
        raise BadInstance(f"'answer' may mean {' or '.join(sorted(meant))}", field="answer")
    return meant.pop()


def _folded(text: str) -> str:
    return " ".join(text.split()).casefold()


def _same(choice: str, text: str) -> bool:
    return _folded(choice).strip(_AROUND) == _folded(text).strip(_AROUND) != ""
