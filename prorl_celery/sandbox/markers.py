"""How a command is sent to the agent's shell, and how its end is known: this side's half of `shellrc.sh`.

A command is one line, `eval $'...'` with every awkward byte escaped, so that quotes left open, here-documents and
newlines are eval's business and never leave the terminal at a continuation prompt. Its standard input is empty. Its
end is a marker in what the terminal says, which carries a nonce of the sandbox and the id of the command. It also says
when the shell was through with the line but never ran the command: `eval` is a function of the agent's by now, or no
descriptor was to be had for the command's input.
"""

from __future__ import annotations

from typing import NamedTuple

from prorl_celery.sandbox.output import CappedOutput, as_text

SHELL_STARTED = b"shell"
"""The id in a new shell's first marker; its status is that of the shell before it."""
MARKER_BYTES = 8 << 10
"""Longest marker: a path and some digits."""


class Ended(NamedTuple):
    """A marker: which command ended (or that a new shell stands), its exit code, the working directory."""

    command_id: bytes
    status: int
    cwd: str
    was_run: bool
    by_prompt: bool
    """The marker is the prompt, since the line was given up: what the line does at its end is still to be done."""


class Markers:
    """Finds the markers of one sandbox."""

    def __init__(self, nonce: str) -> None:
        self._opening = b"\x02" + nonce.encode() + b":"
        self._closing = b"\x03" + nonce.encode() + b"\x04"

    def scan(self, data: bytes, wanted: tuple[bytes, ...], output: CappedOutput) -> tuple[Ended | None, bytes]:
        """Move what is plain output to `output`; return the first marker of a wanted id, and what is left to look at.

        Markers of other ids are of commands for which nobody waits any more: they are dropped.
        """
        while True:
            start = data.find(self._opening)
            if start < 0:
                start = self._may_begin(data)
                output.add(data[:start])  # most often all of it, and then the same object
                return None, data[start:]
            end = data.find(self._closing, start)
            if end < 0:
                if len(data) - start > MARKER_BYTES:  # no marker of ours is that long
                    start += 1
                    output.add(data[:start])
                    data = data[start:]
                    continue
                output.add(data[:start])
                return None, data[start:]
            # A command may print what looks like the start of a marker; the marker is what stands before its end.
            start = data.rfind(self._opening, start, end)
            if start:
                output.add(data[:start])
            parts = data[start + len(self._opening) : end].split(b":", 3)
            data = data[end + len(self._closing) :]
            if len(parts) == 4 and parts[0].removesuffix(b"-") in wanted:
                return _ended(*parts), data

    def _may_begin(self, data: bytes) -> int:
        """Where a marker may have begun at the very end of `data`; the end when none has."""
        start = data.rfind(b"\x02", max(0, len(data) - len(self._opening) + 1))
        return start if start >= 0 and self._opening.startswith(data[start:]) else len(data)


def _ended(name: bytes, ran: bytes, status: bytes, cwd: bytes) -> Ended:
    command_id = name.removesuffix(b"-")
    return Ended(
        command_id,
        int(status) if status.isdigit() else 0,
        as_text(cwd),
        was_run=name == command_id and ran != command_id + b"-",
        by_prompt=not ran and command_id != SHELL_STARTED,
    )


def command_line(command: str, command_id: bytes, *, status: int, mend: bool) -> bytes:
    """The line that runs a command.

    `status` is what `$?` is at first: the exit code of the command before. `mend` makes good first what that one may
    have done to the shell, when the end of its line was not reached.
    """
    first = b"__prorl_mend;" if mend else b""
    was = b";__prorl_was %d&&:" % status if status else b""
    run = b"\\eval $'__prorl_id=%b%b\\012%b' <&247" % (command_id, was, quote_command(command))
    end = b'{ __prorl_end "$?" %b;} 2>&247;[[ -t 2 ]]||__prorl_mend' % command_id
    return b"%b__prorl_id=%b-;%b;%b\n" % (first, command_id, run, end)


_ESCAPES = {byte: f"\\{byte:03o}".encode() for byte in (ord("\\"), *range(32), 127, *b"'!")}
_PLAIN = bytes(byte for byte in range(256) if byte not in _ESCAPES)


def quote_command(command: str) -> bytes:
    """The inside of bash's `$'...'`: control characters, quotes, backslashes and `!` as octal escapes."""
    raw = command.encode("utf-8", "surrogateescape")
    awkward = raw.translate(None, _PLAIN)
    if awkward:
        for byte, escape in _ESCAPES.items():  # the backslash is the first
            if byte in awkward:
                raw = raw.replace(bytes((byte,)), escape)
    return raw
