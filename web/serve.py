"""Serves the API with gunicorn, threads in a few processes, until TERM.

Why gthread, and so many threads: a long-poll holds a thread for as long as it waits, and an idle thread costs some tens
of KiB. So a process has `PRORL_API_THREADS` threads for calls that answer at once and, on top, one for each of the
`PRORL_MAX_WAITERS` long-polls that may wait in it. Beyond that many, a long-poll does not wait (it answers with
`Retry-After`), so that waiters can never take the threads of the others. Threads are made on demand.
"""

from __future__ import annotations

import logging
import resource
import socket
import struct
import sys
from typing import Any, NoReturn

from flask import Flask
from gunicorn.app.base import BaseApplication
from gunicorn.arbiter import Arbiter

from prorl_celery.node.prctl import die_with_parent
from prorl_celery.settings import Settings
from web.auth import check_binding
from web.worker import ApiWorker

KEEPALIVE_SECONDS = 15
"""How long an idle connection is kept for a client's next call."""

GRACE_SECONDS = 8
"""How long a stopping process may finish its answers, before it is killed."""

STALL_SECONDS = 30
"""How long a peer may send or take nothing in the middle of a message before its connection is given up."""

SPARE_CONNECTIONS = 1024
"""Connections, beyond one a thread, that may be open and idle."""


class Server(BaseApplication):  # type: ignore[misc]
    """gunicorn, configured from our settings and from nothing else: no file, no command line, no environment."""

    def __init__(self, settings: Settings, stall_seconds: int, listener: int | None = None) -> None:
        self._settings = settings
        self._stall_seconds = stall_seconds
        self._listener = listener
        super().__init__()

    def load_config(self) -> None:
        """Set what differs from gunicorn's defaults."""
        for name, value in options(self._settings).items():
            self.cfg.set(name, value)
        if self._listener is not None:
            self.cfg.set("bind", [f"fd://{self._listener}"])
        self.cfg.set("post_fork", self.after_fork)
        self.cfg.set("when_ready", self.when_ready)

    def load(self) -> Flask:
        """The application of one process; called after the fork."""
        from web.factory import create_app  # the arbiter itself stays small

        return create_app(self._settings)

    def when_ready(self, arbiter: Arbiter) -> None:
        """Say where, since port 0 is any."""
        print("prorl: the API listens at", *map(str, arbiter.LISTENERS), flush=True)

    def after_fork(self, arbiter: Arbiter, worker: ApiWorker) -> None:
        """In each new process: end when the arbiter ends, and give up peers that stall."""
        die_with_parent(worker.ppid)
        # On Linux a connection inherits these from its listener. gunicorn itself waits without a limit for the rest of
        # a message, so that a few stalled peers could hold all threads.
        limit = struct.pack("ll", self._stall_seconds, 0)
        for listener in worker.sockets:
            listener.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
            listener.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)


def options(settings: Settings) -> dict[str, Any]:
    """gunicorn's configuration."""
    threads = settings.api_threads + settings.max_waiters
    host = f"[{settings.host}]" if ":" in settings.host and not settings.host.startswith("[") else settings.host
    return {
        "bind": [f"{host}:{settings.port}"],
        "workers": settings.api_processes,
        "worker_class": ApiWorker,
        "threads": threads,
        "worker_connections": threads + SPARE_CONNECTIONS,
        "keepalive": KEEPALIVE_SECONDS,
        "graceful_timeout": GRACE_SECONDS,
        "timeout": 60,
        "preload_app": False,
        "errorlog": "-",
        "accesslog": None,
        "loglevel": "warning",
        # It would put a socket into the user's home.
        "control_socket_disable": True,
        "proc_name": "prorl-api",
    }


def main(settings: Settings, *, stall_seconds: int = STALL_SECONDS, listener: int | None = None) -> NoReturn:
    """Serve until TERM or INT; does not return. Raises `SettingsError` where the address is open and has no tokens.

    `listener`: a socket that is bound to the settings' address already; whoever holds it as well keeps callers waiting,
    not refused, while no API runs.
    """
    check_binding(settings)
    logging.basicConfig(
        level=logging.WARNING, stream=sys.stderr, format="%(asctime)s %(name)s %(levelname)s %(message)s"
    )
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65_536 if hard == resource.RLIM_INFINITY else min(hard, 65_536)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    Server(settings, stall_seconds, listener).run()
    raise SystemExit(0)
