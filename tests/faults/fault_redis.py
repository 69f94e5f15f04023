"""A Redis that is hurt, the wire to it that is hurt, and a Redis with a standby and Sentinels: real programs all."""

from __future__ import annotations

import contextlib
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.backoff import ConstantBackoff
from redis.retry import Retry

READY_S = 20.0


def free_port() -> int:
    """A TCP port of loopback that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """A `redis-server`, or `redis-sentinel`, on a TCP port of loopback; started, killed and started again at will."""

    def __init__(self, folder: Path, *options: str, program: str = "redis-server", port: int | None = None) -> None:
        binary = shutil.which(program)
        if binary is None:
            pytest.skip(f"there is no {program} on the PATH")
        self.folder = folder
        self.port = port or free_port()
        self.argv = [binary, *options, "--port", str(self.port), "--dir", str(folder)]
        self.process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def client(self) -> Any:
        """A client that waits for the server to be there."""
        return redis.Redis.from_url(self.url, socket_timeout=30.0, retry=Retry(ConstantBackoff(0.05), 400), protocol=2)

    def start(self) -> None:
        """Start it, and wait until it has loaded its file."""
        with (self.folder / f"{self.port}.log").open("a") as log:
            self.process = subprocess.Popen(self.argv, stdout=log, stderr=log)
        deadline = time.monotonic() + READY_S
        with self.client() as client:
            while True:
                try:
                    client.ping()
                    return
                except redis.ConnectionError:  # still loading
                    assert time.monotonic() < deadline
                    threading.Event().wait(0.05)

    def kill(self) -> None:
        """`kill -9`, and wait for its end."""
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait(10)

    def restart(self) -> None:
        """`kill -9` and start again at once."""
        self.kill()
        self.start()

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """It answers nothing for the time of the block, and its sockets stay open."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)


@contextmanager
def served(server: Server) -> Iterator[Server]:
    """The server, started; killed at the end."""
    server.start()
    try:
        yield server
    finally:
        server.kill()


AOF = ("--appendonly", "yes", "--appendfsync", "everysec", "--save", "")
VOLATILE = ("--appendonly", "no", "--save", "")


class Wire:
    """A proxy on loopback before a server: it can wait, cut a reply in the middle, swallow all that comes, or refuse.

    `url` leads through it. Faults are of the moment and go by setting the attribute back.
    """

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port = int(self._listener.getsockname()[1])
        self.delay_s = 0.0
        """Each chunk waits so long, in each direction."""
        self._silent: set[tuple[socket.socket, socket.socket]] = set()
        self._swallows = False
        self._lock = threading.Lock()
        self._cuts = 0
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        self.replies_cut = 0
        self.connections = 0
        self._closing = False
        threading.Thread(target=self._accept, daemon=True, name="wire").start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def cut_replies(self, count: int) -> None:
        """Cut the next replies: half of each arrives, then the connection is reset."""
        with self._lock:
            self._cuts = count

    def reset_all(self) -> None:
        """Reset every connection that is open."""
        with self._lock:
            pairs = list(self._pairs)
        for pair in pairs:
            self._end(pair)

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Nothing comes through in either direction, and every socket stays open: the host is gone without a word.
        Connections that were open then, or that are made meanwhile, stay so for good.
        """
        with self._lock:
            self._swallows = True
            self._silent |= self._pairs
        try:
            yield
        finally:
            with self._lock:
                self._swallows = False

    def close(self) -> None:
        self._closing = True
        self._listener.close()
        self.reset_all()

    def _accept(self) -> None:
        while not self._closing:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self._target), timeout=5.0)
            except OSError:
                _reset(near)
                continue
            for end in (near, far):
                end.settimeout(None)
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            pair = (near, far)
            with self._lock:
                self._pairs.add(pair)
                self.connections += 1
                if self._swallows:
                    self._silent.add(pair)
            for source, sink, is_reply in ((near, far, False), (far, near, True)):
                threading.Thread(target=self._pump, args=(pair, source, sink, is_reply), daemon=True).start()

    def _pump(
        self, pair: tuple[socket.socket, socket.socket], source: socket.socket, sink: socket.socket, is_reply: bool
    ) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if pair in self._silent:
                    continue
                if self.delay_s:
                    threading.Event().wait(self.delay_s)
                if is_reply and self._cuts_now():
                    sink.sendall(data[: len(data) // 2])
                    break
                sink.sendall(data)
        self._end(pair)

    def _cuts_now(self) -> bool:
        with self._lock:
            if not self._cuts:
                return False
            self._cuts -= 1
            self.replies_cut += 1
            return True

    def _end(self, pair: tuple[socket.socket, socket.socket]) -> None:
        with self._lock:
            self._pairs.discard(pair)
            self._silent.discard(pair)
        for end in pair:
            _reset(end)


def _reset(end: socket.socket) -> None:
    """Close with RST instead of FIN, whoever else is in a call on it."""
    with contextlib.suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()


@contextmanager
def wire_to(server: Server) -> Iterator[Wire]:
    wire = Wire(server.port)
    try:
        yield wire
    finally:
        wire.close()


class Standby:
    """A master, a replica, and three Sentinels that watch them; a failover takes about two seconds."""

    SERVICE = "prorl"

    def __init__(self, folder: Path, *options: str) -> None:
        self.first = Server(folder / "first", *AOF, *options)
        follows = ("--replicaof", "127.0.0.1", str(self.first.port))
        self.second = Server(folder / "second", *AOF, *options, *follows)
        self.sentinels: list[Server] = []
        for number in range(3):
            own = folder / f"sentinel-{number}"
            own.mkdir(parents=True)
            port = free_port()
            (own / "sentinel.conf").write_text(
                f"port {port}\n"
                f"sentinel monitor {self.SERVICE} 127.0.0.1 {self.first.port} 2\n"
                f"sentinel down-after-milliseconds {self.SERVICE} 1000\n"
                f"sentinel failover-timeout {self.SERVICE} 5000\n"
            )
            self.sentinels.append(Server(own, str(own / "sentinel.conf"), program="redis-sentinel", port=port))

    @property
    def url(self) -> str:
        return f"sentinel://{','.join(f'127.0.0.1:{s.port}' for s in self.sentinels)}/{self.SERVICE}/0"

    @property
    def servers(self) -> Sequence[Server]:
        return (self.first, self.second, *self.sentinels)

    def master_port(self) -> int:
        """What the first Sentinel takes for the master's port."""
        with self.sentinels[0].client() as client:
            return int(client.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.SERVICE)[1])

    def in_sync(self) -> bool:
        """Whether the replica has all, and every Sentinel knows it and the other two."""
        with self.second.client() as client:
            if client.info("replication").get("master_link_status") != "up":
                return False
        for sentinel in self.sentinels:
            with sentinel.client() as client:
                state = client.info("sentinel")["master0"]
            if (state["slaves"], state["sentinels"]) != (1, 3):
                return False
        return True


@contextmanager
def standing_by(folder: Path, *options: str) -> Iterator[Standby]:
    """All five, started and in agreement; killed at the end."""
    standby = Standby(folder, *options)
    with contextlib.ExitStack() as ending:
        for server in standby.servers:
            ending.enter_context(served(server))
        deadline = time.monotonic() + 30
        while not standby.in_sync():
            assert time.monotonic() < deadline
            threading.Event().wait(0.1)
        yield standby
