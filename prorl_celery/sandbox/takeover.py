"""What a holder of a sandbox that died left half-done in the shell, found out from its notes and from the terminal.

A command's line may not have been sent, or in part; the command may run, may be blocked since nobody reads what it
prints, may have ended with its marker unread or half-read; its shell may be being replaced. In every case the rest is
waited for as its holder would have, with what the terminal said to that one heard once more. Nothing is sent twice but
what means the same the second time: an empty line, a probe, an interrupt.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING

from prorl_celery.sandbox.base import Recovered
from prorl_celery.sandbox.markers import SHELL_STARTED, TRACES, Marker, Markers
from prorl_celery.sandbox.notes import (
    ENDED,
    IDLE,
    INCOMPLETE,
    NEW,
    NOT_RUN,
    RESTARTED,
    SENT,
    TIMED_OUT,
    TRACED,
    UNKNOWN,
    ShellNotes,
)
from prorl_celery.sandbox.output import CappedOutput
from prorl_celery.sandbox.page import READ, WRITE, Page
from prorl_celery.sandbox.prompts import ANSWER_SECONDS, TIDY_SECONDS, Prompts
from prorl_celery.sandbox.terminal import AT_ONCE_BYTES, INTERRUPT, Terminal

if TYPE_CHECKING:
    from prorl_celery.sandbox.shell import Run

End = Callable[[bytes, bytes | None, CappedOutput, float], "Run"]
READ_SECONDS = 2.0
"""How long the shell may take to read what stands in its terminal."""
LOOK_SECONDS = 0.002


class Takeover:
    """Of one shell. `end` sees a command that was sent to its end (`PtyShell`)."""

    def __init__(
        self,
        prompts: Prompts,
        terminal: Terminal,
        *,
        nonce: str,
        page: Page,
        notes: ShellNotes,
        output_bytes: int,
        end: End,
    ) -> None:
        self._prompts = prompts
        self._terminal = terminal
        self._markers = Markers(nonce)
        self._page = page
        self._notes = notes
        self._output_bytes = output_bytes
        self._end = end

    def recover(self, timeout: float) -> Recovered:
        """As `Shell.recover`."""
        notes, prompts = self._notes, self._prompts
        self._page.check()
        if notes.state != IDLE:
            was_new = notes.state == NEW
            self._terminal.send(b"")
            prompts.restore(notes.shell)
            if notes.state == SENT:
                self._follow(timeout)
            elif notes.state != ENDED:
                # Nothing was sent yet, or not even a first prompt was seen.
                self._note_result(None, NOT_RUN)
            restarted, prompts.restarted = prompts.restarted, False
            cwd = prompts.settle(max(timeout, TIDY_SECONDS) if was_new else TIDY_SECONDS)
            with self._page:
                self._page.settle(READ | WRITE)
                if restarted or (prompts.restarted and not was_new):
                    notes.flags |= RESTARTED
                notes.idle(prompts.state, cwd)
        return self._recovered()

    def _follow(self, timeout: float) -> None:
        """Wait for the end of a command that was being sent, and note it."""
        notes, terminal, prompts = self._notes, self._terminal, self._prompts
        command_id, before = notes.command_id, notes.shell.ran or None
        # For the time between, nobody read what it printed: it may have had to wait.
        left = timeout - (notes.seen_at - notes.started_at)
        deadline = monotonic() + max(left, ANSWER_SECONDS)
        output = CappedOutput(self._output_bytes)
        prompts.hear_again(*notes.said(of_result=False), output)
        missing = INCOMPLETE if self._page.doubts(READ) else 0
        unsent = notes.line_bytes - notes.sent_bytes
        in_doubt = bool(self._page.doubts(WRITE))
        marker: Marker | None = None
        if in_doubt and unsent == 1:
            # Perhaps it was sent all the same; then this is an empty line behind it.
            terminal.send(b"\n", noted=True)
        elif in_doubt and unsent == notes.line_bytes <= AT_ONCE_BYTES:
            probe = prompts.send(":")
            marker = prompts.wait((command_id, probe), output, deadline)
            if marker is not None and marker.command_id == SHELL_STARTED:
                self._note_result(marker.status, UNKNOWN | missing)
                return
            if marker is not None and probe in (marker.command_id, marker.ran):
                self._note_result(None, NOT_RUN)
                return
        elif unsent:
            if in_doubt or unsent < notes.line_bytes:
                self._clear_line()
            self._note_result(None, NOT_RUN)
            return
        elif missing and (terminal.foreground() == prompts.shell_group or not _exists(prompts.shell_group)):
            # Its marker, or the next shell's first, may have been read and lost. An empty line brings it again.
            terminal.send(b"\n")
        if marker is None:
            output, marker, was_run, timed_out = self._end(command_id, before, output, deadline)
        else:
            was_run, timed_out = marker.command_id != command_id or marker.ran != before, False
        prompts.status = marker.status
        flags = missing + timed_out * TIMED_OUT + (marker.traced and not timed_out) * TRACED
        if not was_run:
            flags |= NOT_RUN
        elif marker.command_id == SHELL_STARTED:
            flags |= UNKNOWN  # it may have ended before it read the line
        self._note_result(None if timed_out else marker.status, flags)

    def _note_result(self, exit_code: int | None, flags: int) -> None:
        with self._page:
            self._notes.result(exit_code, flags, at=monotonic())

    def _clear_line(self) -> None:
        """Have the shell forget the part of a line that it was sent, without its end."""
        self._terminal.discard()
        deadline = monotonic() + READ_SECONDS
        # An interrupt throws away the line that bash is reading, and not what it has read and not looked at yet.
        while self._terminal.unread() or not _sleeps(self._prompts.shell_group):
            if monotonic() > deadline:
                self._prompts.replace()
                return
            sleep(LOOK_SECONDS)  # nothing tells of it
        self._terminal.set_modes()
        self._terminal.send(INTERRUPT)
        if self._prompts.synchronise() is None:
            self._prompts.replace()

    def _recovered(self) -> Recovered:
        """The last result that was noted."""
        notes = self._notes
        flags = notes.flags if notes.count else NOT_RUN
        begun = False if flags & NOT_RUN else None if flags & UNKNOWN else True
        exit_code = None if begun is False else notes.exit_code
        output = CappedOutput(self._output_bytes)
        if begun is not False:
            first, missing, rest = notes.said(of_result=True)
            has_ended = self._hear(first if missing else first + rest, output)
            if missing and not has_ended:
                output.skip(missing)
                self._hear(rest, output)
            for trace in TRACES if flags & TRACED else ():
                output.cut_last_line(trace)
        return Recovered(
            output=output.text(),
            exit_code=exit_code,
            cwd=notes.cwd,
            duration_s=max(0.0, notes.seen_at - notes.started_at) if begun is not False else 0.0,
            timed_out=bool(flags & TIMED_OUT),
            omitted_bytes=output.omitted_bytes,
            shell_restarted=bool(flags & RESTARTED),
            begun=begun,
            ended=exit_code is not None,
            complete=not flags & INCOMPLETE,
        )

    def _hear(self, data: bytes, output: CappedOutput) -> bool:
        """Take what was said until the last command's end; whether that is in it.

        What was read along with the end, or before the result was noted, is another's: of our probe, if that is traced.
        """
        command_id = self._notes.command_id
        marker: Marker | None
        while True:
            marker, data = self._markers.scan(data, output)
            if marker is None:
                return False
            if command_id in (marker.command_id, marker.ran):
                return True


def _exists(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def _sleeps(pid: int) -> bool:
    """Whether a process waits for something; also where that cannot be seen."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] != "R"
