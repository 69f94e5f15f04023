"""Clients that ask for nonsense, do not read or come in crowds: the keeper serves the others."""

from __future__ import annotations

import resource
import socket
from contextlib import suppress
from pathlib import Path

import pytest
from keeper_help import eventually, spec

from prorl_celery.errors import SandboxError
from prorl_celery.sandbox import wire


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
