"""An index of our own, in memory: for tests, and for nodes without a network.

Documents are ranked by BM25 (Robertson and Zaragoza 2009, section 3.5, k1 = 1.2, b = 0.75; the inverse document
frequency is ln(1 + (N - n + 0.5) / (n + 0.5)), which is never negative).
"""

from __future__ import annotations

import heapq
import json
import math
import re
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from prorl_celery.errors import SettingsError
from prorl_celery.search.base import QUERY_CHARACTERS, TEXT_CHARACTERS, Cancel, Found

K1, B = 1.2, 0.75
FILE_BYTES = 256 << 20
"""Largest file of documents: it is held in memory by each process that searches, several times over."""
BEFORE_CHARACTERS = 200
"""How much of a long document is shown before the first of the words that were looked for."""

_WORD = re.compile(r"\w+")


class LocalIndex:
    """A `SearchBackend` over documents `{"text": ..., "title": ..., "url": ...}`, of which only the text must be."""

    def __init__(self, documents: Iterable[Mapping[str, Any]]) -> None:
        self._documents: list[tuple[str, str, str]] = []
        self._lengths = array("I")
        postings: dict[str, tuple[array[int], array[int]]] = {}
        for number, document in enumerate(documents):
            title, url, text = (document.get(name, "") for name in ("title", "url", "text"))
            if not (isinstance(title, str) and isinstance(url, str) and isinstance(text, str) and text):
                raise ValueError(f"document {number + 1} needs a text, and its title and url must be text")
            self._documents.append((title, url, text))
            counts = Counter(_words(f"{title}\n{text}"))
            self._lengths.append(counts.total())
            for word, count in counts.items():
                where, how_often = postings.setdefault(word, (array("I"), array("I")))
                where.append(number)
                how_often.append(count)
        self._postings = postings
        self._mean = max(1.0, sum(self._lengths) / max(1, len(self._lengths)))

    @classmethod
    def load(cls, path: Path) -> LocalIndex:
        """Of a file with one document (JSON) a line. Raises `SettingsError` that says what is wrong with it."""
        try:
            if path.stat().st_size > FILE_BYTES:
                raise SettingsError(f"PRORL_SEARCH_INDEX: {path} is larger than {FILE_BYTES} bytes")
            with path.open(encoding="utf-8") as lines:
                return cls(_document(number, line) for number, line in enumerate(lines, 1) if line.strip())
        except (OSError, ValueError) as error:
            if isinstance(error, SettingsError):
                raise
            raise SettingsError(f"PRORL_SEARCH_INDEX: {path}: {error}") from error

    def search(self, query: str, *, most: int, cancel: Cancel, timeout: float) -> list[Found]:
        """Takes milliseconds, so nothing need end it."""
        cancel.raise_if_set()
        words = set(_words(query[:QUERY_CHARACTERS]))
        scores: dict[int, float] = {}
        for word in sorted(words & self._postings.keys()):
            where, how_often = self._postings[word]
            rarity = math.log(1 + (len(self._documents) - len(where) + 0.5) / (len(where) + 0.5))
            for number, count in zip(where, how_often, strict=True):
                longer = 1 - B + B * self._lengths[number] / self._mean
                scores[number] = scores.get(number, 0.0) + rarity * count * (K1 + 1) / (count + K1 * longer)
        best = heapq.nsmallest(most, scores, key=lambda number: (-scores[number], number))
        return [self._found(number, words) for number in best]

    def _found(self, number: int, words: set[str]) -> Found:
        title, url, text = self._documents[number]
        if len(text) > TEXT_CHARACTERS:
            first = next((match.start() for match in _WORD.finditer(text.lower()) if match[0] in words), 0)
            at = max(0, min(first - BEFORE_CHARACTERS, len(text) - TEXT_CHARACTERS))
            text = text[at:]
        return Found.of(title, url, text)


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _document(number: int, line: str) -> Mapping[str, Any]:
    try:
        document = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"line {number} is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise ValueError(f"line {number} is no object")
    return document
