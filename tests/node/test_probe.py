"""The leader's probe: who answers is up, who does not is down, whether it closed or hangs."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import redis

from prorl_celery.node.pause import until
from prorl_celery.node.probe import Probe
from prorl_celery.scheduling.backends import Backend, BackendRegistry
from prorl_celery.settings import Settings
from prorl_celery.testing import ScriptedBackend

GENEROUS_SECONDS = 30.0
LOOK = 0.05


@pytest.fixture
def registry(redis_client: redis.Redis, redis_settings: Settings) -> BackendRegistry:
    return BackendRegistry(redis_client, redis_settings)


@pytest.fixture
def probe(registry: BackendRegistry) -> Iterator[Probe]:
    probe = Probe(registry)
    probe.start()
    yield probe
    probe.stop()


@pytest.fixture
def backend(registry: BackendRegistry) -> Iterator[ScriptedBackend]:
    with ScriptedBackend(policy="answer") as backend:
        registry.put(Backend(url=backend.url, model="scripted", gives_ids=True))
        yield backend


def becomes(registry: BackendRegistry, url: str, state: str) -> float:
    """Seconds until it is so."""
    began = time.monotonic()

    def is_so() -> bool:
        record = registry.get(url)
        return record is not None and record.state == state

    assert until(is_so, GENEROUS_SECONDS, every=LOOK)
    return time.monotonic() - began


@pytest.mark.usefixtures("probe")
def test_a_backend_that_hangs_is_out_and_comes_back(registry: BackendRegistry, backend: ScriptedBackend) -> None:
    backend.freeze()
    took = becomes(registry, backend.url, "down")
    print(f"a hung backend was out after {took:.2f} s")
    backend.thaw()
    becomes(registry, backend.url, "up")


@pytest.mark.usefixtures("probe")
def test_a_backend_that_is_killed_is_out_and_comes_back(registry: BackendRegistry, backend: ScriptedBackend) -> None:
    backend.kill()
    took = becomes(registry, backend.url, "down")
    print(f"a closed backend was out after {took:.2f} s")
    backend.start()
    becomes(registry, backend.url, "up")


@pytest.mark.slow
@pytest.mark.usefixtures("probe")
def test_a_hung_backend_does_not_delay_the_news_of_another(registry: BackendRegistry, backend: ScriptedBackend) -> None:
    with ScriptedBackend(policy="answer") as other:
        backend.freeze()
        registry.put(Backend(url=other.url, model="scripted", state="down"))
        becomes(registry, other.url, "up")
        backend.thaw()


@pytest.mark.slow
@pytest.mark.usefixtures("probe")
def test_a_draining_backend_that_dies_is_out(registry: BackendRegistry, backend: ScriptedBackend) -> None:
    registry.set_state(backend.url, "draining")
    backend.kill()
    becomes(registry, backend.url, "down")


def test_only_the_leader_probes(registry: BackendRegistry, backend: ScriptedBackend) -> None:
    leads = False
    probe = Probe(registry, lambda: leads)
    registry.set_state(backend.url, "down")
    probe.start()
    try:
        assert not until(lambda: registry.get(backend.url).state == "up", 2.5, every=LOOK)  # type: ignore[union-attr]
        leads = True
        becomes(registry, backend.url, "up")
    finally:
        probe.stop()


def test_a_backend_tells_its_hit_rate(registry: BackendRegistry, backend: ScriptedBackend) -> None:
    for _ in range(4):
        backend._request("/v1/completions", {"model": "scripted", "prompt": list(range(100, 420)), "max_tokens": 1})
    probe = Probe(registry)
    probe.start()
    try:
        assert until(
            lambda: registry.get(backend.url).cache_hit_rate == 0.75,  # type: ignore[union-attr]
            GENEROUS_SECONDS,
            every=LOOK,
        )
    finally:
        probe.stop()
