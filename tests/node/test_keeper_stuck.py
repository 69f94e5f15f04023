"""A sandbox that will not end: told at once, counted, tried on, and its place is another's meanwhile.

The kernel does not end a pid namespace's first process before every process of the namespace has been reaped. One of
them here is a child of the test's, joined from outside: it has ended, and the test does not reap it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from keeper_help import LIMIT, eventually, spec, states_of_children, things_of

from prorl_celery.errors import SandboxError
from prorl_celery.node.keeper.process import STUCK_KILLS
from prorl_celery.sandbox.client import STOP_SECONDS
from prorl_celery.testing.keeper import KeeperProcess

JOIN = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
for kind in ("user", "pid")[os.geteuid() == 0 :]:
    if libc.setns(os.open(f"/proc/{sys.argv[1]}/ns/{kind}", os.O_RDONLY), 0) != 0:
        sys.exit(os.strerror(ctypes.get_errno()))
if os.fork() == 0:
    os._exit(0)
print("joined", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def hold() -> Iterator[Callable[[int], subprocess.Popen[str]]]:
    """Keeps the namespace of a sandbox's outer process from ending, until what is returned is let go."""
    holders: list[subprocess.Popen[str]] = []

    def join(outer: int) -> subprocess.Popen[str]:
        inner = Path(f"/proc/{outer}/task/{outer}/children").read_text().split()[0]
        holder = subprocess.Popen(
            [sys.executable, "-c", JOIN, inner], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert holder.stdout.readline() == "joined\n"
        holders.append(holder)
        return holder

    yield join
    for holder in holders:
        holder.communicate()


def pid_of(keeper: KeeperProcess, job_id: str) -> int:
    return next(int(one["pid"]) for one in keeper.client.list() if one["job_id"] == job_id)


def test_a_sandbox_that_will_not_end_gives_up_its_place_and_is_tried_until_it_does(keeper, never, hold):
    admission = keeper.client.admit("j", cancel=never, timeout=10)
    sandbox = keeper.client.start(spec("stuck"), cancel=never, timeout=60, admission=admission)
    holder = hold(pid_of(keeper, "stuck"))
    began = time.monotonic()
    with pytest.raises(SandboxError, match="would not end; the keeper goes on trying"):
        sandbox.stop()
    assert STUCK_KILLS - 2 < time.monotonic() - began < STOP_SECONDS
    status = keeper.client.status()
    assert (status["live"], status["stuck"], status["leaked"], status["room"]) == (1, 1, 1, LIMIT)
    assert [one["stuck"] for one in keeper.client.list()] == [True]
    with pytest.raises(SandboxError, match="would not end"):
        keeper.client.stop(sandbox.handle.sandbox_id)
    keeper.client.start(spec("other"), cancel=never, timeout=60).stop()
    holder.communicate()
    assert eventually(lambda: keeper.client.status()["live"] == 0)
    status = keeper.client.status()
    assert (status["stuck"], status["leaked"], status["room"]) == (0, 1, LIMIT)
    assert [thing for thing in things_of(keeper) if thing.kind == "process"] == []
    assert eventually(lambda: "Z" not in states_of_children(keeper.process.pid))


@pytest.mark.slow
def test_as_many_stuck_sandboxes_as_there_are_places_give_theirs_up_and_no_more(keeper_settings, never, hold):
    settings = keeper_settings.with_(rollout_slots=1, init_ahead=0)
    with KeeperProcess(settings) as keeper:
        for job_id in ("first", "second"):
            sandbox = keeper.client.start(spec(job_id), cancel=never, timeout=60)
            hold(pid_of(keeper, job_id))
            with pytest.raises(SandboxError, match="would not end"):
                sandbox.stop()
            assert keeper.client.status()["room"] == (1 if job_id == "first" else 0)
        assert keeper.client.status()["leaked"] == 2


def test_a_sandbox_whose_outer_process_was_killed_is_not_gone_before_what_is_inside_is(keeper, never, hold):
    sandbox = keeper.client.start(spec("half"), cancel=never, timeout=60)
    sandbox.shell.run("sleep 1000 &", timeout=20)
    outer = pid_of(keeper, "half")
    holder = hold(outer)
    os.kill(outer, signal.SIGKILL)
    assert eventually(lambda: not Path(f"/proc/{outer}").exists())
    assert [one["job_id"] for one in keeper.client.list()] == ["half"]
    with pytest.raises(SandboxError):
        sandbox.shell.run("true", timeout=20)
    sandbox.close()
    holder.communicate()
    assert eventually(lambda: keeper.client.list() == [])
