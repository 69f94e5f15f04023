"""The start of a Singularity instance: in a child, entered as soon as it stands, killed where it comes to nothing."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prorl_celery.errors import SandboxError
from prorl_celery.node.keeper.entry import Entry, Started
from prorl_celery.node.keeper.loop import Loop
from prorl_celery.node.keeper.orphans import children_of, kill
from prorl_celery.node.keeper.work import ChildWork, run_apart, tell_ahead
from prorl_celery.sandbox.singularity import Singularity

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.05
"""Between looks at what is left of a start that came to nothing. That is killed and goes within milliseconds."""
PATIENCE_SECONDS = 10.0
"""After this long with something left the sandbox counts as stuck; it is tried on."""


class InstanceStart:
    """Starts an entry's instance. While its child works, the entry's `work` is that."""

    def __init__(
        self,
        entry: Entry,
        container: Singularity,
        loop: Loop,
        *,
        enter: Callable[[], None],
        run: Callable[[int, int, str], None],
        started: Started,
        gone: Callable[[Entry], None],
        stuck: Callable[[Entry], None],
    ) -> None:
        """`enter` is called in the child first. `run(pid, pidfd, name)` enters the instance whose first process that is
        and takes the descriptor over; it may raise `SandboxError`. `gone` when nothing of a start that came to nothing
        is left, `stuck` when something of it would not go. Raises `OSError` when no child can be made.
        """
        self._entry = entry
        self._container = container
        self._loop = loop
        self._run = run
        self._started = started
        self._gone = gone
        self._stuck = stuck
        self._name = container.instance_name(entry.spec, entry.sandbox_id)
        self._error: SandboxError | None = None
        entry.when_gone.append(lambda: container.forget(self._name))

        def begin() -> int:
            enter()
            return container.start_instance(entry.spec, self._name, lambda *told: tell_ahead(told))

        seconds = container.start_seconds(entry.spec)
        entry.work = ChildWork(
            begin, loop, self._ended, timeout=seconds, ahead=self._stands, stuck=lambda: stuck(entry)
        )
        self._session = entry.work.pid

    def _stands(self, told: Any) -> None:
        """The instance can be entered; the program is not done with its start yet."""
        entry = self._entry
        pid, entry.borrows_usr = told
        try:
            if entry.spec.network == "bridge":
                self._disconnect_in_the_end(int(pid))
            self._run(int(pid), os.pidfd_open(int(pid)), self._name)
        except ProcessLookupError:
            self._error = SandboxError(f"the instance {self._name} ended at once")
        except SandboxError as error:
            self._error = error
        except OSError as error:
            self._error = SandboxError(f"the instance {self._name} could not be entered: {error}")
        if entry.process is None:
            self._container.kill(self._name)
        elif entry.ending:
            entry.process.kill()
        else:
            self._started(entry, None)

    def _ended(self, _: Any, error: SandboxError | None) -> None:
        """The child has ended, and with it all that the program does for a start."""
        entry = self._entry
        entry.work = None
        if entry.process is None:
            self._started(entry, self._error or error or SandboxError(f"the instance {self._name} did not start"))
            self._clear(time.monotonic() + PATIENCE_SECONDS)
        elif entry.over:
            self._gone(entry)
        elif error is not None and not entry.ending:
            log.error("sandbox %s: its instance started, and then did not: %s", entry.sandbox_id, error)
            entry.process.kill()

    def _disconnect_in_the_end(self, pid: int) -> None:
        """What a bridge knows of an instance is undone when it is gone, with the network that it had."""
        network = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)

        def disconnect() -> None:
            self._container.disconnect(self._name, f"/proc/{os.getpid()}/fd/{network}")

        self._entry.when_gone.append(lambda: run_apart(disconnect, keep=network))

    def _clear(self, deadline: float) -> None:
        """Kill and reap what is left of a start that came to nothing, until that is nothing."""
        self._container.kill(self._name)
        left = self._left()
        for pid in left:
            kill(pid)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        if not left:
            self._gone(self._entry)
            return
        if not self._entry.stuck and time.monotonic() > deadline:
            self._stuck(self._entry)
        self._loop.after(LOOK_SECONDS, lambda: self._clear(deadline))

    def _left(self) -> list[int]:
        """What the start's child has left to us, ended or not. Who ends has left us his own children by then, so that
        nothing is missed between two looks.
        """
        name = self._name.encode()
        found = []
        for pid in children_of(os.getpid()):
            try:
                if os.getsid(pid) == self._session or any(
                    name in Path(f"/proc/{pid}/{told}").read_bytes() for told in ("cmdline", "environ")
                ):
                    found.append(pid)
            except OSError:
                continue
        return found
