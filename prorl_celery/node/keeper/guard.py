"""A process beside the keeper that cleans up behind it when it is killed.

    keeper --pipe--> guard        the pipe ends with the keeper, whatever ends that

Most of what a keeper holds dies with it; what does not (an instance of Apptainer, a bubblewrap that was just starting,
directories, sockets) the guard removes, as the next keeper would. It is a fork of the keeper, so it costs next to
nothing, in a session of its own, so that whoever kills the keeper's group does not meet it.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import time

from prorl_celery.node import prctl
from prorl_celery.node.janitor.removal import clear_left
from prorl_celery.node.janitor.things import inventory
from prorl_celery.node.keeper.loop import Loop
from prorl_celery.settings import Settings

log = logging.getLogger(__name__)

AGAIN_SECONDS = 1.0
ROUND_SECONDS = 0.2
LOOK_SECONDS = 0.5
"""How long the guard looks at least: what was just being started may come to light a moment after."""
LONGEST_SECONDS = 10.0
"""What would not go until then is left to the janitors."""


class Guard:
    """Keeps a guard alive. Raises `OSError` when it cannot be forked."""

    def __init__(self, settings: Settings, loop: Loop) -> None:
        self._settings = settings
        self._loop = loop
        self._end, self._ours = os.pipe()
        self._begin()

    def dismiss(self) -> None:
        """End it: the keeper has cleaned up behind itself."""
        self._loop.unwatch(self._pidfd)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)

    def _begin(self) -> None:
        self.pid = os.fork()
        if self.pid == 0:
            _guard(self._end, self._settings)
        self._pidfd = os.pidfd_open(self.pid)
        self._loop.watch(self._pidfd, self._died)

    def _died(self) -> None:
        self._loop.unwatch(self._pidfd)
        os.close(self._pidfd)
        os.waitpid(self.pid, 0)
        log.warning("the keeper's guard was killed; another takes its place")
        self._loop.after(AGAIN_SECONDS, self._begin_again)

    def _begin_again(self) -> None:
        try:
            self._begin()
        except OSError as error:
            log.warning("no guard can be started: %s", error)
            self._loop.after(AGAIN_SECONDS, self._begin_again)


def _guard(end: int, settings: Settings) -> None:
    """The guard's whole life. Never returns."""
    try:
        os.setsid()
        prctl.name_process("prorl-guard")
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1):
            os.dup2(null, descriptor)
        os.dup2(end, 3)
        os.closerange(4, os.sysconf("SC_OPEN_MAX"))
        os.read(3, 1)
        _clean_up(settings)
    finally:
        os._exit(0)


def _clean_up(settings: Settings) -> None:
    began = time.monotonic()
    while (passed := time.monotonic() - began) < LONGEST_SECONDS:
        clear_left(settings, deadline=began + LONGEST_SECONDS)
        if passed > LOOK_SECONDS and not any(thing.fate == "left" for thing in inventory(settings)):
            return
        select.poll().poll(ROUND_SECONDS * 1000)
