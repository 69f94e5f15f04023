"""What a holder of a sandbox writes on its page (`prorl_celery.sandbox.page`), for whoever takes over after it.

All of it is written between `Page.begin` and `Page.end`. What is a state is written last: whoever dies half-way has
written nothing, or all.
"""

from __future__ import annotations

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
    """Of the shell: its last command, and what the terminal has said since that was sent."""

    def __init__(self, page: Page) -> None:
        super().__init__(page, _SHELL)
        self._stream = Stream(page.memory, NOTES_BYTES)
        self._seen = self._base + 9

    @property
    def state(self) -> int:
        return self._get(1)

    @state.setter
    def state(self, state: int) -> None:
        self._set(1, state)

    @property
    def replacing(self) -> bool:
        """The shell is to be replaced by another, whatever it does."""
        return bool(self._get(2))

    @replacing.setter
    def replacing(self, replacing: bool) -> None:
        self._set(2, int(replacing))

    @property
    def line_bytes(self) -> int:
        """How long the command's line is."""
        return self._get(3)

    @property
    def sent_bytes(self) -> int:
        """How much of it was sent."""
        return self._get(4)

    @sent_bytes.setter
    def sent_bytes(self, count: int) -> None:
        self._set(4, count)

    @property
    def exit_code(self) -> int | None:
        code = self._get(6)
        return None if code == NO_EXIT_CODE else code

    @property
    def flags(self) -> int:
        return self._get(7)

    @flags.setter
    def flags(self, flags: int) -> None:
        self._set(7, flags)

    @property
    def started_at(self) -> float:
        """When the command was sent: of the clock that counts since the machine's boot, for all processes."""
        return self._page.numbers[self._base + 8]

    @property
    def seen_at(self) -> float:
        """When its holder last looked at the terminal; once it has ended, when that was."""
        return self._page.numbers[self._seen]

    @seen_at.setter
    def seen_at(self, at: float) -> None:
        self._page.numbers[self._seen] = at

    @property
    def command_id(self) -> bytes:
        return self._text(13)

    @property
    def shell(self) -> ShellState:
        """What was known of the shell: before the command while that is under way, and after it once it has ended."""
        return ShellState(self._get(10), self._get(11), self._text(17), self._text(33))

    @shell.setter
    def shell(self, state: ShellState) -> None:
        self._set(10, state.status)
        self._set(11, state.group)
        self._set_text(17, state.ran, NAME_BYTES)
        self._set_text(33, state.pid, NAME_BYTES)

    @property
    def cwd(self) -> str:
        """The working directory, as far as was noted."""
        return self._text(_CWD - self._base).decode("utf-8", "replace")

    @cwd.setter
    def cwd(self, cwd: str) -> None:
        self._set_text(_CWD - self._base, cwd.encode("utf-8", "replace"), PATH_BYTES)

    def command(self, command_id: bytes, line_bytes: int, shell: ShellState, *, at: float) -> None:
        """A command is about to be sent."""
        self.state = PREPARING
        self._set(3, line_bytes)
        self._set(4, 0)
        self._set(5, 0)
        self._page.numbers[self._base + 8] = self._page.numbers[self._seen] = at
        self.count += 1
        self._set_text(13, command_id, 24)
        self.shell = shell
        self.state = SENT

    def result(self, exit_code: int | None, flags: int, *, at: float) -> None:
        """How the command went. What the terminal says from now on is none of its output."""
        self._set(6, NO_EXIT_CODE if exit_code is None else exit_code)
        self._set(7, flags)
        self._set(12, self._get(5))
        self.seen_at = at
        self.state = ENDED

    def idle(self, shell: ShellState, cwd: str) -> None:
        """The shell is at its prompt, and tidy."""
        self.shell = shell
        self.cwd = cwd
        self.state = IDLE

    def log(self, data: bytes) -> None:
        """The terminal has said this."""
        said = self._get(5)
        self._stream.add(said, data)
        self._set(5, said + len(data))

    def said(self, *, of_result: bool) -> tuple[bytes, int, bytes]:
        """What the terminal said since the command was sent: the first of it, how many bytes are not kept, the rest.
        `of_result`: until its result was noted.
        """
        said = self._get(5)
        return self._stream.kept(said, min(self._get(12), said) if of_result else said)


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
