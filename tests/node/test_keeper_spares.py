"""Spares: ready before anybody asks, of the kinds that were asked for, and nobody's until they are taken."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from keeper_help import LIMIT, eventually, spec

from prorl_celery.errors import SandboxUnavailable
from prorl_celery.node.keeper.entry import Started
from prorl_celery.node.keeper.loop import Timer
from prorl_celery.node.keeper.spares import IDLE_SECONDS, LATELY, QUIET_SECONDS, Spares
from prorl_celery.sandbox.base import SandboxSpec
from prorl_celery.sandbox.session import LiveSandbox
from prorl_celery.sandbox.waiting import NeverCancelled
from prorl_celery.settings import Settings
from prorl_celery.testing.keeper import KeeperProcess

MOST = 2


@pytest.fixture
def keeper(keeper_settings: Settings) -> Iterator[KeeperProcess]:
    with KeeperProcess(keeper_settings.with_(spare_sandboxes=MOST, sandbox_networks=("none", "host"))) as process:
        yield process


@pytest.fixture
def start(keeper: KeeperProcess, never: NeverCancelled) -> Iterator[Callable[..., LiveSandbox]]:
    with ExitStack() as closing:

        def start(job_id: str, **changes: object) -> LiveSandbox:
            sandbox = keeper.client.start(spec(job_id, **changes), cancel=never, timeout=30)
            closing.callback(sandbox.close)
            return sandbox

        yield start


def spares_are(keeper: KeeperProcess, number: int) -> bool:
    return eventually(lambda: keeper.client.status()["spares"] == number)


def test_a_kind_that_is_asked_for_again_is_started_ahead_and_taken_by_the_next(keeper, start):
    first = start("first")
    second = start("second")
    assert spares_are(keeper, 1)
    third = start("third", attempt=2, fence=5, purpose="further", lifetime_seconds=60.0)
    status = keeper.client.status()
    assert (status["spares_taken"], status["starts"], status["live"]) == (1, 3, 3)
    assert spares_are(keeper, MOST), "a third start makes it two that are expected"
    assert third.shell.run("echo $((6 * 7))", timeout=10).output == "42\n"
    for sandbox in (first, second, third):
        sandbox.stop()
    assert keeper.client.status()["stops"] == 3


def test_a_spare_is_nobodys_until_it_is_taken_and_then_the_takers_alone(keeper, start):
    for name in ("first", "second"):
        start(name).stop()
    assert spares_are(keeper, 1)
    status = keeper.client.status()
    assert (status["live"], status["rollout_live"], status["room"], status["leaked"]) == (0, 0, LIMIT, 0)
    assert keeper.client.list() == []
    taken = start("third", fence=7)
    (listed,) = keeper.client.list()
    assert (listed["job_id"], listed["fence"], listed["purpose"]) == ("third", 7, "rollout")
    assert listed["sandbox_id"] == taken.handle.sandbox_id
    assert keeper.client.status()["room"] == LIMIT - 1
    assert listed["age_s"] < 30
    taken.stop()


@pytest.mark.parametrize(
    "change",
    [{"network": "host"}, {"disk_bytes": 1 << 20}, {"memory_bytes": 1 << 30}, {"processes": 99}, {"env": {"A": "b"}}],
    ids=lambda change: next(iter(change)),
)
def test_what_asks_for_anything_else_gets_no_spare(keeper, start, change):
    for name in ("first", "second"):
        start(name)
    assert spares_are(keeper, 1)
    other = start("other", **change)
    assert keeper.client.status()["spares_taken"] == 0
    if "env" in change:
        assert other.shell.run("echo $A", timeout=10).output == "b\n"


def test_two_who_ask_at_once_never_get_the_same_spare(keeper, start, never):
    for name in ("first", "second"):
        start(name).stop()
    assert spares_are(keeper, 1)
    begun = [keeper.client.begin(spec(f"job-{n}"), cancel=never, timeout=30) for n in range(4)]
    sandboxes = []
    for starting in begun:
        with starting:
            sandboxes.append(starting.sandbox())
            starting.keep()
    assert len({sandbox.handle.sandbox_id for sandbox in sandboxes}) == 4
    for number, sandbox in enumerate(sandboxes):
        sandbox.files.write("/workspace/mine", str(number).encode())
    assert [sandbox.files.read("/workspace/mine") for sandbox in sandboxes] == [b"0", b"1", b"2", b"3"]
    for sandbox in sandboxes:
        sandbox.close()


def test_a_start_that_is_given_up_ends_the_spare_that_it_took(keeper, start, never):
    for name in ("first", "second"):
        start(name).stop()
    assert spares_are(keeper, 1)
    with keeper.client.begin(spec("gone"), cancel=never, timeout=30):
        assert eventually(lambda: keeper.client.status()["spares_taken"] == 1)
        assert len(keeper.client.list()) == 1
    assert eventually(lambda: not keeper.client.list())
    assert keeper.client.status()["room"] == LIMIT


def test_a_spare_that_dies_is_handed_to_nobody(keeper, start):
    for name in ("first", "second"):
        start(name).stop()
    assert spares_are(keeper, 1)
    for pid in sandboxes_of(keeper):
        os.kill(pid, 9)
    assert spares_are(keeper, 0)
    assert start("third").shell.run("echo up", timeout=10).output == "up\n"


def test_a_spares_kernel_is_up_before_it_is_taken(keeper, start):
    for name in ("first", "second"):
        start(name, kernel=True).stop()
    assert eventually(lambda: len(kernels_of(keeper)) == 1), "with nobody to ask for it"
    assert keeper.client.list() == []
    before = kernels_of(keeper)
    taken = start("third", kernel=True)
    assert keeper.client.status()["spares_taken"] == 1
    assert taken.kernel.run("6 * 7", timeout=30).output.strip().endswith("42")
    assert before <= kernels_of(keeper)


def test_none_is_kept_where_none_is_wanted(keeper_settings, never):
    with KeeperProcess(keeper_settings.with_(spare_sandboxes=0)) as keeper:
        for name in ("first", "second", "third"):
            keeper.client.start(spec(name), cancel=never, timeout=30).stop()
        assert not eventually(lambda: keeper.client.status()["spares"] > 0, 5 * QUIET_SECONDS)


def sandboxes_of(keeper: KeeperProcess) -> list[int]:
    pid = keeper.process.pid
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def kernels_of(keeper: KeeperProcess) -> set[int]:
    """Pids of the kernels in all of a keeper's sandboxes."""
    found, ahead = set(), [keeper.process.pid]
    while ahead:
        pid = ahead.pop()
        with suppress(OSError):
            ahead += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
            program, _, arguments = Path(f"/proc/{pid}/cmdline").read_bytes().partition(b"\0")
            if program.rpartition(b"/")[2].startswith(b"python") and b"IPKernelApp" in arguments:
                found.add(pid)
    return found


class Bench:
    """Spares with a clock that a test moves, and sandboxes that start at once."""

    def __init__(self, most: int) -> None:
        self.timers: list[Timer] = []
        self.started: list[SandboxSpec] = []
        self.stopped: list[str] = []
        self.dead: set[str] = set()
        loop: Any = SimpleNamespace(after=self._after, watch=self._watch, unwatch=lambda _: None)
        self.spares = Spares(most, loop, self._start, self.stopped.append)

    def ask(self, kind: str) -> Any:
        """A start of a kind; what it takes."""
        return self.spares.take(spec("job", image=kind))

    def quiet(self) -> list[str]:
        """A long time without starts; the kinds that are ready then."""
        while self.timers:
            timer = self.timers.pop()
            if timer.call is not None:
                timer.call()
        return sorted(str(entry.spec.image) for entry in self.spares._ready)

    def _after(self, seconds: float, call: Callable[[], None]) -> Timer:
        self.timers.append(Timer(call))
        return self.timers[-1]

    def _watch(self, descriptor: int, call: Callable[[], None]) -> None:
        self.timers.append(Timer(call))

    def _start(self, kind: SandboxSpec, started: Started) -> Any:
        self.started.append(kind)
        name = f"s{len(self.started)}"
        process = SimpleNamespace(pty=2, lives=name not in self.dead)
        entry: Any = SimpleNamespace(spec=kind, ending=False, process=process, sandbox_id=name)
        self.timers.append(Timer(lambda: started(entry, None)))
        return entry


def test_the_spares_are_like_the_last_starts():
    bench = Bench(3)
    for kind in "aab":
        bench.ask(kind)
    assert bench.quiet() == ["a"], "b was asked for once, and may never be again"
    for kind in "bb":
        bench.ask(kind)
    assert bench.quiet() == ["a", "b", "b"]
    for kind in "ccc":
        bench.ask(kind)
    assert bench.quiet() == ["b", "c", "c"]
    assert bench.stopped == ["s1", "s2"], "those that are expected no more make room"
    bench.ask("c")
    assert bench.quiet() == ["c", "c", "c"]


def test_kinds_that_never_come_again_cost_nothing():
    bench = Bench(3)
    for number in range(3 * LATELY):
        assert bench.ask(str(number)) is None
        assert bench.quiet() == []
    assert bench.started == []


def test_as_long_as_starts_come_no_spare_is_started():
    bench = Bench(3)
    for _ in range(10):
        bench.ask("a")
    assert [timer.call is not None for timer in bench.timers] == [False] * 9 + [True]


def test_a_spare_that_cannot_be_started_is_not_tried_again_and_again():
    bench = Bench(3)
    tries = []

    def fail(kind: SandboxSpec, started: Started) -> Any:
        tries.append(kind)
        raise SandboxUnavailable("no bwrap")

    bench.spares._start = fail  # type: ignore[method-assign]
    for _ in range(2):
        bench.ask("a")
        bench.quiet()
    assert len(tries) == 1


def test_a_spare_lives_for_a_while_and_no_longer():
    bench = Bench(1)
    bench.ask("a")
    bench.ask("a")
    bench.quiet()
    assert [kind.lifetime_seconds for kind in bench.started] == [IDLE_SECONDS]


def test_a_spare_is_ready_when_its_shell_has_said_something():
    bench = Bench(1)
    bench.ask("a")
    bench.ask("a")
    for _ in range(2):  # the quiet, and its terminal
        call = next(timer for timer in reversed(bench.timers) if timer.call is not None)
        bench.timers.remove(call)
        call.call()
    assert (len(bench.spares), bench.spares.missing, len(bench.started)) == (0, 1, 1)
    assert bench.ask("a") is None
    bench.quiet()
    assert (len(bench.spares), bench.spares.missing) == (1, 0)
    assert bench.ask("a").sandbox_id == "s1"


def test_a_spare_that_has_just_ended_is_not_taken():
    bench = Bench(2)
    bench.dead.add("s1")
    for _ in range(3):
        bench.ask("a")
    assert bench.quiet() == ["a", "a"]
    assert bench.ask("a").sandbox_id == "s2"
    assert bench.ask("a") is None
