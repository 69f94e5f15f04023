"""Cells run in a sandbox's kernel by the process that works on the job: sent, watched, interrupted, ended.

Everything waits in one poll: for output, the answer, the kernel's end, the job's cancel, and the deadline. A cell past
its time-out is interrupted; if that does not end it, the kernel is killed and another started in its place. So is one
that ended by itself. The next is up long before a model has read what happened to the last.
"""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass
from enum import Enum

from prorl_celery.errors import NoKernel
from prorl_celery.sandbox.base import CancelSignal, CellResult, RecoveredCell
from prorl_celery.sandbox.kernel.channels import MESSAGES, Channels
from prorl_celery.sandbox.kernel.life import KERNEL_SECONDS, KernelLife
from prorl_celery.sandbox.kernel.notes import KernelNotes
from prorl_celery.sandbox.kernel.results import CellOutput
from prorl_celery.sandbox.kernel.takeover import INTERRUPT_SECONDS, CellTakeover
from prorl_celery.sandbox.notes import NOT_RUN, SENT, TIMED_OUT
from prorl_celery.sandbox.page import Page

IDLE_SECONDS = 5.0
"""How long the end of a cell's output is waited for once its answer is there; it comes within a millisecond, unless
the kernel had to drop it."""
SEEN_SECONDS = 5.0
"""How often it is noted for a successor that somebody waits."""
LAST_OUTPUT_SECONDS = 0.05
"""How long what a dead kernel sent may take to arrive."""
SUBSCRIBED_SECONDS = 0.2
TRIES = 3
KILLED = 128 + signal.SIGKILL


@dataclass(slots=True)
class _Cell:
    """A cell that was sent: what has come of it."""

    request: str
    output: CellOutput
    answered: bool = False
    idle: bool = False


class _End(Enum):
    DONE = 1
    UNHEARD = 2
    """It ended, but its output did not: the kernel dropped some, or can no longer send it."""
    TIMED_OUT = 3
    DIED = 4


class SandboxKernel:
    """`Kernel` over two sockets of the sandbox (O_PATH descriptors, which stay the caller's) and its life."""

    def __init__(
        self,
        sockets: tuple[int, int],
        *,
        life: KernelLife,
        key: str,
        cancel: CancelSignal,
        output_bytes: int,
        page: Page,
        notes: KernelNotes,
    ) -> None:
        self._page = page
        self._notes = notes
        self._takeover = CellTakeover(
            life,
            page=page,
            notes=notes,
            output_bytes=output_bytes,
            connect=self._connected,
            begin_again=self._begin_again,
        )
        self._is_mine = notes.state != SENT
        """No cell is under way that another has sent."""
        self._shell, self._iopub = sockets
        self._key = key.encode()
        self._cancel = cancel
        self._output_bytes = output_bytes
        self._life = life
        self._channels: Channels | None = None
        self._ended: int | None = None
        """How the kernel before this one ended, until somebody was told."""

    def open(self) -> None:
        """Connect to the kernel, starting one where there is none; not to one that may be busy with another's cell.

        Raises as `Kernel.restart`.
        """
        if self._is_mine:
            self._begin()
            self._ready()

    def run(self, code: str, *, timeout: float) -> CellResult:
        """Run one cell to its end or its time-out (seconds). Raises as `Kernel.run`."""
        self._cancel.raise_if_set()
        if not self._is_mine:
            self.recover(timeout=timeout)
        began = time.monotonic()
        self._is_mine = False
        try:
            channels, request = self._sent(code)
        except NoKernel as error:
            with self._page:
                self._notes.result(NOT_RUN, None, time.monotonic())
            self._is_mine = True
            # There was one, so it is the agent's doing: processes without number, a Python that it spoilt.
            return CellResult(output="", ok=False, duration_s=time.monotonic() - began, no_kernel=str(error))
        lost, self._ended = self._ended, None
        started = time.monotonic()
        output = CellOutput(self._output_bytes)
        cell = _Cell(request, output)
        end = self._follow(channels, cell, started + timeout)
        timed_out = end is _End.TIMED_OUT
        if timed_out:
            self._life.signal(signal.SIGINT)
            end = self._follow(channels, cell, time.monotonic() + INTERRUPT_SECONDS)
        if end is _End.UNHEARD:
            output.note("[some output was lost]")
            self._disconnect()
        ended = None
        if end in (_End.DIED, _End.TIMED_OUT) or output.asked_to_end:
            ended = self._begin_again()
            self._ended = None
        if output.asked_to_end:
            ended = 0
        with self._page:
            self._notes.result(timed_out * TIMED_OUT, ended, time.monotonic())
        self._is_mine = True
        return CellResult(
            output=output.text(),
            ok=end in (_End.DONE, _End.UNHEARD) and not timed_out and output.error is None,
            duration_s=time.monotonic() - started,
            timed_out=timed_out,
            omitted_bytes=output.omitted_bytes,
            kernel_ended=ended,
            kernel_lost=lost,
        )

    def _sent(self, code: str) -> tuple[Channels, str]:
        """Send a cell, to another kernel where this one has ended meanwhile or cannot be reached."""
        if self._channels is not None and self._life.has_ended:
            self._begin_again()
        channels = self._ready()
        try:
            return channels, channels.execute(code, self._note)
        except NoKernel:
            self._begin_again()
        channels = self._ready()
        return channels, channels.execute(code, self._note)

    def _note(self, request: str) -> None:
        """A cell is about to be sent."""
        self._notes.cell(request, self._life.name, time.monotonic())

    def recover(self, *, timeout: float) -> RecoveredCell:
        """As `Kernel.recover`."""
        self._cancel.raise_if_set()
        if not self._is_mine:
            self._disconnect()
        recovered, channels = self._takeover.recover(timeout)
        if channels is not None:
            self._channels = channels
        if not self._life.has_begun:
            self._disconnect()
        self._is_mine, self._ended = True, None
        return recovered

    def restart(self) -> None:
        """End the kernel and wait for a fresh one. Raises as `Kernel.run`."""
        self._begin_again()
        self._ended = None
        self._ready()

    def close(self) -> None:
        """Close our side; the kernel lives on."""
        self._disconnect()

    def _begin_again(self) -> int:
        """Have another kernel started in place of this one, and do not wait for it. Returns how this one ended."""
        self._disconnect()
        self._life.kill()
        self._begin()
        # The sandbox's first process may have been killed along with it, and another not know.
        self._ended = KILLED if self._ended is None else self._ended
        return self._ended

    def _begin(self) -> None:
        ended = self._life.begin()
        self._ended = ended if self._ended is None else self._ended

    def _ready(self) -> Channels:
        """The channels to a kernel that is up. Raises `NoKernel`; then the next call begins anew."""
        tries = TRIES
        while self._channels is None:
            tries -= 1
            try:
                if not self._life.has_begun:
                    self._begin()
                self._life.wait_up(KERNEL_SECONDS)
                self._channels = self._connected(time.monotonic() + KERNEL_SECONDS)
            except NoKernel:
                # One that was just ending took our connection with it; another that ends so has another reason.
                was_ending = self._life.has_ended
                self._life.close()
                if not tries or not was_ending:
                    raise
        return self._channels

    def _connected(self, deadline: float) -> Channels:
        channels = Channels(self._shell, self._iopub, key=self._key, output_bytes=self._output_bytes, page=self._page)
        try:
            channels.watch(self._life.fileno())
            channels.watch(self._cancel.fileno())
            self._subscribe(channels, deadline)
        except BaseException:
            channels.close()
            raise
        return channels

    def _subscribe(self, channels: Channels, deadline: float) -> None:
        """Return when what the kernel sends arrives here; what it sent before is of no interest."""
        answered = False
        heard = False
        request = channels.ask_info()
        while not (answered and heard):
            asked = time.monotonic()
            if asked >= deadline:
                raise NoKernel("the sandbox's kernel did not answer in time")
            readable = channels.poll(SUBSCRIBED_SECONDS if answered else deadline - asked)
            if self._cancel.fileno() in readable:
                self._cancel.raise_if_set()
            before = answered, heard
            for message in channels.received(MESSAGES):
                heard = heard or not message.is_reply
                answered = answered or (message.is_reply and message.parent == request)
            if before == (answered, heard):
                if self._life.fileno() in readable and self._life.has_ended:
                    raise NoKernel("the sandbox's kernel ended as it was connected to")
                if answered:  # an ipykernel that greets no subscriber: it speaks when it is asked again
                    request = channels.ask_info()

    def _follow(self, channels: Channels, cell: _Cell, deadline: float) -> _End:
        """Take in what comes until the cell has ended, the kernel has, or the time is up."""
        died = False
        while not (cell.answered and cell.idle):
            left = deadline - time.monotonic()
            if left <= 0:
                return _End.UNHEARD if cell.answered else _End.DIED if died else _End.TIMED_OUT
            readable = channels.poll(min(left, SEEN_SECONDS))
            with self._page:
                self._notes.seen_at = time.monotonic()
            if self._cancel.fileno() in readable:
                self._cancel.raise_if_set()
            if not died and self._life.fileno() in readable and self._life.has_ended:
                died = True
                channels.unwatch(self._life.fileno())
                deadline = time.monotonic() + LAST_OUTPUT_SECONDS
            for message in channels.received(MESSAGES):
                mine = message.parent == cell.request
                if message.kind == "execute_reply":
                    if mine and message.is_reply and not cell.answered:
                        cell.answered = True
                        deadline = min(deadline, time.monotonic() + IDLE_SECONDS)
                        cell.output.take(message)
                elif message.kind != "status":
                    if not message.foreign:
                        cell.output.take(message)
                elif mine:
                    cell.idle = message.content.get("execution_state") == "idle"
                    with self._page:
                        self._notes.heard = True
        return _End.DONE

    def _disconnect(self) -> None:
        if self._channels is not None:
            self._channels.close()
            self._channels = None
