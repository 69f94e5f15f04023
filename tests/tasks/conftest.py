"""A stage process that serves in the test's own thread: no Celery, no broker, a real store."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from stage_worker import Fleet

from prorl_celery.handlers.base import Handler
from prorl_celery.handlers.registry import HandlerRegistry
from prorl_celery.jobs.messages import Message
from prorl_celery.jobs.models import JobRequest, JobStatus
from prorl_celery.sandbox.client import KeeperClient
from prorl_celery.settings import Settings
from prorl_celery.testing.keeper import KeeperProcess
from tasks.nursery import Nursery
from tasks.process import StageProcess
from tasks.stages import run_stage

NODE, BOOT = "n1", "boot"


class Outbox:
    """A publisher that keeps what it is given."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.before_each_stage: list[Callable[[], None]] = []

    def publish(self, message: Message) -> None:
        self.messages.append(message)


@pytest.fixture
def process(redis_settings: Settings) -> Iterator[StageProcess]:
    """A process that works on all stages' messages when it is told to."""
    nursery = Nursery()
    process = StageProcess("init", 0, BOOT, redis_settings, nursery, HandlerRegistry({}))
    process.publisher = Outbox()  # type: ignore[assignment]
    yield process
    process.models.stop()
    nursery.close()


@pytest.fixture(scope="module")
def keeper_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KeeperProcess]:
    """A real keeper, with four places for jobs."""
    settings = Settings(run_dir=tmp_path_factory.mktemp("run"), node=NODE, rollout_slots=3, init_ahead=1)
    with KeeperProcess(settings, boot=BOOT) as running:
        yield running


@pytest.fixture
def keeper(process: StageProcess, keeper_process: KeeperProcess) -> Iterator[KeeperClient]:
    """That keeper, without sandboxes, on a node that lives."""
    keeper = process.keeper = keeper_process.client
    outbox: Any = process.publisher
    outbox.before_each_stage.append(lambda: process.nodes.beat({"node": NODE, "boot": BOOT}))
    yield keeper
    for left in keeper.list():
        keeper.stop(left["sandbox_id"])


@pytest.fixture
def eval_works_here(process: StageProcess) -> None:
    """The node has a process for eval."""
    record = {"name": "eval-0", "stage": "eval", "pid": 1, "slots": 1, "busy": 0, "handlers": []}
    outbox: Any = process.publisher
    outbox.before_each_stage.append(lambda: process.nodes.beat_process(NODE, BOOT, record))


@pytest.fixture
def drive(process: StageProcess) -> Callable[..., JobStatus]:
    """Runs a job of a handler through its stages, to its end or for `most` stages."""

    def run(handler: Handler, most: int = 20, **fields: Any) -> JobStatus:
        process.handlers = HandlerRegistry({handler.data_source: handler})
        body = {"job_id": "a", "instance": {"data_source": handler.data_source}, **fields}
        message = process.store.create([JobRequest.model_validate(body)])[0].message
        outbox: Any = process.publisher
        while message is not None and most > 0:
            most -= 1
            for act in outbox.before_each_stage:
                act()
            run_stage(process, message.stage, message.job_id, message.fence)
            message = outbox.messages.pop() if outbox.messages else None
        if message is not None:
            outbox.messages.append(message)
        return process.store.status("a")

    return run


@pytest.fixture
def fleet(redis_settings: Settings, tmp_path: Path) -> Iterator[Fleet]:
    """A store and queues for real workers, with quick times."""
    quick = redis_settings.with_(
        run_dir=tmp_path,
        data_dir=tmp_path,
        heartbeat_seconds=0.3,
        lease_seconds=3.0,
        wedge_grace_seconds=1.0,
        rollout_slots=4,
        rollout_processes=1,
        log_level="info",
    )
    made = Fleet(quick, tmp_path)
    yield made
    made.close()
