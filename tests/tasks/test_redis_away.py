"""A stage's work outlives a Redis that is away for a while, and an answer that got lost."""

from __future__ import annotations

import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.backoff import ConstantBackoff
from redis.retry import Retry
from stage_worker import Fleet, eventually, stage_worker

from prorl_celery.errors import FenceLost, StoreUnavailable
from prorl_celery.handlers.base import Handler
from prorl_celery.jobs.models import JobStatus
from prorl_celery.settings import Settings
from tasks import insistence
from tasks.process import StageProcess

Drive = Callable[..., JobStatus]


class Plain(Handler):
    """Does nothing, well."""

    data_source = "plain"
    uses_sandbox = False

    def rollout(self, ctx: Any) -> Any:
        return {}

    def eval(self, ctx: Any) -> Any:
        return {"reward": 1.0}


class Failing(Plain):
    """Its first two evals fail."""

    data_source = "failing"

    def __init__(self) -> None:
        self.evals = 0

    def eval(self, ctx: Any) -> Any:
        self.evals += 1
        if self.evals <= 2:
            raise ValueError("the first times")
        return {"reward": 1.0}


class LossyStore:
    """A process's store whose answers get lost: the first `times` of each of these steps."""

    def __init__(self, store: Any, times: int, *steps: str) -> None:
        self._store = store
        self._left = Counter(dict.fromkeys(steps, times))
        self.lost = 0

    def __getattr__(self, name: str) -> Any:
        step = getattr(self._store, name)

        def lossy(*arguments: Any, **named: Any) -> Any:
            answer = step(*arguments, **named)  # Redis has done it
            if self._left[name] > 0:
                self._left[name] -= 1
                self.lost += 1
                raise StoreUnavailable("Redis did not answer: the reply was lost")
            return answer

        return lossy


@pytest.mark.parametrize("steps", [("claim",), ("commit",), ("finish",), ("claim", "commit", "finish")])
def test_an_answer_that_got_lost_is_asked_for_again_and_changes_nothing(
    drive: Drive, process: StageProcess, steps: tuple[str, ...]
) -> None:
    store = process.store
    lossy: Any = LossyStore(store, 2, *steps)
    process.store = lossy
    status = drive(Plain())
    assert (status.state, status.reward, status.attempt) == ("completed", 1.0, 1)
    assert lossy.lost == 2 * len(steps)
    assert [result.job_id for result in store.results().results] == ["a"]


def test_a_lost_answer_to_a_failure_charges_one_try(drive: Drive, process: StageProcess) -> None:
    lossy: Any = LossyStore(process.store, 2, "fail")
    process.store = lossy
    handler = Failing()
    status = drive(handler, max_attempts=3)
    assert (status.state, status.attempt, handler.evals, lossy.lost) == ("completed", 1, 3, 2)


def test_who_is_fenced_out_while_redis_is_away_hears_of_it(process: StageProcess, drive: Drive) -> None:
    class Usurped(Plain):
        data_source = "usurped"

        def rollout(self, ctx: Any) -> Any:
            lease = process.store._client.zrange("prorl:leases", 0, -1)
            process.store._client.zrem("prorl:leases", *lease)
            process.beat._beat()
            return {}

    status = drive(Usurped(), most=2)
    assert (status.state, status.stage) == ("running", "rollout"), "its sweep has not come yet"


def test_insisting_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(insistence, "PAUSE_FIRST_SECONDS", 0.01)
    tries: list[float] = []

    def step() -> None:
        raise StoreUnavailable("gone")

    def pause(seconds: float) -> bool:
        tries.append(seconds)
        return len(tries) < 5

    with pytest.raises(StoreUnavailable):
        insistence.insist(step, pause)
    assert tries == [0.01, 0.02, 0.04, 0.08, 0.16]
    with pytest.raises(StoreUnavailable):
        insistence.insist(step, lambda _: True, seconds=0.0)

    def fenced(_: float) -> bool:
        raise FenceLost("another has it")

    with pytest.raises(FenceLost):
        insistence.insist(step, fenced)


class Server:
    """A Redis of a test's own, with an append-only file, that can be killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.socket = folder / "redis.sock"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = ["redis-server", "--port", "0", "--unixsocket", str(self.socket), "--save", "", "--dir"]
        command += [str(self.folder), "--appendonly", "yes", "--appendfsync", "always"]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        with redis.Redis(unix_socket_path=str(self.socket), retry=Retry(ConstantBackoff(0.05), 400)) as client:
            client.ping()

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(10)
            self.process = None


@pytest.fixture
def server(redis_socket: Path) -> Iterator[Server]:
    with tempfile.TemporaryDirectory(prefix="prorl-redis-") as folder:
        made = Server(Path(folder))
        made.start()
        yield made
        made.kill()


def test_a_stage_that_ends_while_redis_is_away_commits_when_it_is_back(server: Server, tmp_path: Path) -> None:
    settings = Settings(
        redis_url=f"unix://{server.socket}",
        node="n1",
        run_dir=tmp_path,
        data_dir=tmp_path,
        heartbeat_seconds=0.3,
        lease_seconds=60.0,
        rollout_processes=1,
        log_level="info",
    )
    fleet = Fleet(settings, tmp_path)
    with stage_worker(fleet, "rollout") as worker:
        fleet.rollout("a", "listen", seconds=2.0)
        assert eventually(lambda: fleet.noted("a", "began"))
        server.kill()
        assert eventually(lambda: fleet.noted("a", "done")), worker.says()
        assert eventually(lambda: "done again" in worker.says()), worker.says()
        server.start()
        assert eventually(lambda: fleet.stands("a", "queued", "eval")), worker.says()
        assert len(fleet.noted("a", "began")) == 1
        assert fleet.status("a").attempt == 1
        fleet.rollout("b", "nothing")
        assert eventually(lambda: fleet.stands("b", "queued", "eval"), 60), worker.says()
    fleet.close()
