"""The API on a real Redis: within the test's process, or served by gunicorn in processes of its own."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from flask import Flask
from flask.testing import FlaskClient
from web_helpers import HANDLERS, REDIS, Recorder, RedisProcess, Served

from prorl_celery.jobs.store import JobStore
from prorl_celery.scheduling.backends import BackendRegistry
from prorl_celery.scheduling.nodes import NodeRegistry
from prorl_celery.scheduling.policy import PolicyRegistry
from prorl_celery.settings import Settings
from prorl_celery.store.clients import blocking_client, script_client
from prorl_celery.store.keys import Keys
from web import create_app
from web.ended import ResultsStream
from web.following import Following
from web.heeding import Heeding


@pytest.fixture(scope="session")
def redis_process() -> Iterator[RedisProcess]:
    if REDIS is None:
        pytest.skip("no redis-server on the PATH")
    with tempfile.TemporaryDirectory(prefix="prorl-w") as folder:
        server = RedisProcess(Path(folder))
        server.start()
        yield server
        server.kill()


@pytest.fixture
def settings(redis_process: RedisProcess, tmp_path: Path) -> Settings:
    with redis.Redis.from_url(redis_process.url) as client:
        client.flushall()
    return Settings(redis_url=redis_process.url, run_dir=tmp_path / "run", data_dir=tmp_path / "data")


@pytest.fixture
def raw_redis(redis_process: RedisProcess) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_process.url) as client:
        yield client


@pytest.fixture
def publisher() -> Recorder:
    return Recorder()


@pytest.fixture
def store(settings: Settings) -> Iterator[JobStore]:
    with script_client(settings) as client:
        yield JobStore(client, settings)
        client.connection_pool.disconnect()


@pytest.fixture
def make(settings: Settings, publisher: Recorder, raw_redis: redis.Redis) -> Iterator[Callable[..., Flask]]:
    """Makes applications whose listeners and connections end with the test."""
    made: list[tuple[Flask, list[redis.Redis]]] = []

    def factory(**changes: Any) -> Flask:
        own = settings.with_(**changes)
        scripts, blocking = script_client(own), blocking_client(own)
        app = create_app(
            own,
            store=JobStore(scripts, own),
            backend_registry=BackendRegistry(scripts, own),
            node_registry=NodeRegistry(scripts, own),
            policy_registry=PolicyRegistry(scripts, own),
            heeding=Heeding(PolicyRegistry(scripts, own), blocking),
            handlers=HANDLERS,
            publisher=publisher,
            ended=ResultsStream(blocking, own),
            following=Following(blocking, Keys(own.key_prefix)),
        )
        made.append((app, [scripts, blocking]))
        return app

    yield factory
    for app, clients in made:
        waiters = app.extensions["prorl"].waiters
        waiters.close()
        if waiters._listener is not None:
            # Its blocking read ends with the next job that does.
            raw_redis.xadd(settings.key_prefix + "results", {"job": "the-last"})
            waiters._listener.join(20)
            assert not waiters._listener.is_alive()
        following = app.extensions["prorl"].following
        following.close()
        if following._listener is not None:
            following._listener.join(20)
            assert not following._listener.is_alive()
        for client in clients:
            client.connection_pool.disconnect()


@pytest.fixture
def app(make: Callable[..., Flask]) -> Flask:
    return make()


@pytest.fixture
def api(app: Flask) -> FlaskClient:
    return app.test_client()


@pytest.fixture
def serve(settings: Settings) -> Iterator[Callable[..., Served]]:
    """Serves the API with these changes to its settings."""
    served: list[Served] = []

    def start(**changes: Any) -> Served:
        served.append(Served(settings.with_(**changes)))
        return served[-1].ready()

    yield start
    for one in served:
        one.stop()
