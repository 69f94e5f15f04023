"""A server that fails call after call is held off for all jobs of the process, and tried by one."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from aiohttp import web
from reward_stub import RewardStub

from prorl_celery.errors import RewardRefused, RewardUnavailable
from prorl_celery.rewards import servers as module
from prorl_celery.rewards.answer import Score
from prorl_celery.rewards.servers import MOST_SERVERS, OPEN_AFTER, RewardServer, RewardServers

Ask = Callable[..., Score]


def test_many_jobs_ask_a_dead_server_little_more_than_one_would(
    ask: Ask, servers: RewardServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FIRST_HOLD_SECONDS", 0.5)

    def one(_: int) -> None:
        with pytest.raises(RewardUnavailable):
            ask(stub.url, seconds=2.0)

    with RewardStub(lambda body: web.Response(status=500)) as stub, ThreadPoolExecutor(30) as pool:
        list(pool.map(one, range(30)))
        # 30 at first, who are on their way when the fifth failure is seen; then one at a time, every 0.5, 1, 2 s.
        assert len(stub.bodies) <= 30 + 4
    [told] = servers.told()
    assert told["held_off"]


def test_one_call_tries_it_and_when_that_goes_well_all_go(
    ask: Ask, servers: RewardServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FIRST_HOLD_SECONDS", 0.3)
    with RewardStub() as stub, ThreadPoolExecutor(20) as pool:
        for _ in range(OPEN_AFTER):
            servers.at(stub.url).count("failed", 0.1)
        assert servers.told()[0]["held_off"]
        assert {score.score for score in pool.map(lambda _: ask(stub.url, seconds=30.0), range(20))} == {1.0}
    [told] = servers.told()
    assert told["calls"]["scored"] == 20
    assert told["calls"]["failed"] == OPEN_AFTER
    assert not told["held_off"]


def test_a_job_that_waits_for_a_server_that_is_held_off_says_so(ask: Ask, servers: RewardServers) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
    server = servers.at(url)
    for _ in range(OPEN_AFTER):
        server.count("failed", 0.1)
    with pytest.raises(RewardUnavailable, match="asked 0 times: it is held off"):
        ask(url, seconds=0.5)


@pytest.mark.parametrize("outcome", ["scored", "failed", None])
def test_of_those_who_wait_one_tries_the_server_and_what_it_meets_decides_for_the_others(
    monkeypatch: pytest.MonkeyPatch, outcome: str | None
) -> None:
    monkeypatch.setattr(module, "FIRST_HOLD_SECONDS", 0.02)

    async def scenario() -> tuple[int, int]:
        server = RewardServer("it")
        for _ in range(OPEN_AFTER):
            server.count("failed", 0.0)
        inside, told = 0, asyncio.Event()
        entered: asyncio.Queue[None] = asyncio.Queue()

        async def one() -> None:
            nonlocal inside
            async with server.place(time.monotonic() + 60.0):
                inside += 1
                entered.put_nowait(None)
                await told.wait()
                told.clear()
                if outcome is not None:
                    server.count(outcome, 0.0)

        tasks = [asyncio.create_task(one()) for _ in range(10)]
        await asyncio.wait_for(entered.get(), 10)
        await asyncio.sleep(0.2)
        first = inside
        told.set()  # the one that tries it is told what it met, and leaves
        await asyncio.wait_for(entered.get(), 10)
        await asyncio.sleep(0.2)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return first, inside

    first, then = asyncio.run(scenario())
    assert first == 1
    assert then == (10 if outcome == "scored" else 2)


def test_another_server_is_not_held_off_with_it(ask: Ask, servers: RewardServers) -> None:
    with RewardStub() as stub, RewardStub() as other:
        for _ in range(OPEN_AFTER):
            servers.at(other.url).count("failed", 0.1)
        assert ask(stub.url).score == 1.0


def test_what_is_answered_at_all_tells_that_the_server_is_well(ask: Ask, servers: RewardServers) -> None:
    with RewardStub(lambda body: web.Response(status=404)) as stub:
        for _ in range(OPEN_AFTER + 1):
            with pytest.raises(RewardRefused):
                ask(stub.url)
    [told] = servers.told()
    assert told["calls"]["refused"] == OPEN_AFTER + 1
    assert told["seconds"] > 0
    assert not told["held_off"]


def test_so_many_servers_are_remembered_and_none_that_is_asked_is_forgotten() -> None:
    servers = RewardServers()
    busy: RewardServer = servers.at("http://busy/")
    busy.users += 1
    for number in range(3 * MOST_SERVERS):
        servers.at(f"http://s{number}/")
    assert len(servers.told()) == MOST_SERVERS
    assert servers.at("http://busy/") is busy


def test_calls_that_were_out_when_it_was_held_off_make_the_hold_no_longer() -> None:
    server = RewardServer("it")
    for _ in range(500):
        server.count("failed", 0.1)
    assert server.calls["failed"] == 500
    assert server.held_off
    assert server._held_until - time.monotonic() <= module.FIRST_HOLD_SECONDS


def test_whoever_waits_goes_on_at_once_when_a_call_that_was_out_is_answered() -> None:
    async def scenario() -> float:
        server = RewardServer("it")
        for _ in range(OPEN_AFTER):
            server.count("failed", 0.1)
        server._held_until += 60.0
        asyncio.get_running_loop().call_later(0.05, server.count, "scored", 0.1)
        began = time.monotonic()
        async with server.place(began + 60.0):
            return time.monotonic() - began

    assert asyncio.run(scenario()) < 30.0
