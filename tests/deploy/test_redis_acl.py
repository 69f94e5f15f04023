"""`deploy/redis/users.acl`: with these rights and no others, the API, a worker and Flower do their work."""

from __future__ import annotations

import contextlib
import hashlib
import re
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from prorl_celery.client import Client
from prorl_celery.errors import ApiError
from prorl_celery.node.redis_server import wait_for_redis
from prorl_celery.settings import Settings
from prorl_celery.testing import ScriptedBackend

EXAMPLE = Path(__file__).parents[2] / "deploy" / "redis" / "users.acl"
PRORL = str(Path(sys.executable).with_name("prorl"))
WAIT_S = 60.0

PASSWORDS = {user: secrets.token_hex(16) for user in ("operator", "api", "worker", "flower")}


def until(true: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < deadline, f"not within {WAIT_S} s: {what}"
        select.poll().poll(100)


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


@pytest.fixture
def guarded() -> Iterator[int]:
    """The port of a Redis with the example's users."""
    server = shutil.which("redis-server")
    if server is None:
        pytest.skip("there is no redis-server on the PATH")
    text = EXAMPLE.read_text()
    for user, password in PASSWORDS.items():
        text = re.sub(rf"(?m)^(user {user} on) #\S+", rf"\1 #{hashlib.sha256(password.encode()).hexdigest()}", text)
    with tempfile.TemporaryDirectory(prefix="prorl-acl") as folder:
        users = Path(folder, "users.acl")
        users.write_text(text)
        [port] = free_ports(1)
        options = ["--port", str(port), "--bind", "127.0.0.1", "--aclfile", str(users), "--save", "", "--dir", folder]
        process = subprocess.Popen([server, *options], stdout=subprocess.DEVNULL)
        try:
            until(lambda: wait_for_redis(url_of("operator", port), 1.0), "Redis answers")
            yield port
        finally:
            process.terminate()
            process.wait(10)


def url_of(user: str, port: int) -> str:
    return f"redis://{user}:{PASSWORDS[user]}@127.0.0.1:{port}/0"


@contextlib.contextmanager
def part(user: str, port: int, folder: Path, *arguments: str, **environ: str) -> Iterator[None]:
    """A part of the service, with its user's url."""
    settings = {
        "PRORL_REDIS_URL": url_of(user, port),
        "PRORL_RUN_DIR": tempfile.gettempdir() + f"/prorl-acl-{port}",
        "PRORL_DATA_DIR": str(folder),
        "PRORL_TASK_EVENTS": "1",
        "PRORL_ROLLOUT_PROCESSES": "1",
        "PRORL_DRAIN": "1",
    }
    env = {"PATH": "/usr/bin:/bin"} | settings | environ
    with (folder / f"{user}.log").open("wb") as log:
        process = subprocess.Popen([PRORL, *arguments], env=env, cwd=folder, stdout=log, stderr=log)
    try:
        yield
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0
    finally:
        process.kill()
        process.wait(WAIT_S)
        shutil.rmtree(settings["PRORL_RUN_DIR"], ignore_errors=True)


@pytest.mark.e2e
def test_each_part_works_with_the_rights_of_its_user_alone(guarded: int, tmp_path: Path) -> None:
    port, flower_port = free_ports(2)
    with contextlib.ExitStack() as stack:
        operator = stack.enter_context(redis.Redis.from_url(url_of("operator", guarded)))
        stack.enter_context(part("api", guarded, tmp_path, "api", "--port", str(port)))
        stack.enter_context(part("worker", guarded, tmp_path, "worker", "--init", "1", "--rollout", "2", "--eval", "1"))
        backend = stack.enter_context(ScriptedBackend(policy="solve"))
        client = stack.enter_context(Client(f"http://127.0.0.1:{port}"))

        def workers() -> int:
            with contextlib.suppress(ApiError):
                return sum(len(node["processes"]) for node in client.nodes())
            return 0

        until(lambda: workers() == 3, "the worker's stages are there")
        password = {"FLOWER_BASIC_AUTH": "me:hunter2"}
        stack.enter_context(part("flower", guarded, tmp_path, "flower", "--port", str(flower_port), **password))
        listing = urllib.request.Request(
            f"http://127.0.0.1:{flower_port}/api/workers", headers={"Authorization": "Basic bWU6aHVudGVyMg=="}
        )

        def listed() -> str:
            with contextlib.suppress(urllib.error.URLError), urllib.request.urlopen(listing, timeout=10) as answer:
                text: str = answer.read().decode()
                return text
            return ""

        until(lambda: all(f"{stage}-0." in listed() for stage in ("init", "rollout", "eval")), "Flower lists them")
        assert PASSWORDS["worker"] not in listed()
        client.add_backend(url=backend.url, model="scripted", tokenizer=str(backend.tokenizer_dir))
        task = {"data_source": "code", "instance_id": "x", "prompt": "p", "tests": [{"input": "", "output": ""}]}
        assert client.wait(client.submit({"instance": task}).job_id, timeout=60).state == "completed"
        refused = [(entry["username"], entry["reason"], entry["object"]) for entry in operator.acl_log()]
        assert refused == []


def test_flower_reads_no_job_and_the_api_claims_none(guarded: int) -> None:
    forbidden = {
        "flower": [("GET", "prorl:seq"), ("LPUSH", "init", "x"), ("PUBLISH", "prorl:cancel", "x")],
        "api": [("RPOP", "rollout"), ("HGETALL", "unacked"), ("PUBLISH", "/0.celery.pidbox", "x")],
        "worker": [("FLUSHALL",), ("CONFIG", "GET", "*"), ("KEYS", "*"), ("SET", "other", "x")],
    }
    for user, commands in forbidden.items():
        with redis.Redis.from_url(url_of(user, guarded)) as client:
            for command in commands:
                with pytest.raises(redis.exceptions.NoPermissionError):
                    client.execute_command(*command)
    with redis.Redis(port=guarded) as stranger, pytest.raises(redis.exceptions.AuthenticationError):
        stranger.ping()


def test_the_example_as_it_is_lets_nobody_in() -> None:
    """Its digests are placeholders that Redis refuses, so that nobody runs with a published password."""
    assert all(not re.fullmatch(r"[0-9a-f]{64}", digest) for digest in re.findall(r"#(\S+)", EXAMPLE.read_text()))
    assert f"~{Settings().key_prefix}*" in EXAMPLE.read_text()


def test_the_api_may_ask_how_full_redis_is_and_for_nothing_else_of_the_server(guarded: int) -> None:
    with redis.Redis(port=guarded, username="api", password=PASSWORDS["api"], protocol=2) as client:
        assert client.info("memory")["used_memory"] > 0
        with pytest.raises(redis.ResponseError):
            client.config_get("maxmemory")
