"""The start of a Singularity instance: in a child, entered as soon as it stands, killed where it comes to nothing."""

from __future__ import annotations

import logging
import os
import re
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

AGAIN_SECONDS = 1.0
"""When a start that failed is looked after once more: a part of it may just have been on its way."""


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
    ) -> None:
        """`enter` is called in the child first. `run(pid, pidfd, name)` enters the instance whose first process that is
        and takes the descriptor over; it may raise `SandboxError`. `gone` when nothing of a failed start is left.
        """
        self._entry = entry
        self._container = container
        self._loop = loop
        self._run = run
        self._started = started
        self._gone = gone
        self._name = container.instance_name(entry.spec, entry.sandbox_id)
        self._error: SandboxError | None = None
        entry.when_gone.append(lambda: container.forget(self._name))

        def begin() -> int:
            enter()
            return container.start_instance(entry.spec, self._name, tell_ahead)

        seconds = container.start_seconds(entry.spec)
        entry.work = ChildWork(begin, loop, self._ended, timeout=seconds, ahead=self._stands)

    def _stands(self, pid: Any) -> None:
        """The instance can be entered; the program is not done with its start yet."""
        entry = self._entry
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
            self._kill()
        elif entry.ending:
            entry.process.kill()
        else:
            self._started(entry, None)

    def _ended(self, _: Any, error: SandboxError | None) -> None:
        """The child has ended, and with it all that the program does for a start."""
        entry = self._entry
        entry.work = None
        if entry.process is None:
            self._kill()
            self._loop.after(AGAIN_SECONDS, self._kill)
            self._started(entry, self._error or error or SandboxError(f"the instance {self._name} did not start"))
            self._gone(entry)
        elif entry.over:
            self._gone(entry)
        elif error is not None:
            log.error("sandbox %s: its instance started, and then did not: %s", entry.sandbox_id, error)
            entry.process.kill()

    def _disconnect_in_the_end(self, pid: int) -> None:
        """What a bridge knows of an instance is undone when it is gone, with the network that it had."""
        network = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)

        def disconnect() -> None:
            self._container.disconnect(self._name, f"/proc/{os.getpid()}/fd/{network}")

        self._entry.when_gone.append(lambda: run_apart(disconnect, keep=network))

    def _kill(self) -> None:
        """Kill what a failed start has made: what is recorded, and what is not yet and became a child of ours."""
        self._container.kill(self._name)
        title = re.compile(rb"instance: [^\[]*\[" + re.escape(self._name.encode()) + rb"\]")
        for pid in children_of(os.getpid()):
            try:
                arguments = Path(f"/proc/{pid}/cmdline").read_bytes()
            except OSError:
                continue
            if title.search(arguments):
                kill(pid)
