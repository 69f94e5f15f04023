"""A slice of cases as it goes into a sandbox, and what comes back: one run of the program that is in `inside`.

The answers are a file that the solution's processes could change. Each frame is signed with a key that only this side
and a process inside know into which nobody can look, and for its place; what is not signed so was never said.
"""

from __future__ import annotations

import hmac
import io
import secrets
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from prorl_celery.errors import EvalError
from prorl_celery.grading.code.inside.answers import BAD, BEGAN, BEGUN, OVER, SIGNATURE_BYTES, signed
from prorl_celery.grading.code.inside.wire import receive, send
from prorl_celery.sandbox.base import Sandbox

ANSWERS_BYTES = 32 << 20
"""Most that is read of what a slice says: its bytes, the largest output behind them, and some."""


@dataclass(frozen=True, slots=True)
class Frame:
    """What was said of one case: the runner's fields, and bytes."""

    number: int
    head: Mapping[str, Any]
    parts: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Spoken:
    """What came of a slice: the frames of its cases, in order, as far as they go."""

    frames: list[Frame] = field(default_factory=list)
    unfit: str | None = None
    """The source is no program, and this is why."""
    over: bool = False
    """The slice came to its end. Else something put an end to it: whose frame is missing has done that."""
    clear: bool = False
    """Nothing that the solution started or wrote is left."""


def run_slice(
    sandbox: Sandbox,
    what: Literal["answers", "functions"],
    head: Mapping[str, Any],
    parts: Iterable[bytes],
    *,
    seconds: float,
) -> Spoken:
    """Run a slice to its end, or to its time-out (`seconds`).

    Raises: `EvalError` when no case began, by no fault of the solution; as `Shell.run`.
    """
    work = sandbox.handle.workdir
    name = f"{work}/{secrets.token_hex(8)}"
    key = secrets.token_bytes(32)
    slice_bytes = io.BytesIO()
    send(slice_bytes, {**head, "key": key.hex()}, list(parts))
    try:
        sandbox.files.write(f"{name}.zip", archive())
        sandbox.files.write(f"{name}.slice", slice_bytes.getvalue())
    except OSError as error:
        raise EvalError(f"the tests could not be brought into the sandbox: {error.strerror or error}") from error
    command = f"python3 -I {name}.zip {what} {name}.slice {name}.answers"
    ran = sandbox.shell.run(command, timeout=seconds)
    try:
        said = sandbox.files.read(f"{name}.answers", limit_bytes=ANSWERS_BYTES)
    except OSError:
        said = b""
    spoken = understood(said, key)
    if spoken is None:
        if BEGUN not in ran.output:
            why = f"the hidden tests could not be run (exit code {ran.exit_code})"
            raise EvalError(f"{why}: {ran.output[-2000:]}")
        return Spoken()  # it had begun, and has spoilt the frame that said so
    return spoken


def understood(said: bytes, key: bytes) -> Spoken | None:
    """The frames of a file, up to the first that is not signed with the key for its place; None when no case had begun.

    Raises: `EvalError` where one says that the tests are wrong.
    """
    frames: list[Frame] = []
    began, over, clear, unfit = False, False, False, None
    at, before = 0, b""
    while not over:
        line_end = said.find(b"\n", at, at + 16)
        if line_end < 0 or not said[at:line_end].isdigit():
            break
        start = line_end + 1 + SIGNATURE_BYTES
        at = start + int(said[at:line_end])
        data = said[start:at]
        before = signed(data, before, key)
        if not hmac.compare_digest(before, said[line_end + 1 : start]):
            break
        head, parts = receive(io.BytesIO(data))
        number = head.pop("number")
        if number == BAD:
            raise EvalError(f"the hidden tests could not be run: {head['why']}")
        if number == BEGAN:
            began, unfit = True, head.get("unfit")
        elif number == OVER:
            over, clear = True, head["clear"]
        else:
            frames.append(Frame(number, head, tuple(parts)))
    return Spoken(frames, unfit, over, clear) if began else None


@cache
def archive() -> bytes:
    """`inside`, as one file that Python runs."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_STORED) as file:
        file.writestr("__main__.py", "from inside.entry import main\n\nmain()\n")
        for source in sorted(files("prorl_celery.grading.code.inside").iterdir(), key=lambda path: path.name):
            if source.name.endswith(".py"):
                file.writestr(f"inside/{source.name}", source.read_bytes())
    return packed.getvalue()
