"""F16 at the store: steps that are under way when Redis stands still are done once, whoever waits for them.

Each is sent again after 5 s, so that Redis finds it twice when it goes on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from e2e_service import eventually
from fault_redis import VOLATILE, Server, served, wire_to
from redis_fixtures import claim, submit, to_rollout

from prorl_celery.errors import StoreUnavailable
from prorl_celery.jobs.claims import Claim
from prorl_celery.jobs.store import JobStore
from prorl_celery.jobs.turns import Turn
from prorl_celery.scheduling.backends import Backend, BackendRegistry
from prorl_celery.settings import Settings
from prorl_celery.store.clients import FREE_SECONDS, SCRIPT_CONNECTIONS, blocking_client, script_client
from prorl_celery.store.connections import open_connections
from prorl_celery.store.keys import Keys
from tasks.listener import Listener
from web.following import Following
from web.waiters import Waiters, Watch

STALL_S = 6.5
"""Longer than a reply is waited for."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with served(Server(tmp_path_factory.mktemp("redis"), *VOLATILE)) as server:
        yield server


@pytest.fixture
def settings(server: Server) -> Settings:
    with server.client() as client:
        client.flushall()
    return Settings(redis_url=server.url, node="n1", lease_seconds=60.0)


@pytest.mark.slow
def test_f16_every_step_that_a_stall_has_sent_twice_is_done_once(server: Server, settings: Settings) -> None:
    client = script_client(settings)
    store, backends = JobStore(client, settings), BackendRegistry(client, settings)
    backends.put(Backend(url="http://a", model="m"))
    running = {
        step: to_rollout(store, step) for step in ("acquire", "append", "commit", "hand-back", "release", "fail")
    }
    message = submit(store, "claim")
    assert backends.acquire("release", running["release"].fence, model="m", mode=None)
    ending = {"next_stage": "eval", "queue": "eval", "worked_s": 1.0}
    steps: list[Any] = [
        lambda: backends.acquire("acquire", running["acquire"].fence, model="m", mode=None),
        lambda: store.append_turn(running["append"], Turn(index=0)),
        lambda: store.commit(running["commit"], {}, **ending),
        lambda: store.commit(running["release"], {}, **ending),
        lambda: store.hand_back(running["hand-back"], worked_s=1.0, waited_s=0.0),
        lambda: claim(store, message),
        lambda: store.cancel("fail"),
    ]
    with ThreadPoolExecutor(len(steps)) as pool:
        with server.frozen():
            began = time.monotonic()
            asked = [pool.submit(step) for step in steps]
            threading.Event().wait(STALL_S)
        answers = [one.result(timeout=30) for one in asked]
    assert time.monotonic() - began >= STALL_S
    assert isinstance(answers[5], Claim)
    with server.client() as direct:
        assert direct.smembers("prorl:assigned:http://a") == {b"acquire"}
        assert direct.zscore("prorl:heap:m", "http://a") == 1.0
        assert direct.llen("prorl:turns:append") == 1
        assert {name: int(direct.hget(f"prorl:job:{name}", "r_rollout")) for name in ("commit", "hand-back")} == {
            "commit": 1000, "hand-back": 1000,
        }  # fmt: skip
        assert direct.zcard("prorl:queued:3:eval") == 2
        assert sorted(direct.zrange("prorl:cancels", 0, -1)) == [b"fail"]
        assert direct.hget("prorl:job:claim", "fence") == str(answers[5].fence).encode()


@pytest.mark.slow
def test_more_threads_than_connections_wait_for_one_while_redis_stands_still(
    server: Server, settings: Settings
) -> None:
    others = open_connections()  # of other tests in this process
    store = JobStore(script_client(settings), settings)
    held = [to_rollout(store, f"j{number}") for number in range(3 * SCRIPT_CONNECTIONS)]
    with ThreadPoolExecutor(len(held)) as pool:
        with server.frozen():
            beats = [pool.submit(store.heartbeat, [(one.job_id, one.fence)]) for one in held]
            threading.Event().wait(STALL_S)
            assert open_connections() <= others + SCRIPT_CONNECTIONS
        assert all(beat.result(timeout=30).lost == set() for beat in beats)


@pytest.mark.slow
def test_a_wait_for_a_connection_ends_with_a_typed_error(server: Server, settings: Settings) -> None:
    store = JobStore(script_client(settings, connections=1), settings)
    store.counts()
    with ThreadPoolExecutor(2) as pool, server.frozen():
        began = time.monotonic()
        for one in [pool.submit(store.counts) for _ in range(2)]:
            with pytest.raises(StoreUnavailable):
                one.result(timeout=60)
        assert time.monotonic() - began < 2 * FREE_SECONDS + 10


@pytest.mark.slow
def test_f20_a_subscription_whose_other_end_is_gone_without_a_word_is_made_anew(
    server: Server, settings: Settings, tmp_path: Path
) -> None:
    with wire_to(server) as wire, server.client() as direct:
        heard: list[str] = []
        far = settings.with_(redis_url=wire.url)
        listener = Listener(blocking_client(far), {"prorl:cancel": heard.append})
        listener.start()
        try:
            assert eventually(lambda: direct.publish("prorl:cancel", "before") == 1, 10)
            with wire.silent():
                threading.Event().wait(1.0)
            assert eventually(lambda: bool(direct.publish("prorl:cancel", "after")) and "after" in heard, 60)
        finally:
            listener.stop()


@pytest.mark.slow
def test_f20_who_follows_events_hears_again_when_the_other_end_was_gone_without_a_word(
    server: Server, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("web.following.LISTEN_SECONDS", 1.0)
    with wire_to(server) as wire, server.client() as direct:
        following = Following(blocking_client(settings.with_(redis_url=wire.url)), Keys(settings.key_prefix))
        watch = Watch(Waiters(NoStream(), limit=1), "a")

        def told() -> bool:
            direct.publish("prorl:event:a", "x")
            return watch.wait(0.1)

        try:
            following.follow(watch, 10)
            assert eventually(told, 10)
            with wire.silent():
                threading.Event().wait(1.0)
            while watch.wait(0.1):
                pass
            assert eventually(told, 60)
        finally:
            following.leave(watch)
            following.close()


class NoStream:
    """No job ends."""

    def end(self) -> str:
        return "0"

    def read(self, after: str, timeout: float) -> tuple[list[str], str]:
        return [], after
