"""What the API's tests share: a Redis to kill, handlers, a publisher that records, an API served by gunicorn."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import redis

from prorl_celery.errors import BadInstance
from prorl_celery.handlers.base import Handler, require
from prorl_celery.handlers.registry import HandlerRegistry
from prorl_celery.jobs.messages import Message
from prorl_celery.jobs.store import JobStore
from prorl_celery.settings import Settings

REDIS = shutil.which("redis-server")


class RedisProcess:
    """A real server on a Unix socket, which tests may kill and start again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"unix://{folder}/redis.sock"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        assert REDIS is not None
        arguments = [
            "--port",
            "0",
            "--unixsocket",
            f"{self.folder}/redis.sock",
            "--save",
            "",
            "--dir",
            str(self.folder),
        ]
        arguments += ["--appendonly", "yes", "--appendfsync", "always"]
        self.process = subprocess.Popen([REDIS, *arguments], stdout=subprocess.DEVNULL)
        with redis.Redis.from_url(self.url) as client:
            until(lambda: answers(client), 20)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(10)
            self.process = None


def answers(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.exceptions.ConnectionError:
        return False


def until(condition: Callable[[], Any], seconds: float) -> Any:
    """Wait for a condition of another process, which cannot tell us."""
    deadline = time.monotonic() + seconds
    pause = threading.Event()
    while not (value := condition()):
        assert time.monotonic() < deadline, "it did not come to pass"
        pause.wait(0.01)
    return value


class Echo(Handler):
    """A task kind that wants a `text`."""

    data_source = "echo"

    def validate(self, instance: Mapping[str, Any]) -> None:
        if require(instance, "text") == "":
            raise BadInstance("'text' is empty", field="text")


class Clumsy(Handler):
    """A task kind whose check stumbles."""

    data_source = "clumsy"

    def validate(self, instance: Mapping[str, Any]) -> None:
        raise KeyError("nobody thought of this")


HANDLERS = HandlerRegistry({"echo": Echo(), "clumsy": Clumsy(), "family/*": Echo()})


class Recorder:
    """Takes messages, and fails where told to."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.error: Exception | None = None

    def publish_all(self, messages: list[Message]) -> None:
        if self.error is not None:
            raise self.error
        self.messages += messages


def a_job(job_id: str | None = None, **more: Any) -> dict[str, Any]:
    job = {"instance": {"data_source": "echo", "text": "hello"}, **more}
    return job if job_id is None else {"job_id": job_id, **job}


def run_to_its_end(store: JobStore, job_id: str, *, reward: float = 1.0, state: str = "completed") -> None:
    """What the three workers do with a job."""
    fence = 0
    claim = None
    for stage, following in (("init", "rollout"), ("rollout", "eval"), ("eval", None)):
        claim = store.claim(stage, job_id, fence, node="n", process="p", op=f"{stage}-{job_id}")
        assert claim is not None
        if following is not None:
            message = store.commit(claim, {}, next_stage=following, queue=following, worked_s=0.1)
            fence = message.fence
    assert claim is not None
    store.finish(claim, state=state, finish_reason="finish", reward=reward, resolved=True, worked_s=0.1)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Served:
    """An API served by gunicorn."""

    def __init__(self, settings: Settings, *, port: int = 0) -> None:
        """On a free port, or on this one: that of an API that was killed."""
        self.port = port or free_port()
        self.settings = settings.with_(port=self.port, handlers=(f"{__file__}:Echo",))
        code = "from prorl_celery.settings import Settings\nfrom web.serve import main\n"
        code += "main(Settings.from_env(), stall_seconds=2)"
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PRORL_")}
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", code], env={**environment, **self.settings.to_env()}, start_new_session=True
        )
        self.url = f"http://127.0.0.1:{self.port}"

    def ready(self) -> Served:
        until(self._answers, 30)
        return self

    def _answers(self) -> bool:
        assert self.process.poll() is None, "the API ended"
        try:
            return self.get("/healthz")[0] == 200
        except OSError:
            return False

    def workers(self) -> list[int]:
        path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        if path.exists():
            return [int(pid) for pid in path.read_text().split()]
        found = subprocess.run(["pgrep", "-P", str(self.process.pid)], capture_output=True, text=True, check=False)
        return [int(pid) for pid in found.stdout.split()]

    def call(
        self, method: str, path: str, body: Any = None, *, headers: Mapping[str, str] | None = None, timeout: float = 90
    ) -> tuple[int, Any]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
            connection.request(method, path, data, {"Content-Type": "application/json", **(headers or {})})
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        finally:
            connection.close()

    def get(self, path: str, *, timeout: float = 90) -> tuple[int, Any]:
        return self.call("GET", path, timeout=timeout)

    def stop(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(10)
