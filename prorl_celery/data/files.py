"""Reading files of problems, row by row: JSON lines (also `.gz`, `.zst`), one JSON array, parquet.

Given a path, gives a `Row` for each row and a `Bad` for each that cannot be read, so that all of them can be told at
once. A file is never held whole: a line is at most `LONGEST_ROW_BYTES`, of parquet a few hundred rows are held. What it
is, the name's ending says (`.parquet`, `.gz`, `.zst`), else the first character: `[` begins an array.
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import zstandard

from prorl_celery.errors import SettingsError

LONGEST_ROW_BYTES = 64 << 20
"""The service takes no request that is longer (`PRORL_MAX_BODY`)."""
PIECE_BYTES = 16 << 10
"""Compressed bytes that are unpacked at a time."""
UNREADABLE = (OSError, EOFError, zlib.error, zstandard.ZstdError)
"""What a file that is cut off, damaged, or not what it is called raises."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row: its number from 1 on, where it stands ("line 5", "row 5"), and what it holds."""

    number: int
    where: str
    value: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Bad:
    """A row that will not do. `ends`: nothing behind it can be read, so it cannot be skipped."""

    number: int
    where: str
    message: str
    field: str | None = None
    ends: bool = False

    def __str__(self) -> str:
        return ": ".join(part for part in (self.where, self.field, self.message) if part)


def rows_of(file: Path) -> Iterator[Row | Bad]:
    """The rows of a file. Raises `SettingsError` for one that cannot be opened at all."""
    from prorl_celery.data.files_json import items_of, rows_of_lines
    from prorl_celery.data.files_parquet import rows_of_parquet

    if file.suffix.lower() == ".parquet":
        yield from rows_of_parquet(file)
        return
    with opened(file) as stream:
        try:
            begins_an_array = _first_byte(stream) == b"["
        except UNREADABLE as error:
            yield unreadable(0, "line 1", error)
            return
        yield from items_of(stream) if begins_an_array else rows_of_lines(stream)


def opened(file: Path) -> BinaryIO:
    """The file's bytes, unpacked. Raises `SettingsError`; reading raises one of `UNREADABLE`."""
    try:
        raw = file.open("rb")
    except OSError as error:
        raise SettingsError(f"{file} cannot be read: {error.strerror}") from error
    match file.suffix.lower():
        case ".gz":
            return io.BufferedReader(_Closing(gzip.GzipFile(fileobj=raw), raw), 1 << 17)
        case ".zst":
            return io.BufferedReader(_Unzstd(raw), 1 << 17)
        case _:
            return raw


def unreadable(number: int, where: str, error: Exception) -> Bad:
    """The end of a file that cannot be read on."""
    return Bad(number, where, f"the file cannot be read on: {error or type(error).__name__}", ends=True)


def _first_byte(stream: BinaryIO) -> bytes:
    """The first that is no blank and no byte order mark; the stream stands where it stood."""
    peek: Any = stream
    return bytes(peek.peek(1 << 12)).removeprefix(b"\xef\xbb\xbf").lstrip()[:1]


class _Closing(io.RawIOBase):
    """Bytes of a `GzipFile`, which leaves the file below it open."""

    def __init__(self, inner: gzip.GzipFile, below: BinaryIO) -> None:
        self._inner, self._below = inner, below

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        piece = self._inner.read1(len(buffer))
        buffer[: len(piece)] = piece
        return len(piece)

    def close(self) -> None:
        self._inner.close()
        self._below.close()
        super().close()


class _Unzstd(io.RawIOBase):
    """Zstandard unpacked, frame after frame. One that is cut off is an `EOFError`, and no early end."""

    def __init__(self, raw: BinaryIO) -> None:
        self._raw = raw
        self._frame = zstandard.ZstdDecompressor().decompressobj()
        self._begun = False
        self._out = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._out:
            rest = self._frame.unused_data if self._frame.eof else b""
            piece = rest or self._raw.read(PIECE_BYTES)
            if not piece:
                if self._begun and not self._frame.eof:
                    raise EOFError("it is cut off amid its compressed data")
                return 0
            if self._frame.eof:
                self._frame = zstandard.ZstdDecompressor().decompressobj()
            self._begun = True
            self._out = memoryview(self._frame.decompress(piece))
        given = self._out[: len(buffer)]
        buffer[: len(given)] = given
        self._out = self._out[len(given) :]
        return len(given)

    def close(self) -> None:
        self._raw.close()
        super().close()
