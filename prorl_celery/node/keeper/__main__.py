"""The keeper: the one process of a node that starts sandboxes, holds their terminals and ends them.

    python -P -m prorl_celery.node.keeper --boot BOOT

Given: PRORL_* variables, and a pipe as standard input that its supervisor holds. When the pipe closes, or on SIGTERM,
it ends every sandbox and exits; when it is killed, every sandbox dies with it. Gives: a socket (`sandbox.wire`) at
which the node's other processes ask (`sandbox.client`).

It is small on purpose: one thread, the standard library and ptyprocess. A bubblewrap sandbox dies with the thread that
started it, and forking a pty from a process with threads can deadlock.
"""

from __future__ import annotations

import argparse
import ctypes
import logging
import os
import resource
import signal
import stat
import sys
import time

from prorl_celery.errors import SandboxError
from prorl_celery.node.janitor.removal import clear_left, sandboxes_among
from prorl_celery.node.keeper.guard import Guard
from prorl_celery.node.keeper.loop import Loop
from prorl_celery.node.keeper.orphans import become_subreaper
from prorl_celery.node.keeper.service import Service
from prorl_celery.sandbox.owner import label
from prorl_celery.settings import Settings

log = logging.getLogger(__name__)

PR_SET_PDEATHSIG = 1
CLEAR_SECONDS = 10.0
"""How long the start may be held up by what dead keepers left; the rest is removed later."""
END_SECONDS = 5.0
"""How long the end of the last sandbox is waited for."""


def main(arguments: list[str] | None = None) -> int:
    """Serve until the supervisor lets go. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="keeper", description="Owns a node's sandboxes.")
    parser.add_argument("--boot", required=True, help="this keeper's boot id; names it in every handle")
    boot = parser.parse_args(arguments).boot
    logging.basicConfig(level=logging.INFO, format="%(asctime)s keeper %(levelname)s %(message)s")
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    become_subreaper()
    label()  # of this process, for its forks too
    settings = Settings.from_env()
    left = clear_left(settings, deadline=time.monotonic() + CLEAR_SECONDS)

    # Four descriptors a sandbox; the sandboxes themselves get the usual limit (`init.sh`).
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))

    loop = Loop()
    try:
        service = Service(settings, boot, loop, guard_pid=lambda: guard.pid, left=sandboxes_among(left))
    except SandboxError as error:
        log.error("%s", error)
        return 1
    guard = Guard(settings, loop)
    _stop_on_signals(loop)
    _stop_with_supervisor(loop)
    loop.run()

    service.close()
    _await_ends(loop, service)
    service.sandboxes.close()
    guard.dismiss()
    return 0


def _stop_on_signals(loop: Loop) -> None:
    read, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(write)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    loop.watch(read, loop.stop)


def _stop_with_supervisor(loop: Loop) -> None:
    """Stop when the pipe on standard input closes. Nothing is ever read from it."""
    kind = os.fstat(0).st_mode
    if stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind):
        loop.watch(0, loop.stop)


def _await_ends(loop: Loop, service: Service) -> None:
    """Run on until the last sandbox is gone, so that its end is seen and not assumed; for END_SECONDS at most."""
    if not len(service.sandboxes):
        return
    for entry in service.sandboxes.entries():
        entry.when_gone.append(lambda: None if len(service.sandboxes) else loop.stop())
    loop.after(END_SECONDS, loop.stop)
    loop.resume()


if __name__ == "__main__":
    sys.exit(main())
