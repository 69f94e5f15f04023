"""How a command is sent to the agent's shell, and how its end is known: this side's half of `shellrc.sh`.

A command is one line, `eval $'...'` with every awkward byte escaped, so that quotes left open, here-documents and
newlines are eval's business and never leave the terminal at a continuation prompt. Its standard input is empty. Its
end is a marker in what the terminal says: the prompt, which carries a nonce of the sandbox and the id of the command.
"""

from __future__ import annotations

from typing import NamedTuple

from prorl_celery.sandbox.output import CappedOutput, as_text

SHELL_STARTED = b"shell"
"""The id in a new shell's first marker; its status is that of the shell before it."""
SHELL_ENDED = b"ended"
"""The id in what is said between two shells."""
MARKER_BYTES = 8 << 10
"""Longest marker: a path and some digits."""
CODE_DIGITS = 3
TRACES = (b"PROMPT_COMMAND=()", b"PS1=''")
UNEXPANDED = b"$__p_id"
QUOTE = b"\\047"
MANY_QUOTES = 1000
"""With more single quotes in it, a command goes by way of a variable: in `$'...'` bash takes time by their square."""
TROUBLE = b"evx"
"""Options of bash that would end the shell, or have it talk about our own lines."""


class Marker(NamedTuple):
    """A prompt of the agent's shell."""

    command_id: bytes
    """The command whose line was gone through last; of a new shell `SHELL_STARTED`."""
    ran: bytes
    """The command that was begun last; another if there was no descriptor for its input, or `eval` is not what it was.
    Of a new shell its pid.
    """
    status: int
    """Exit code of the last line that was gone through."""
    now: int
    """Exit code of what the shell did last: of the command, if its line was given up; else of our half of the line."""
    flags: bytes
    cwd: str

    @property
    def untidy(self) -> bool:
        """What the command did to the shell would disturb the commands to come."""
        return self.now != 0 or self.flags.translate(None, TROUBLE) != self.flags

    @property
    def traced(self) -> bool:
        """The shell has talked about our half of the line (`set -x`): the last lines are `TRACES`."""
        return b"x" in self.flags


class Markers:
    """Finds the markers of one sandbox."""

    def __init__(self, nonce: str) -> None:
        self._opening = b"\x02" + nonce.encode() + b":"
        self._closing = b"\x03" + nonce.encode() + b"\x04"

    def scan(self, data: bytes, output: CappedOutput) -> tuple[Marker | None, bytes]:
        """Move what is plain output to `output`; return the first marker, and what is left to look at."""
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
            parts = data[start + len(self._opening) : end].split(b":", 5)
            data = data[end + len(self._closing) :]
            # The prompt's text itself, printed by `set -x` or by the agent, is no prompt.
            if len(parts) == 6 and parts[2] != UNEXPANDED:
                status, command_id, ran, now, flags, cwd = parts
                return Marker(command_id, ran, _code(status), _code(now), flags, as_text(cwd)), data

    def _may_begin(self, data: bytes) -> int:
        """Where a marker may have begun at the very end of `data`; the end when none has."""
        start = data.rfind(b"\x02", max(0, len(data) - len(self._opening) + 1))
        return start if start >= 0 and self._opening.startswith(data[start:]) else len(data)


def _code(digits: bytes) -> int:
    """An exit code; 0 for what is none: whoever has the shell can print what looks like a marker."""
    return int(digits) if digits.isdigit() and len(digits) <= CODE_DIGITS else 0


def command_line(command: str, command_id: bytes, *, status: int, tidy: bool) -> bytes:
    """The line that runs a command.

    `status` is what `$?` is at first: the exit code of the command before. `tidy` puts right first what that one may
    have done to the shell.
    """
    first = b"{ __p_tidy;} 2>/dev/null;" if tidy else b""
    was = b";__p_was %d&&:" % status if status else b""
    text, last = quote_command(command), b""
    if text.count(QUOTE) > MANY_QUOTES:
        first += b"\\builtin printf -v __p_text %%b '%b';" % text.replace(b"\\", b"\\0")
        text, last = b"'\"$__p_text\"'", b";__p_text="
    return b"%b\\eval $'__p_id=%b%b\\012%b' <&247 >&2 2>&1;PS1=$__p_a$?:%b$__p_z PROMPT_COMMAND=()%b\n" % (
        first, command_id, was, text, command_id, last,
    )  # fmt: skip


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
