"""Rollouts whose worker process is killed, or replaced, in the midst of them: another process of the node goes on, in
the same shell, and what comes out is what would have come out.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from stage_worker import BOOT, Fleet, StageWorker, eventually, message_in, stage_worker

from prorl_celery.bench.handlers import StepsHandler
from prorl_celery.handlers.registry import HandlerRegistry
from prorl_celery.jobs.messages import node_queue
from prorl_celery.jobs.models import JobRequest
from prorl_celery.jobs.turns import Turn
from prorl_celery.sandbox.base import SandboxHandle
from prorl_celery.sandbox.client import KeeperClient
from prorl_celery.sandbox.waiting import NeverCancelled
from prorl_celery.scheduling.backends import Backend
from prorl_celery.settings import Settings
from prorl_celery.testing import ScriptedBackend
from prorl_celery.testing.keeper import KeeperProcess
from tasks.process import StageProcess
from tasks.stages import run_stage

NODE = "n1"
PAIR = ("a", "b")
"""Two jobs: a process that is lost with one alone is held to be that one's fault."""

COMMANDS = ["cd /tmp; export X=5; echo 1 >> /workspace/steps", "{slow}", "echo 3 >> /workspace/steps; pwd; echo $X"]
SLOW = "echo 2 >> /workspace/steps; echo before; sleep {seconds}; echo after $X"
UNTIL_TOLD = "echo 2 >> /workspace/steps; echo before; while [ ! -e go ]; do sleep {seconds}; done; echo after $X"


@pytest.fixture
def backend(process: StageProcess) -> Iterator[ScriptedBackend]:
    with ScriptedBackend(policy="obey", record=200, latency=0.4) as backend:
        tokenizer = str(backend.tokenizer_dir)
        process.backends.put(Backend(url=backend.url, model="scripted", tokenizer=tokenizer, gives_ids=True))
        yield backend


class House:
    """A node with its keeper; the test is its supervisor, its sweep, and the processes for init and eval."""

    def __init__(self, process: StageProcess, fleet: Fleet, keeper: Settings) -> None:
        self.process = process
        self.store = process.store
        self.fleet = fleet
        self._keeper = keeper
        process.handlers = HandlerRegistry({"steps": StepsHandler()})

    def worker(self, **changes: Any) -> Any:
        """A worker process for rollout."""
        handlers = ("prorl_celery.bench.handlers:StepsHandler",)
        return stage_worker(self.fleet, "rollout", handlers=handlers, run_dir=self._keeper.run_dir, **changes)

    def begin(self, job_id: str, seconds: float, slow: str = SLOW) -> None:
        """Submit a job, do its init, and publish its rollout."""
        self.fleet.nodes.beat({"node": NODE, "boot": BOOT})
        commands = [command.format(slow=slow.format(seconds=seconds)) for command in COMMANDS]
        instance = {"data_source": "steps", "commands": commands, "steps": ["1", "2", "3"]}
        body = {"job_id": job_id, "instance": instance, "sampling_params": {"seed": 7}}
        (created,) = self.store.create([JobRequest.model_validate(body)])
        assert created.message is not None
        run_stage(self.process, "init", job_id, created.message.fence)
        outbox: Any = self.process.publisher
        message = outbox.messages.pop()
        assert message.queue == node_queue("rollout", NODE, BOOT)
        self.fleet.publisher.publish(message)

    def sweep(self) -> None:
        """As the node's upkeep does, until nothing of the two is held any more."""
        self.fleet.nodes.beat({"node": NODE, "boot": BOOT})
        for message in self.store.sweep().messages:
            self.fleet.publisher.publish(message)

    def lose(self, worker: StageWorker) -> None:
        """`kill -9` a worker; its jobs are queued anew."""
        lost = worker.record["id"]
        worker.process.kill()
        worker.ends()
        assert self.store.lapse(lost) == len(PAIR)
        self.sweep()

    def end(self, job_id: str) -> tuple[float | None, int]:
        """Wait for rollout's end, do eval; the job's reward and attempt."""

        def waiting() -> list[str]:
            return [message for message in message_in(self.fleet, "eval") if message.startswith(job_id)]

        assert eventually(waiting, 60.0), (self.store.status(job_id), self.logs())
        run_stage(self.process, "eval", job_id, int(waiting()[0].rpartition("/")[2]))
        status = self.store.status(job_id)
        assert status.state == "completed", status
        return status.reward, status.attempt

    def tell_to_go(self) -> None:
        """Let commands end that wait to be told; while nobody holds their sandboxes."""
        with NeverCancelled() as never:
            for one in self.process.keeper.list():
                handle = SandboxHandle(sandbox_id=one["sandbox_id"], kind=one["kind"], node=NODE, boot=BOOT)
                sandbox = self.process.keeper.attach(handle, cancel=never)
                sandbox.files.write("/tmp/go", b"")
                sandbox.close()

    def is_empty(self) -> bool:
        """Whether no sandbox is left."""
        return self.process.keeper.list() == []

    def logs(self) -> str:
        return "\n".join(path.read_text()[-3000:] for path in sorted(self.fleet.folder.glob("*.log")))


@pytest.fixture
def house(
    process: StageProcess, keeper: KeeperClient, keeper_process: KeeperProcess, fleet: Fleet, backend: ScriptedBackend
) -> House:
    return House(process, fleet, keeper_process.settings)


def what_counts(turns: list[Turn]) -> list[Turn]:
    """The turns without what no two rollouts have in common: their times, and what the cache held."""
    return [replace(turn, llm_s=0.0, tool_s=0.0, total_s=0.0, cached_tokens=None) for turn in turns]


def finished_calls(backend: ScriptedBackend, job_id: str) -> dict[str, int]:
    """Turn -> how often the backend sampled it to its end."""
    names = [call["request_id"] for call in backend.calls(200) if call["outcome"] in ("stop", "length")]
    return dict(Counter(name.split("-t")[1].split("-")[0] for name in names if f"{job_id}-t" in name))


def sleeps(seconds: float) -> int:
    """How many processes of this machine, in sandboxes too, are in `sleep SECONDS`."""
    wanted = f"sleep\0{seconds}\0".encode()
    count = 0
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            count += path.read_bytes().endswith(wanted)
        except OSError:
            continue  # it has ended
    return count


@pytest.mark.parametrize(("when", "seconds"), [("in a model call", 0.0271), ("in a command", 2.7182)])
def test_a_rollout_whose_worker_is_killed_goes_on_and_comes_out_as_one_that_was_not(
    house: House, backend: ScriptedBackend, when: str, seconds: float
) -> None:
    with house.worker() as worker:
        for job_id in PAIR:
            house.begin(job_id, seconds)
        if when == "in a command":
            assert eventually(lambda: sleeps(seconds) == len(PAIR)), worker.says()
        else:
            assert eventually(
                lambda: all(house.store.status(i).turns >= 1 for i in PAIR) and backend.stats()["live"] == len(PAIR)
            ), worker.says()
        house.lose(worker)
    with house.worker():
        for job_id in PAIR:
            assert house.end(job_id) == (1.0, 1), house.logs()
            assert finished_calls(backend, job_id) == {"0": 1, "1": 1, "2": 1, "3": 1}
        house.begin("plain", seconds)
        assert house.end("plain") == (1.0, 1)
        assert eventually(house.is_empty)
    plain = house.store.turns("plain")
    assert len(plain) == 4
    for job_id in PAIR:
        assert what_counts(house.store.turns(job_id)) == what_counts(plain)
        assert house.store.result(job_id).segments == house.store.result("plain").segments


def test_a_worker_that_is_told_to_stop_leaves_its_rollouts_to_the_next(house: House, backend: ScriptedBackend) -> None:
    seconds = 0.3142
    with house.worker(drain_seconds=0.2) as worker:
        for job_id in PAIR:
            house.begin(job_id, seconds, UNTIL_TOLD)
        assert eventually(lambda: sleeps(seconds) == len(PAIR)), worker.says()
        worker.tell(signal.SIGTERM)
        assert worker.ends() == 0, worker.says()
        assert eventually(lambda: sleeps(seconds) == len(PAIR)), "the commands under way have ended with the worker"
    house.tell_to_go()
    with house.worker():
        for job_id in PAIR:
            assert house.end(job_id) == (1.0, 1), house.logs()
            assert finished_calls(backend, job_id) == {"0": 1, "1": 1, "2": 1, "3": 1}
            (observed,) = house.store.turns(job_id)[1].messages[1:]
            assert observed["content"] == "before\nafter 5\n[exit code 0; working directory /tmp]"
        assert eventually(house.is_empty)


def test_the_time_of_all_its_claims_counts_against_the_stage(house: House) -> None:
    seconds = 29.97
    with house.worker() as worker:
        for job_id in PAIR:
            house.begin(job_id, seconds)
        assert eventually(lambda: sleeps(seconds) == len(PAIR)), worker.says()
        house.lose(worker)
    for job_id in PAIR:
        (message,) = [m for m in message_in(house.fleet, node_queue("rollout", NODE, BOOT)) if m.startswith(job_id)]
        fence = int(message.rpartition("/")[2])
        got = house.store.claim("rollout", job_id, fence, node=NODE, process="p", op="look")
        assert got is not None
        assert got.going_on
        # Two model calls of 0.4 s at least were part of it.
        assert 0.8 <= got.spent_s <= 30.0
