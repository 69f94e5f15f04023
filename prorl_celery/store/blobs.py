"""Blobs: how requests, stage outputs and turns are packed for the store.

`pack` takes what msgpack can hold, plus `array('i')` (int32), `array('f')` (float32) and integers of any size, and
gives bytes. `seal` takes bytes that are packed already (JSON) and gives a blob. A blob is one tag byte (plain or
zstd) and the body; bodies over about 1 KiB are compressed where that helps. A blob over its limit is `TooLarge`.
"""

from __future__ import annotations

import json
import sys
import threading
from array import array
from typing import Any

import msgpack  # type: ignore[import-untyped]
import zstandard

from prorl_celery.errors import StoreError, TooLarge

PLAIN, ZSTD = b"\x00", b"\x01"

COMPRESS_FROM_BYTES = 1024
"""Smaller bodies are left alone: the frame would eat the gain."""

LEVEL = 3
"""zstd's own default: a few hundred MB/s on one core."""

INT32, FLOAT32, BIG_INT = 1, 2, 3
"""Extension types of msgpack."""

_SWAP = sys.byteorder != "little"


class _Codecs(threading.local):
    """zstd contexts must not be shared by threads."""

    def __init__(self) -> None:
        self.compress = zstandard.ZstdCompressor(level=LEVEL).compress
        self.decompress = zstandard.ZstdDecompressor().decompress


_codecs = _Codecs()


def seal(body: bytes, *, limit_bytes: int, what: str, job_id: str | None = None) -> bytes:
    """A blob of this body. `what` and the limit stand in the message of `TooLarge`."""
    if len(body) > limit_bytes:
        raise TooLarge(f"{what} is {len(body)} bytes, over the limit of {limit_bytes} bytes", job_id=job_id)
    if len(body) >= COMPRESS_FROM_BYTES:
        small: bytes = _codecs.compress(body)
        if len(small) < len(body):
            return ZSTD + small
    return PLAIN + body


def unseal(blob: bytes) -> bytes:
    """The body of a blob. Raises `StoreError` for bytes that are none."""
    tag = blob[:1]
    if tag == PLAIN:
        return blob[1:]
    if tag != ZSTD:
        raise StoreError(f"not a blob: it starts with {tag!r}")
    try:
        body: bytes = _codecs.decompress(memoryview(blob)[1:])
    except zstandard.ZstdError as error:
        raise StoreError(f"a blob cannot be read: {error}") from error
    return body


def pack(value: Any, *, limit_bytes: int, what: str, job_id: str | None = None) -> bytes:
    """A blob of a value. Raises `TooLarge`; TypeError for what msgpack cannot hold."""
    body: bytes = msgpack.packb(value, default=_to_ext, unicode_errors="surrogatepass")
    return seal(body, limit_bytes=limit_bytes, what=what, job_id=job_id)


def unpack(blob: bytes) -> Any:
    """The value of a blob that `pack` made."""
    return msgpack.unpackb(unseal(blob), ext_hook=_from_ext, strict_map_key=False, unicode_errors="surrogatepass")


def pack_json(value: Any, *, limit_bytes: int, what: str, job_id: str | None = None) -> bytes:
    """A blob of JSON. Raises `TooLarge`; TypeError or ValueError for what is not JSON (NaN is not)."""
    body = json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
    return seal(body, limit_bytes=limit_bytes, what=what, job_id=job_id)


def unpack_json(blob: bytes) -> Any:
    """The value of a blob that `pack_json` made."""
    return json.loads(unseal(blob))


def _to_ext(value: Any) -> msgpack.ExtType:
    if isinstance(value, array) and value.typecode in "if":
        if _SWAP:
            value = array(value.typecode, value)
            value.byteswap()
        return msgpack.ExtType(INT32 if value.typecode == "i" else FLOAT32, value.tobytes())
    if isinstance(value, int):
        return msgpack.ExtType(BIG_INT, hex(value).encode())
    raise TypeError(f"{type(value).__name__} cannot be stored")


def _from_ext(code: int, data: bytes) -> Any:
    if code in (INT32, FLOAT32):
        value = array("i" if code == INT32 else "f")
        value.frombytes(data)
        if _SWAP:
            value.byteswap()
        return value
    if code == BIG_INT:
        return int(data, 16)
    raise StoreError(f"a blob holds an unknown type {code}")
