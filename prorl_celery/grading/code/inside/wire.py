"""Messages between the two processes: a head in JSON and parts of bytes."""

from __future__ import annotations

import json
from typing import Any, BinaryIO


def send(to: BinaryIO, head: dict[str, Any], parts: list[bytes]) -> None:
    """Raises `OSError` when nobody reads."""
    line = json.dumps({**head, "parts": [len(part) for part in parts]}).encode()
    to.write(b"%d\n" % len(line) + line)
    for part in parts:
        to.write(part)
    to.flush()


def receive(source: BinaryIO) -> tuple[dict[str, Any], list[bytes]]:
    """Raises `EOFError` when nobody writes any more, `ValueError` for what is no message."""
    size = source.readline(16)
    if not size:
        raise EOFError
    head = json.loads(exactly(source, int(size)))
    return head, [exactly(source, length) for length in head.pop("parts")]


def exactly(source: BinaryIO, count: int) -> bytes:
    """So many bytes. Raises `EOFError`."""
    data = source.read(count)
    if len(data) != count:
        raise EOFError
    return data
