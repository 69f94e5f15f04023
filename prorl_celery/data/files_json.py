"""Rows of JSON: a line each, or the items of one array. UTF-8, with a byte order mark or without; no NaN."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from json import JSONDecodeError
from typing import Any, BinaryIO

from prorl_celery.data.files import LONGEST_ROW_BYTES, UNREADABLE, Bad, Row, unreadable

BLANKS = " \t\n\r"
READ_BYTES = 1 << 20


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no number that JSON knows")


DECODER = json.JSONDecoder(parse_constant=_no_number)


def rows_of_lines(stream: BinaryIO) -> Iterator[Row | Bad]:
    """An object a line; blank lines are passed over, and count."""
    number = 0
    while True:
        number += 1
        where = f"line {number}"
        try:
            line = stream.readline(LONGEST_ROW_BYTES + 1)
            if len(line) > LONGEST_ROW_BYTES:
                while line and not line.endswith(b"\n"):
                    line = stream.readline(READ_BYTES)
                yield Bad(number, where, f"is longer than {LONGEST_ROW_BYTES >> 20} MiB")
                continue
        except UNREADABLE as error:
            yield unreadable(number, where, error)
            return
        if not line:
            return
        text = line.removeprefix(codecs.BOM_UTF8).strip()
        if text:
            yield _row(number, where, text)


def _row(number: int, where: str, text: bytes) -> Row | Bad:
    try:
        value = DECODER.decode(text.decode())
    except UnicodeDecodeError as error:
        return Bad(number, where, f"not UTF-8: byte {error.object[error.start]:#04x} at {error.start + 1}")
    except (ValueError, RecursionError) as error:
        return Bad(number, where, f"not JSON: {error}")
    return _checked(number, where, value)


def _checked(number: int, where: str, value: Any) -> Row | Bad:
    return Row(number, where, value) if isinstance(value, dict) else Bad(number, where, "not a JSON object")


def items_of(stream: BinaryIO) -> Iterator[Row | Bad]:
    """The items of one JSON array, without holding it whole."""
    text = _Text(stream)
    number = 0
    try:
        text.take("[")
        if text.next() == "]":
            text.take("]")
        else:
            while True:
                number += 1
                text.next()
                where = f"item {number} (line {text.line})"
                yield _checked(number, where, text.value())
                if text.next() != ",":
                    text.take("]")
                    break
                text.take(",")
        if text.next():
            raise ValueError("there is more behind the array's end")
    except UnicodeDecodeError as error:
        yield Bad(number, f"line {text.line}", f"not UTF-8: {error.reason}", ends=True)
    except (ValueError, RecursionError) as error:
        said = error.msg if isinstance(error, JSONDecodeError) else error
        yield Bad(number, f"line {text.line}", f"not JSON: {said}", ends=True)
    except UNREADABLE as error:
        yield unreadable(number, f"line {text.line}", error)


class _Text:
    """Text that is read as it is needed; what was taken is forgotten."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self._text, self._at, self._ended = "", 0, False
        self.line = 1

    def next(self) -> str:
        """The next character that is no blank; empty at the end."""
        while True:
            while self._at < len(self._text) and self._text[self._at] in BLANKS:
                self.line += self._text[self._at] == "\n"
                self._at += 1
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def take(self, character: str) -> None:
        """Pass over it. Raises ValueError when it is not the next."""
        found = self.next()
        if found != character:
            raise ValueError(f"{character!r} was expected, and {repr(found) if found else 'the end'} came")
        self._at += 1

    def value(self) -> Any:
        """The JSON value that comes next. Raises `JSONDecodeError`, and ValueError for one that is too long."""
        self.next()
        while True:
            try:
                value, end = DECODER.raw_decode(self._text, self._at)
            except JSONDecodeError:
                if len(self._text) - self._at > LONGEST_ROW_BYTES:
                    raise ValueError(f"an item is longer than {LONGEST_ROW_BYTES >> 20} MiB, or not ended") from None
                if not self._more(len(self._text) - self._at):
                    raise
            else:
                self.line += self._text.count("\n", self._at, end)
                self._at = end
                return value

    def _more(self, least: int = 0) -> bool:
        """Read on: at least `least` bytes, so that an item that is tried again and again is tried a few times only."""
        if self._ended:
            return False
        data = self._stream.read(max(READ_BYTES, least))
        self._ended = not data
        self._text = self._text[self._at :] + self._decoder.decode(data, final=self._ended)
        self._at = 0
        return True
