"""What a holder of a sandbox writes on its page (`prorl_celery.sandbox.page`), for whoever takes over after it.

All of it is written between `Page.begin` and `Page.end`. What is a state is written last: whoever dies half-way has
written nothing, or all.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from prorl_celery.sandbox.page import NOTES_BYTES, Page
from prorl_celery.sandbox.stream import Stream

MARK_BYTES = 100
NAME_BYTES = 120
PATH_BYTES = 4096

_MARK = 32
_SHELL, _FILES = 64, 128
KERNEL = 160
_CWD = 512
"""First words of each part; a text is its length and then its bytes."""

NEW, IDLE, PREPARING, SENT, ENDED = range(5)
"""States of a shell: no prompt seen yet; at its prompt; a command is about to be noted; it is being sent, or runs; how
it ended is noted, and the shell has to be tidied. And of a kernel: IDLE, SENT."""
_COMMAND, _COMMAND_AT = struct.Struct("=QQQddQQ"), 8 * (_SHELL + 3)
_NAMES, _NAMES_AT = struct.Struct("=24s32s"), 8 * (_SHELL + 13)
_RAN, _RAN_AT = struct.Struct("=32s"), 8 * (_SHELL + 16)
TIMED_OUT, RESTARTED, TRACED, NOT_RUN, INCOMPLETE, UNKNOWN = 1, 2, 4, 8, 16, 32
"""Of a result: the command was stopped; its shell ended; the last lines of the output are bash's; it was not run; not
all of the output is there; whether it was run is not known."""
NO_EXIT_CODE = 1 << 32


class ShellState(NamedTuple):
    """What a holder knows of the shell: `$?`, its process group, the command that it began last, its pid inside."""

    status: int
    group: int
    ran: bytes
    pid: bytes


class _Notes:
    """One part of a page."""

    def __init__(self, page: Page, base: int) -> None:
        self._page = page
        self._base: Final = base

    def _get(self, index: int) -> int:
        return self._page.words[self._base + index]

    def _set(self, index: int, value: int) -> None:
        self._page.words[self._base + index] = value

    def _text(self, index: int) -> bytes:
        at = 8 * (self._base + index)
        length = min(self._get(index), PATH_BYTES)
        return self._page.memory[at + 8 : at + 8 + length]

    def _set_text(self, index: int, text: bytes, most: int) -> None:
        at = 8 * (self._base + index)
        text = text[:most]
        self._page.memory[at + 8 : at + 8 + len(text)] = text
        self._set(index, len(text))


class Mark(_Notes):
    """What the sandbox is used for at the moment, as its holder says."""

    def __init__(self, page: Page) -> None:
        super().__init__(page, _MARK)

    @property
    def name(self) -> str:
        return self._text(0).decode("utf-8", "replace")

    def change(self, name: str, *parts: Counted) -> None:
        """What is done from now on is done under another name: nothing yet, as all parts say."""
        self._set(0, 0)
        for part in parts:
            part.count = 0
        self._set_text(0, name.encode(), MARK_BYTES)


class Counted(_Notes):
    """A part that says how much was done under the present mark."""

    @property
    def count(self) -> int:
        """How many were begun since the mark."""
        return self._get(0)

    @count.setter
    def count(self, value: int) -> None:
        self._set(0, value)


class ShellNotes(Counted):
    """Of the shell: its last command, and what the terminal has said since that was sent.

    Written for every command: so in few steps, with names and paths only where they have changed.
    """

    def __init__(self, page: Page) -> None:
        super().__init__(page, _SHELL)
        self._stream = Stream(page.memory, NOTES_BYTES)
        self._words = page.words[_SHELL:]
        self._numbers = page.numbers[_SHELL:]
        self._pid, self._cwd = b"", ""
        """As noted last."""

    def close(self) -> None:
        """Let go of the page."""
        self._words.release()
        self._numbers.release()

    @property
    def state(self) -> int:
        return self._words[1]

    @property
    def replacing(self) -> bool:
        """The shell is to be replaced by another, whatever it does."""
        return bool(self._words[2])

    @replacing.setter
    def replacing(self, replacing: bool) -> None:
        self._words[2] = replacing

    @property
    def line_bytes(self) -> int:
        """How long the command's line is."""
        return self._words[3]

    @property
    def sent_bytes(self) -> int:
        """How much of it was sent."""
        return self._words[4]

    @property
    def exit_code(self) -> int | None:
        code = self._words[10]
        return None if code == NO_EXIT_CODE else code

    @property
    def flags(self) -> int:
        return self._words[11]

    @flags.setter
    def flags(self, flags: int) -> None:
        self._words[11] = flags

    @property
    def started_at(self) -> float:
        """When the command was sent: of the clock that counts since the machine's boot, for all processes."""
        return self._numbers[6]

    @property
    def seen_at(self) -> float:
        """When its holder last looked at the terminal; once it has ended, when that was."""
        return self._numbers[7]

    @seen_at.setter
    def seen_at(self, at: float) -> None:
        self._numbers[7] = at

    @property
    def command_id(self) -> bytes:
        return self._get_short(13, 3)

    @property
    def shell(self) -> ShellState:
        """What was known of the shell: before the command while that is under way, and after it once it has ended."""
        return ShellState(self._words[8], self._words[9], self._get_short(16, 4), self._text(20))

    @property
    def cwd(self) -> str:
        """The working directory, as far as was noted."""
        return self._text(_CWD - _SHELL).decode("utf-8", "replace")

    def command(self, command_id: bytes, line_bytes: int, shell: ShellState, *, at: float) -> None:
        """A command is about to be sent."""
        words = self._words
        words[1] = PREPARING
        words[0] += 1
        _COMMAND.pack_into(self._page.memory, _COMMAND_AT, line_bytes, 0, 0, at, at, shell.status, shell.group)
        _NAMES.pack_into(self._page.memory, _NAMES_AT, command_id, shell.ran)
        if shell.pid != self._pid:
            self._note_pid(shell.pid)
        words[1] = SENT

    def sent(self, count: int) -> None:
        """So much more of it was sent."""
        self._words[4] += count

    def result(self, exit_code: int | None, flags: int, *, at: float) -> None:
        """How the command went. What the terminal says from now on is none of its output."""
        words = self._words
        words[10] = NO_EXIT_CODE if exit_code is None else exit_code
        words[11] = flags
        words[12] = words[5]
        self._numbers[7] = at
        words[1] = ENDED

    def idle(self, shell: ShellState, cwd: str) -> None:
        """The shell is at its prompt, and tidy."""
        words = self._words
        words[8], words[9] = shell.status, shell.group
        _RAN.pack_into(self._page.memory, _RAN_AT, shell.ran)
        if shell.pid != self._pid:
            self._note_pid(shell.pid)
        if cwd != self._cwd:
            self._cwd = cwd
            self._set_text(_CWD - _SHELL, cwd.encode("utf-8", "replace"), PATH_BYTES)
        words[1] = IDLE

    def log(self, data: bytes, at: float) -> None:
        """The terminal has said this."""
        words = self._words
        said = words[5]
        self._stream.add(said, data)
        words[5] = said + len(data)
        self._numbers[7] = at

    def said(self, *, of_result: bool) -> tuple[bytes, int, bytes]:
        """What the terminal said since the command was sent: the first of it, how many bytes are not kept, the rest.
        `of_result`: until its result was noted.
        """
        said = self._words[5]
        return self._stream.kept(said, min(self._words[12], said) if of_result else said)

    def _note_pid(self, pid: bytes) -> None:
        self._pid = pid
        self._set_text(20, pid, NAME_BYTES)

    def _get_short(self, index: int, words: int) -> bytes:
        at = 8 * (_SHELL + index)
        return self._page.memory[at : at + 8 * words].rstrip(b"\0")


class FileNotes(Counted):
    """Of the control channel: the request under way, and the last write."""

    def __init__(self, page: Page) -> None:
        super().__init__(page, _FILES)

    @property
    def under_way(self) -> bool:
        """A request was being sent, or its answer had not been read to its end."""
        return bool(self._get(1))

    @under_way.setter
    def under_way(self, under_way: bool) -> None:
        self._set(1, int(under_way))

    @property
    def unsent(self) -> int:
        """Bytes of it that may not have been sent."""
        return self._get(2)

    @unsent.setter
    def unsent(self, count: int) -> None:
        self._set(2, count)

    @property
    def write_id(self) -> str:
        """The request of the last write."""
        return self._text(4).decode("ascii", "replace")

    def request(self, unsent: int, write_id: str | None) -> None:
        """A request of so many bytes is about to be sent; a write, if it has this id."""
        self.unsent = unsent
        self.under_way = True
        if write_id is not None:
            self._set_text(4, write_id.encode(), NAME_BYTES)
            self.count += 1
