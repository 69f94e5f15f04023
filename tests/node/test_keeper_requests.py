"""Clients that ask for nonsense, do not read or come in crowds: the keeper serves the others."""

from __future__ import annotations

import os
import resource
import socket
from contextlib import suppress
from pathlib import Path

import pytest
from keeper_help import LIMIT, eventually, spec

from prorl_celery.errors import SandboxError, SandboxRefused
from prorl_celery.sandbox import wire
from prorl_celery.testing.keeper import KeeperProcess


@pytest.mark.parametrize("room", range(1, 10, 2))
def test_a_keeper_without_descriptors_refuses_a_start_and_keeps_its_sandboxes(keeper, never, room):
    lives = keeper.client.start(spec("lives"), cancel=never, timeout=30)
    taken = {int(entry.name) for entry in Path(f"/proc/{keeper.process.pid}/fd").iterdir()}
    free = min(set(range(len(taken) + 1)) - taken)
    limits = resource.prlimit(keeper.process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(keeper.process.pid, resource.RLIMIT_NOFILE, (free + room, limits[1]))
    with suppress(SandboxError):
        keeper.client.start(spec("refused"), cancel=never, timeout=2).stop()
    resource.prlimit(keeper.process.pid, resource.RLIMIT_NOFILE, limits)
    assert lives.shell.run("echo here", timeout=10).output == "here\n"
    assert eventually(lambda: [one["job_id"] for one in keeper.client.list()] == ["lives"])
    keeper.client.start(spec("later"), cancel=never, timeout=30).stop()
    lives.stop()


@pytest.mark.parametrize(
    "packet",
    [b"", b"x", b"[]", b"{}", b'{"op": 7}', b'{"op": ["status"]}', b'{"op": "start"}', b'{"op": "start", "spec": 5}',
     b'{"op": "start", "spec": {"job_id": "x"}}', b'{"op": "start", "spec": {"job_id": "x", "attempt": 1, "env": 5}}',
     b'{"op": "start", "spec": {"job_id": "x", "attempt": 1, "processes": "many"}}',
     b'{"op": "start", "spec": {"job_id": "x", "attempt": 1, "binds": [["/usr"]]}, "timeout": 9}',
     b'{"op": "start", "spec": {"job_id": "x", "attempt": 1, "lifetime_seconds": NaN}, "timeout": 9}',
     b'{"op": "list", "after": Infinity}', b'{"op": ' + b"[" * 100_000, b'{"op": "' + b"\x7f" * 100_000 + b'"}',
     b'{"op": "admit", "timeout": "soon"}', b'{"op": "attach"}', b'{"op": "list", "after": {}}', b"\xff" * 100_000],
)  # fmt: skip
def test_a_bad_request_is_answered_and_does_not_hurt_the_keeper(keeper, packet):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as channel:
        channel.settimeout(10)
        channel.connect(str(wire.keeper_socket(keeper.settings)))
        channel.send(packet)
        if packet:
            assert b'"ok":false' in channel.recv(65536)
    assert keeper.client.status()["live"] == 0


def test_what_a_sandbox_cannot_be_is_refused_once_and_for_all_however_long_it_is_said(keeper, never):
    for changes, said in (
        ({"network": "\x7f" * 20_000}, "network must be one of"),
        ({"network": "host"}, "PRORL_SANDBOX_NETWORKS"),
        ({"binds": ("/usr:/mnt",)}, "PRORL_SANDBOX_BINDS"),
        ({"fakeroot": True}, "fakeroot needs an image"),
        ({"image": "x" * wire.PACKET_BYTES}, "specification is too long"),
    ):
        with pytest.raises(SandboxRefused, match=said) as refused:
            keeper.client.start(spec(**changes), cancel=never, timeout=30)
        assert not refused.value.retryable
    status = keeper.client.status()
    assert (status["live"], status["room"]) == (0, LIMIT)


def asked(channel: socket.socket) -> bool:
    """Ask without reading the answers; False once the keeper has hung up."""
    try:
        for _ in range(100):
            channel.send(b'{"op":"status"}')
    except BlockingIOError:
        return True
    except OSError:
        return False
    return True


def test_a_client_that_does_not_read_is_dropped_and_others_are_served(keeper):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as channel:
        channel.setblocking(False)
        channel.connect(str(wire.keeper_socket(keeper.settings)))
        assert eventually(lambda: not asked(channel))
        assert keeper.client.status()["live"] == 0


def used_seconds(pid: int) -> float:
    """Processor time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_a_keeper_without_descriptors_answers_one_at_a_time_and_does_not_spin(keeper):
    pid = keeper.process.pid
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    taken = {int(entry.name) for entry in Path(f"/proc/{pid}/fd").iterdir()}
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (max(taken) + 1, limits[1]))
    fill = [connected(keeper) for _ in range(max(taken) + 4 - len(taken))]
    before = used_seconds(pid)
    with pytest.raises(SandboxError):
        keeper.client.status(timeout=2.0)  # behind those that it could not take
    assert used_seconds(pid) - before < 0.5
    for channel in fill:
        channel.close()
    assert eventually(lambda: keeper.client.status()["live"] == 0)
    assert keeper.client.status(timeout=30.0)["live"] == 0
    resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)


def connected(keeper: KeeperProcess) -> socket.socket:
    channel = wire.new_socket()
    channel.connect(str(wire.keeper_socket(keeper.settings)))
    return channel
