"""What a holder of a sandbox that died left half-done in the kernel: waited for, and told from what the kernel keeps.

The kernel answers one request after another, so a question that is answered says that what came before it has ended.
What the cell showed is asked of the kernel itself (`shown.LastCell`), since nobody was there to hear it. A kernel has
a name, so that another in its place does not pass for one that never had the cell.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import Any

from prorl_celery.errors import NoKernel
from prorl_celery.sandbox.base import RecoveredCell
from prorl_celery.sandbox.kernel.channels import LONGEST_CHARACTER, MESSAGE_BYTES, Channels, Message
from prorl_celery.sandbox.kernel.life import KERNEL_SECONDS, KernelLife
from prorl_celery.sandbox.kernel.notes import KernelNotes
from prorl_celery.sandbox.kernel.results import CellOutput
from prorl_celery.sandbox.notes import NOT_RUN, PREPARING, SENT, TIMED_OUT, UNKNOWN
from prorl_celery.sandbox.page import Page

INTERRUPT_SECONDS = 2.0
"""How long a cell may take to end after an interrupt before its kernel is killed."""
GRACE_SECONDS = 1.0
"""For a cell that was overdue when its holder died: it may have ended as well."""
ANSWER_SECONDS = 10.0
"""How long a kernel that is idle may take to say what it keeps."""
KILLED = 128 + signal.SIGKILL


class CellTakeover:
    """Of one sandbox's kernel. `connect` returns when the kernel has answered, or raises `NoKernel` at a deadline;
    `begin_again` ends the kernel and has another started.
    """

    def __init__(
        self,
        life: KernelLife,
        *,
        page: Page,
        notes: KernelNotes,
        output_bytes: int,
        connect: Callable[[float], Channels],
        begin_again: Callable[[], int],
    ) -> None:
        self._life = life
        self._page = page
        self._notes = notes
        self._output_bytes = output_bytes
        self._connect = connect
        self._begin_again = begin_again

    def recover(self, timeout: float) -> tuple[RecoveredCell, Channels | None]:
        """As `Kernel.recover`; with the channels, where it is known that the kernel is at rest."""
        notes, channels = self._notes, None
        self._page.check()
        if notes.state == PREPARING:
            self._note(NOT_RUN, None)
        elif notes.state == SENT:
            channels = self._follow(timeout)
        flags = notes.flags if notes.count and notes.request else NOT_RUN
        if flags & NOT_RUN:
            return self._cell(None, flags), channels
        told = self._told() if notes.kernel_ended is None and not flags & UNKNOWN else {}
        if told.get("request") != notes.request:
            told = {}
        return self._cell(told, flags), channels

    def _follow(self, timeout: float) -> Channels | None:
        """Wait for the end of the cell that was sent, and note it."""
        notes, life = self._notes, self._life
        deadline = time.monotonic() + max(timeout - (notes.seen_at - notes.started_at), GRACE_SECONDS)
        ended = life.begin()
        flags, channels = 0, None
        try:
            life.wait_up(KERNEL_SECONDS)
            if life.name != notes.kernel:
                # It ended with the cell, or before it: then the cell went nowhere.
                self._note(0 if notes.heard else UNKNOWN, KILLED if ended is None else ended)
                return None
            try:
                channels = self._connect(deadline)
            except NoKernel:
                flags = TIMED_OUT
                life.signal(signal.SIGINT)
                channels = self._connect(time.monotonic() + INTERRUPT_SECONDS)
        except NoKernel:
            self._note(flags, self._begin_again())
            return None
        # Two who ask are answered in turn: behind a second answer nothing of the other is left.
        channels.settle(time.monotonic() + ANSWER_SECONDS)
        if self._told().get("request") != notes.request:
            flags = NOT_RUN
        self._note(flags, None)
        return channels

    def _told(self) -> dict[str, Any]:
        if not self._life.has_begun:
            self._life.begin()
            self._life.wait_up(KERNEL_SECONDS)
        if self._life.name != self._notes.kernel:
            return {}
        return self._life.last_cell(ANSWER_SECONDS, MESSAGE_BYTES + 8 * LONGEST_CHARACTER * self._output_bytes)

    def _note(self, flags: int, kernel_ended: int | None) -> None:
        with self._page:
            self._notes.result(flags, kernel_ended, time.monotonic())

    def _cell(self, told: dict[str, Any] | None, flags: int) -> RecoveredCell:
        notes, output = self._notes, CellOutput(self._output_bytes)
        begun = False if flags & NOT_RUN else None if flags & UNKNOWN else True
        if told:
            _show(told, output, notes.request)
        reply = told.get("reply") if told else None
        status = reply.get("status") if isinstance(reply, dict) else None
        timed_out = bool(flags & TIMED_OUT)
        ended = status is not None and not timed_out
        return RecoveredCell(
            output=output.text(),
            ok=ended and status == "ok" and output.error is None,
            duration_s=max(0.0, notes.seen_at - notes.started_at) if begun is not False else 0.0,
            timed_out=timed_out,
            omitted_bytes=output.omitted_bytes,
            kernel_ended=0 if output.asked_to_end else None if begun is False else notes.kernel_ended,
            begun=begun,
            ended=ended or (begun is not False and not timed_out and notes.kernel_ended is not None),
            complete=bool(told) or begun is False,
        )


def _show(told: dict[str, Any], output: CellOutput, request: str) -> None:
    """Show what the kernel keeps of a cell, if that is as it should be."""
    first, end = told.get("first"), told.get("end")
    reply = [("execute_reply", told.get("reply"))]
    for entries in (first, end, reply):
        if entries is end:
            output.skip(told.get("cut"))
        for entry in entries if isinstance(entries, list) else ():
            if isinstance(entry, list | tuple) and len(entry) == 2 and isinstance(entry[1], dict):
                output.take(Message(str(entry[0]), request, foreign=False, content=entry[1], is_reply=False))
