"""The process that holds what a solution must not know: the cases to come, and the key that signs what came of them.

    python3 -I CODE.zip answers SLICE ANSWERS

SLICE is a message (`wire`): the key, the program, its limits, the cases. ANSWERS becomes a list of frames, one for each
case, between one that says that the cases began and one that says how many there were and whether all is as it was
before. Each is signed together with the signature before it: a solution may copy frames of the file, but one that was
copied, moved or left out is not signed for its place. Nothing of the same user can look into this process. What can end
or stop it spoils its answers, but cannot write others.
"""

from __future__ import annotations

import os
import select
import sys
import time
from hashlib import blake2b
from typing import Any, BinaryIO

from . import cases, kernel
from .wire import receive, send

BEGAN, OVER, BAD = -1, -2, -3
"""Numbers of the frames that are no case's; the last says that the tests are wrong, or the machine too busy."""
SIGNATURE_BYTES = 32
BEGUN = "the cases begin"
NOT_BEGUN = 99
"""Exit code when no case could begin, by no fault of the solution: nothing is said of it then."""
PREPARE_SECONDS = 150.0
SPARE_SECONDS = 15.0
"""What a case may take beyond its limits, for its start and its end."""
ENDING_SECONDS = 10.0
LOOK_SECONDS = 1.0


class Answers:
    """The file that the other side reads."""

    def __init__(self, path: str) -> None:
        self._file = open(path, "wb")
        self._key = b""
        self._before = b""
        self.written = 0

    def sign_with(self, key: bytes) -> None:
        self._key = key

    def begin(self) -> None:
        """Say that the solution is about to run, here and on the terminal, where it cannot be unsaid."""
        self.write(BEGAN, {})
        sys.stdout.write(BEGUN + "\n")
        sys.stdout.flush()

    def write(self, number: int, head: dict[str, Any], *parts: bytes) -> None:
        body = _Body()
        send(body, {**head, "number": number}, list(parts))  # type: ignore[arg-type]
        data = b"".join(body.pieces)
        signature = self._before = signed(data, self._before, self._key)
        self._file.write(b"%d\n" % len(data) + signature + data)
        self._file.flush()
        self.written += len(data)

    def close(self) -> None:
        self._file.close()


def signed(data: bytes, before: bytes, key: bytes) -> bytes:
    """The signature of a frame behind the one whose signature is `before`; nothing is before the first."""
    return blake2b(before + data, key=key, digest_size=SIGNATURE_BYTES).digest()


class _Body:
    """What `send` writes to."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.pieces.append(data)

    def flush(self) -> None:
        """All is there already."""


def main(slice_path: str, answers_path: str) -> int:
    """Run the cases of a slice until its seconds or bytes are over, or one fails and none after it is asked for."""
    kernel.hide()
    kernel.inherit_orphans()
    try:
        answers = Answers(answers_path)
        there = Cases(os.path.dirname(slice_path))
        with open(slice_path, "rb") as file:
            head, parts = receive(file)
        os.unlink(slice_path)
        answers.sign_with(bytes.fromhex(head.pop("key")))
    except (OSError, ValueError, EOFError, KeyError) as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return NOT_BEGUN
    answers.begin()
    until = time.monotonic() + head["seconds"]
    within = head["limits"]["wall_seconds"] + SPARE_SECONDS
    source = parts.pop(0)
    done = 0
    said = there.ask(
        {name: head[name] for name in ("limits", "language", "entry", "crash_code")}, [source], PREPARE_SECONDS
    )
    if said is not None and "starved" in said[0]:
        answers.write(BAD, {"why": said[0]["starved"]})
        return NOT_BEGUN
    clear = True
    if said is None or "unfit" in said[0]:
        unfit = "its compilation ended the judge's process" if said is None else said[0]["unfit"]
        answers.write(BEGAN, {"unfit": unfit})
        clear = False
    while clear and done < len(head["cases"]) and time.monotonic() < until and answers.written < head["bytes"]:
        names = head["cases"][done]
        mine = [parts.pop(0) for _ in range(1 + len(names))]
        said = there.ask({"files": names, "arguments": head["arguments"]}, mine, within)
        if said is None:
            break
        result, (errors, output) = said
        clear = result["clear"]
        answers.write(head["first"] + done, result, errors, output)
        done += 1
        if head["stop"] and (result["kind"] or result["code"]):
            break
    there.close()
    gone, _ = kernel.end_all(ENDING_SECONDS)
    if said is not None:
        answers.write(OVER, {"done": done, "clear": clear and gone})
    answers.close()
    return 0


class Cases:
    """The process that runs the cases, forked before any secret is read."""

    def __init__(self, work: str) -> None:
        theirs, requests = os.pipe()
        replies, mine = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(requests)
            os.close(replies)
            status = 1
            try:
                cases.serve(os.fdopen(theirs, "rb"), os.fdopen(mine, "wb"), work)
                status = 0
            finally:
                os._exit(status)
        os.close(theirs)
        os.close(mine)
        self._requests: BinaryIO = os.fdopen(requests, "wb")
        self._replies: BinaryIO = os.fdopen(replies, "rb")

    def ask(self, head: dict[str, Any], parts: list[bytes], within: float) -> tuple[dict[str, Any], list[bytes]] | None:
        """What it says; None when it has ended, or says nothing for so long that it must have been stopped."""
        try:
            send(self._requests, head, parts)
            until = time.monotonic() + within
            while not select.select([self._replies], [], [], LOOK_SECONDS)[0]:
                if time.monotonic() > until or kernel.is_stopped(self._pid):
                    return None
            return receive(self._replies)
        except (OSError, EOFError):
            return None

    def close(self) -> None:
        """Ask it to end. What does not is ended with the rest."""
        try:
            self._requests.close()
        except OSError:
            pass
