"""Commands counted through MONITOR, on a real Redis."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from prorl_celery.testing.monitor import CommandCount


@pytest.fixture(scope="module")
def redis_socket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A Redis of our own, on a socket, with a password."""
    program = shutil.which("redis-server")
    if program is None:
        pytest.skip("no redis-server on the PATH")
    directory = tmp_path_factory.mktemp("redis")
    path = directory / "redis.sock"
    command = [program, "--port", "0", "--unixsocket", str(path), "--save", "", "--requirepass", "secret"]
    server = subprocess.Popen(command, cwd=directory, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    for line in server.stdout:
        if "eady to accept connections" in line:
            break
    yield path
    server.terminate()
    server.communicate(timeout=10)


def test_commands_of_clients_and_of_scripts_are_counted_apart(redis_socket: Path) -> None:
    url = f"unix://:secret@{redis_socket}?db=0"
    with redis.Redis.from_url(url) as client:
        client.set("before", 1)
        with CommandCount(url) as count:
            for i in range(50):
                client.set(f"key-{i}", "x" * 1000)
            client.eval("redis.call('INCR', KEYS[1]) return redis.call('GET', KEYS[1])", 1, "counter")
        client.set("after", 1)
    assert count.client_commands == 51
    assert count.script_commands == 2
    assert count.by_name == {"SET": 50, "EVAL": 1}
    assert count.script_by_name == {"INCR": 1, "GET": 1}
    assert 50_000 < count.bytes < 60_000


def test_many_commands_in_a_pipeline_are_all_counted(redis_socket: Path) -> None:
    url = f"unix://:secret@{redis_socket}?db=0"
    with redis.Redis.from_url(url) as client, CommandCount(url) as count:
        pipeline = client.pipeline(transaction=False)
        for i in range(20_000):
            pipeline.lpush("list", f'] "{i}\r\n')
        pipeline.execute()
    assert count.by_name["LPUSH"] == 20_000
    assert count.client_commands - 20_000 == count.by_name["CLIENT"] + count.by_name["HELLO"]


def test_a_wrong_password_is_an_error_that_says_so(redis_socket: Path) -> None:
    with pytest.raises((ConnectionError, redis.RedisError), match=r"(?i)password|auth"):
        with CommandCount(f"unix://:wrong@{redis_socket}"):
            pass


def test_an_error_inside_is_passed_on(redis_socket: Path) -> None:
    with pytest.raises(KeyError), CommandCount(f"unix://:secret@{redis_socket}"):
        raise KeyError("mine")
