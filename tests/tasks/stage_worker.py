"""A real worker process of one stage, beside a test that is its supervisor, its sweep and the other stages."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from redis_fixtures import claim

from prorl_celery.app import Publisher, make_app
from prorl_celery.jobs.messages import Message
from prorl_celery.jobs.models import JobRequest, JobStatus
from prorl_celery.jobs.store import JobStore
from prorl_celery.node.requests import Requests
from prorl_celery.scheduling.nodes import NodeRegistry
from prorl_celery.settings import Settings
from prorl_celery.store.clients import script_client

BOOT = "boot"
WITHIN_S = 30.0
"""For what takes a second or two on a quiet machine."""

PROGRAM = """
import socket, sys
from prorl_celery.node.requests import SupervisorLine
from prorl_celery.settings import Settings
{before}
from tasks.worker import main
line = SupervisorLine(socket.socket(fileno=int(sys.argv[1])))
sys.exit(main(sys.argv[2], 0, sys.argv[3], Settings.from_env(), line))
"""


class Fleet:
    """What a test and its workers share: settings, store, queues."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self.settings = settings
        self.folder = folder
        self.client = script_client(settings)
        self.store = JobStore(self.client, settings)
        self.nodes = NodeRegistry(self.client, settings)
        self.publisher = Publisher(make_app(settings, boot=BOOT))

    def close(self) -> None:
        self.client.close()
        self.client.connection_pool.disconnect()

    def queued(self, job_id: str, do: str, *, queue: str = "rollout", seconds: float = 0.0, **fields: Any) -> Message:
        """The message, which nobody has published, of a job of `OddHandler` that waits for rollout."""
        instance = {"data_source": "odd", "do": do, "notes": str(self.folder), "seconds": seconds}
        body = {"job_id": job_id, "instance": instance, **fields}
        message = self.store.create([JobRequest.model_validate(body)])[0].message
        assert message is not None
        got = claim(self.store, message, op=f"0 init of {job_id}")
        output = {"sandboxes": {}, "handler": None}
        return self.store.commit(got, output, next_stage="rollout", queue=queue, worked_s=0.0)

    def rollout(self, job_id: str, do: str, **fields: Any) -> Message:
        """The same, published."""
        message = self.queued(job_id, do, **fields)
        self.publisher.publish(message)
        return message

    def sweep(self) -> list[str]:
        """Sweep as the leader does; the jobs that were queued again."""
        return [message.job_id for message in self.store.sweep().messages]

    def status(self, job_id: str) -> JobStatus:
        return self.store.status(job_id)

    def stands(self, job_id: str, state: str, stage: str) -> bool:
        status = self.store.status(job_id)
        return (status.state, status.stage) == (state, stage)

    def noted(self, job_id: str, what: str) -> list[int]:
        """The processes that left this note."""
        path = self.folder / f"{job_id}.{what}"
        return [int(line) for line in path.read_text().split()] if path.exists() else []


class StageWorker:
    """A worker process, and what it asks of its supervisor."""

    def __init__(self, fleet: Fleet, process: subprocess.Popen[bytes], requests: Requests, log: Path) -> None:
        self.fleet = fleet
        self.process = process
        self.log = log
        self._requests = requests
        self._asked: list[str] = []

    @property
    def asked(self) -> set[str]:
        """All it has asked for until now."""
        self._asked += [request.op for request in self._requests.read() if request.pid == self.process.pid]
        return set(self._asked)

    @property
    def record(self) -> dict[str, Any]:
        """Its line in the node's record, empty before its first word and after its last."""
        self.fleet.nodes.beat({"node": self.fleet.settings.node, "boot": BOOT})
        for node in self.fleet.nodes.nodes():
            for process in node["processes"]:
                if process["pid"] == self.process.pid:
                    return dict(process)
        return {}

    def tell(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def ends(self, within: float = WITHIN_S) -> int:
        """Its exit code, once it has ended."""
        try:
            return self.process.wait(within)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it did not end within {within} s\n{self.says()}") from None

    def says(self) -> str:
        """The end of its log, for a failure's message."""
        return self.log.read_text()[-6000:]


@contextmanager
def stage_worker(
    fleet: Fleet, stage: str, *, before: str = "", handlers: tuple[str, ...] = (), **changes: Any
) -> Iterator[StageWorker]:
    """Start a worker of a stage; kill what is left of it at the end. `before`: a line of Python for it to run first;
    `handlers`: those that it knows besides `OddHandler`.
    """
    odd = f"{Path(__file__).with_name('odd_handlers.py')}:OddHandler"
    settings = fleet.settings.with_(handlers=(odd, *handlers), **changes)
    env = {name: value for name, value in os.environ.items() if not name.startswith("PRORL_")} | settings.to_env()
    requests = Requests()
    theirs = requests.descriptors[1]
    log = fleet.folder / f"{stage}.{time.monotonic_ns()}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", PROGRAM.format(before=before), str(theirs), stage, BOOT],
            env=env | {"PYTHONPATH": str(Path(__file__).parents[2])},
            pass_fds=[theirs],
            stdout=output,
            stderr=output,
        )
    worker = StageWorker(fleet, process, requests, log)
    try:
        assert eventually(lambda: worker.record or process.poll() is not None), worker.says()
        assert process.poll() is None, worker.says()
        yield worker
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(10)
        requests.close()


def eventually(true: Callable[[], Any], seconds: float = WITHIN_S) -> bool:
    """Whether a condition comes true within these seconds."""
    deadline = time.monotonic() + seconds
    pause = threading.Event()
    while time.monotonic() < deadline:
        if true():
            return True
        pause.wait(0.02)
    return bool(true())


def message_in(fleet: Fleet, queue: str) -> list[str]:
    """The ids of the messages that wait in a queue of the broker, whatever their priority."""
    waiting = []
    for key in fleet.client.scan_iter(match=f"{queue}*"):
        if key.decode().split("\x06", 1)[0] == queue and fleet.client.type(key) == b"list":
            waiting += [json.loads(text)["headers"]["id"] for text in fleet.client.lrange(key, 0, -1)]
    return waiting
