"""Redis for tests: a real server on a Unix socket, one per session and flushed per test, and fakeredis.

`redis_url` and `redis_client` are the real one. `either_client` is both in turn, and so is `store` built on it.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fakeredis
import pytest
import redis
from redis.backoff import ConstantBackoff
from redis.retry import Retry

from prorl_celery.jobs.claims import Claim
from prorl_celery.jobs.messages import Message
from prorl_celery.jobs.models import JobRequest
from prorl_celery.jobs.store import JobStore
from prorl_celery.settings import Settings
from prorl_celery.store.clients import script_client


@pytest.fixture(scope="session")
def redis_socket() -> Iterator[Path]:
    """The socket of a redis-server that lives as long as the session."""
    binary = shutil.which("redis-server")
    if binary is None:
        pytest.skip("there is no redis-server on the PATH")
    with tempfile.TemporaryDirectory(prefix="prorl-redis-") as folder:
        path = Path(folder) / "redis.sock"
        process = subprocess.Popen(
            [binary, "--port", "0", "--unixsocket", str(path), "--save", "", "--dir", folder],
            stdout=subprocess.DEVNULL,
        )
        try:
            # The client itself waits for the socket to come: 10 s at most.
            with redis.Redis(unix_socket_path=str(path), retry=Retry(ConstantBackoff(0.05), 200)) as client:
                client.ping()
            yield path
        finally:
            process.terminate()
            process.wait(timeout=10)


@pytest.fixture
def redis_url(redis_socket: Path) -> str:
    """The url of the real server, emptied."""
    with redis.Redis(unix_socket_path=str(redis_socket)) as client:
        client.flushall()
        client.script_flush()
    return f"unix://{redis_socket}"


@pytest.fixture
def redis_settings(redis_url: str) -> Settings:
    """Settings that name the real server."""
    return Settings(redis_url=redis_url, node="n1")


@pytest.fixture
def redis_client(redis_settings: Settings) -> Iterator[redis.Redis]:
    """The script client of the real server."""
    client = script_client(redis_settings)
    yield client
    client.close()
    client.connection_pool.disconnect()


@pytest.fixture
def redis_store(redis_client: redis.Redis, redis_settings: Settings) -> JobStore:
    """A job store on the real server."""
    return JobStore(redis_client, redis_settings)


@pytest.fixture(params=["fake", "real"])
def either_client(request: pytest.FixtureRequest) -> Iterator[redis.Redis]:
    """A client of fakeredis, then one of the real server."""
    if request.param == "real":
        yield request.getfixturevalue("redis_client")
    else:
        with fakeredis.FakeRedis(server=fakeredis.FakeServer()) as client:
            yield client


@pytest.fixture
def make_store(either_client: redis.Redis) -> Callable[..., JobStore]:
    """Makes job stores on `either_client` with some settings changed."""

    def make(**changes: Any) -> JobStore:
        return JobStore(either_client, Settings(node="n1", **changes))

    return make


@pytest.fixture
def store(make_store: Callable[..., JobStore]) -> JobStore:
    """A job store on fakeredis, then on the real server."""
    return make_store()


def request(job_id: str = "a", **fields: Any) -> JobRequest:
    """A small job."""
    body: dict[str, Any] = {"job_id": job_id, "instance": {"data_source": "noop", "instance_id": "i"}, **fields}
    return JobRequest.model_validate(body)


def submit(store: JobStore, job_id: str = "a", **fields: Any) -> Message:
    """Create a small job; returns its message."""
    message = store.create([request(job_id, **fields)])[0].message
    assert message is not None
    return message


def claim(store: JobStore, message: Message, *, node: str = "n1", process: str = "p1", op: str = "op") -> Claim:
    """Claim what a message names, which must work."""
    got = store.claim(message.stage, message.job_id, message.fence, node=node, process=process, op=op)
    assert got is not None
    return got


def to_rollout(store: JobStore, job_id: str = "a", **fields: Any) -> Claim:
    """A job that runs in rollout."""
    init = claim(store, submit(store, job_id, **fields))
    return claim(store, store.commit(init, {"ready": True}, next_stage="rollout", queue="rollout", worked_s=0.5))


def to_eval(store: JobStore, job_id: str = "a", **fields: Any) -> Claim:
    """A job that runs in eval."""
    rollout = to_rollout(store, job_id, **fields)
    return claim(store, store.commit(rollout, {"answer": "x"}, next_stage="eval", queue="eval", worked_s=0.5))


def complete(store: JobStore, job_id: str = "a", **fields: Any) -> None:
    """A job that has ended well."""
    store.finish(to_eval(store, job_id, **fields), state="completed", finish_reason="stop", reward=1.0, worked_s=0.1)


def snapshot(client: redis.Redis) -> dict[str, Any]:
    """The whole keyspace, as values that can be compared."""
    readers: dict[bytes, Callable[[bytes], Any]] = {
        b"hash": client.hgetall,
        b"string": client.get,
        b"list": lambda key: client.lrange(key, 0, -1),
        b"set": client.smembers,
        b"zset": lambda key: dict(client.zrange(key, 0, -1, withscores=True)),
        b"stream": lambda key: client.xrange(key),
    }
    return {key.decode(errors="backslashreplace"): readers[client.type(key)](key) for key in client.keys("*")}
