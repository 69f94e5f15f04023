"""Watches over the slots of a stage process, on a thread of its own.

a stage that does not stop when told   the handler's code is broken off, once; else its slot counts as wedged: what
                                       becomes of the job is written here, and the process is retired
the order to stop                      jobs may finish for `PRORL_DRAIN`, the rest is given back; at once when the order
                                       comes again
a retired process                      ends with its last job, past the slots that are wedged
a process for suspects                 ends when it has had nothing to do for a while
the nursery                            when it dies, the process is retired
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from celery.worker import state as celery_state

from prorl_celery.errors import FenceLost, StageError, Stopping, StoreUnavailable
from tasks.beat import Held
from tasks.ending import write_end

if TYPE_CHECKING:
    from tasks.process import StageProcess

log = logging.getLogger(__name__)

HAND_BACK_GRACE_SECONDS = 3.0
"""For a stage that must give its job back: a stopping process is killed 5 s after its drain."""
BREAK_AGAIN_SECONDS = 0.2
WRITE_AGAIN_SECONDS = 1.0
IDLE_SECONDS = 60.0
"""A process for suspects ends after so long without one."""
ACK_SECONDS = 2.0
"""How long Celery may take to acknowledge the messages of what has ended."""
LONGEST_WAIT_SECONDS = 3600.0
NEVER = float("inf")


class Warden:
    """One for a process. `message` and `slot` are for the slots' threads; `order_to_stop` may be called by a signal
    handler.
    """

    def __init__(self, process: StageProcess) -> None:
        self._process = process
        self._settings = process.settings
        self._woken = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._lock = threading.Lock()
        self._slots: set[Held] = set()
        self._messages = 0
        self._orders = 0
        self._ordered: float | None = None
        self._gave_back = False
        self._ended = False
        self._idle_since = NEVER
        self._thread = threading.Thread(target=self._run, name="warden", daemon=True)

    @property
    def wedged(self) -> int:
        """Slots that are wedged."""
        with self._lock:
            return sum(held.wedged for held in self._slots)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ended = True
        self.wake()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(5.0)

    def wake(self) -> None:
        """Look again: something has changed."""
        os.eventfd_write(self._woken, 1)

    def ready(self) -> None:
        """The process takes messages now."""
        with self._lock:
            self._idle_since = time.monotonic()
        self.wake()

    def order_to_stop(self) -> None:
        """The process was told to stop; the second time, to be quick about it. Takes no lock."""
        self._orders += 1
        self.wake()

    @contextmanager
    def message(self) -> Iterator[None]:
        """A message is worked off within."""
        with self._lock:
            self._messages += 1
        try:
            yield
        finally:
            with self._lock:
                self._messages -= 1
                self._idle_since = time.monotonic()
            self.wake()

    @contextmanager
    def slot(self, held: Held) -> Iterator[None]:
        """A stage is at work within."""
        with self._lock:
            self._slots.add(held)
        self._tell_orders(held)
        try:
            yield
        finally:
            with self._lock:
                self._slots.discard(held)

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._woken, select.POLLIN)
        poll.register(self._process.nursery.fileno(), select.POLLIN)
        while not self._ended:
            wait = WRITE_AGAIN_SECONDS
            try:
                wait = self._look(time.monotonic())
            except Exception:
                # Without this thread nothing would ever end what does not listen.
                log.exception("warden")
            for fd, _ in poll.poll(min(wait, LONGEST_WAIT_SECONDS) * 1000 + 1):
                if fd == self._woken:
                    with contextlib.suppress(BlockingIOError):
                        os.eventfd_read(fd)
                else:
                    poll.unregister(fd)
                    self._process.retire("the process that forks its children is gone")

    def _look(self, now: float) -> float:
        """Do what is due; return for how many seconds nothing more is."""
        due = min([self._keep_orders(now), self._keep_idle(now), *(self._keep(held, now) for held in self._copy())])
        self._end_when_done()
        return max(0.0, due - now)

    def _copy(self) -> list[Held]:
        with self._lock:
            return list(self._slots)

    # The order to stop

    def _keep_orders(self, now: float) -> float:
        if not self._orders or self._gave_back:
            return NEVER
        if self._ordered is None:
            self._ordered = now
            for held in self._copy():
                self._tell_orders(held)
        due = self._ordered + (self._settings.drain_seconds if self._orders == 1 else 0.0)
        if now < due:
            return due
        self._gave_back = True
        self._process.giving_back.set()
        for held in self._copy():
            self._tell_orders(held)
        return NEVER

    def _tell_orders(self, held: Held) -> None:
        if self._orders:
            held.signal.process_is_stopping()
        if self._gave_back:
            held.signal.set(Stopping("the worker is stopping", job_id=held.claim.job_id))

    # Slots

    def _keep(self, held: Held, now: float) -> float:
        since = held.signal.since
        if since is None or held.back or held.wedged:
            return NEVER
        grace = self._settings.wedge_grace_seconds
        if isinstance(held.signal.reason, Stopping):
            grace = min(grace, HAND_BACK_GRACE_SECONDS)
        if now < since + grace / 2:
            return since + grace / 2
        if now < since + grace:
            return since + grace if held.handler.break_off() else now + BREAK_AGAIN_SECONDS
        return NEVER if self._give_up(held) else now + WRITE_AGAIN_SECONDS

    def _give_up(self, held: Held) -> bool:
        """Write what becomes of the job, since its stage does not come back to do so; whether that was possible."""
        claim, reason = held.claim, held.signal.reason
        try:
            if isinstance(reason, StageError):
                message = write_end(self._process.store, held, reason)
                if message is not None:
                    self._process.publish(message)
        except FenceLost:
            pass  # another has written it
        except StoreUnavailable as error:
            log.warning("%s of %s does not stop, and Redis is away: %s", claim.stage, claim.job_id, error)
            return False
        held.wedged = True
        self._process.beat.release(held)
        self._process.retire(f"{claim.stage} of {claim.job_id} was told to stop ({reason}) and does not")
        return True

    # The end

    def _keep_idle(self, now: float) -> float:
        if self._process.stage != "solo" or self._messages or self._orders:
            return NEVER
        if now >= self._idle_since + IDLE_SECONDS:
            self._stop_process()
        return self._idle_since + IDLE_SECONDS

    def _end_when_done(self) -> None:
        wedged = self.wedged
        with self._lock:
            done = self._messages == wedged
        if not done or self._ended or not (self._process.retiring or self._orders):
            return
        if wedged:
            self._end_past(wedged)
        elif not self._orders:
            self._stop_process()

    def _stop_process(self) -> None:
        """As an order from outside would."""
        self._orders += 1
        os.kill(os.getpid(), signal.SIGTERM)

    def _end_past(self, wedged: int) -> None:
        """End the process although threads of it never will."""
        deadline = time.monotonic() + ACK_SECONDS
        pause = threading.Event()
        while len(celery_state.active_requests) > wedged and time.monotonic() < deadline:
            pause.wait(0.05)
        log.warning("ends past %d wedged slot(s)", wedged)
        try:
            self._process.stop()
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
        finally:
            os._exit(0)
