"""A node's upkeep as a process of its own: deaths that it sees, an earlier boot that it follows, what it asks for."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis
from redis_fixtures import claim, submit
from supervised_help import DEADLINE_S, until

from prorl_celery.jobs.claims import Claim
from prorl_celery.jobs.models import Stage
from prorl_celery.jobs.store import JobStore
from prorl_celery.node.deaths import Deaths, machine
from prorl_celery.scheduling.nodes import NodeRegistry
from prorl_celery.settings import Settings

LONG_S = 300.0
"""A lease that does not lapse by itself in a test."""
Sleeper = Callable[[], subprocess.Popen[bytes]]
Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def settings(redis_url: str, tmp_path: Path) -> Settings:
    return Settings(redis_url=redis_url, node="n1", run_dir=tmp_path, lease_seconds=LONG_S, sweep_seconds=0.2)


@pytest.fixture
def store(redis_client: redis.Redis, settings: Settings) -> JobStore:
    return JobStore(redis_client, settings)


@pytest.fixture
def nodes(redis_client: redis.Redis, settings: Settings) -> NodeRegistry:
    return NodeRegistry(redis_client, settings)


@pytest.fixture
def upkeep(settings: Settings) -> Iterator[Start]:
    """Starts an upkeep: a child of ours, so that our other children are its siblings."""
    started: list[subprocess.Popen[bytes]] = []
    env = {name: value for name, value in os.environ.items() if not name.startswith("PRORL_")} | settings.to_env()

    def start(boot: str = "b1", *, alone: bool = True) -> subprocess.Popen[bytes]:
        program = (
            ["-P", "-c", "import sys; from prorl_celery.node.upkeep import main; from prorl_celery.settings import *;"
             "sys.exit(main(sys.argv[1], Settings.from_env()))"]
            if alone
            else [str(Path(__file__).with_name("upkeep_program.py"))]
        )  # fmt: skip
        started.append(subprocess.Popen([sys.executable, *program, boot], env=env, stdout=subprocess.PIPE, bufsize=0))
        return started[-1]

    yield start
    for process in started:
        process.terminate()
        try:
            process.wait(DEADLINE_S)
        finally:
            process.kill()
            process.wait(DEADLINE_S)
        assert process.stdout
        process.stdout.close()


@pytest.fixture
def sleeper() -> Iterator[Sleeper]:
    """Starts processes that do nothing."""
    started: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen(["sleep", "1000"]))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait(DEADLINE_S)


def record(process: str, pid: int, stage: str = "rollout") -> dict[str, object]:
    return {"id": process, "name": process.split()[2], "stage": stage, "pid": pid, "busy": 1, "handlers": []}


def rollout_in(store: JobStore, process: str, *jobs: str) -> list[Claim]:
    """Jobs that run in rollout in this process."""
    claims = []
    for job in jobs:
        init = claim(store, submit(store, job), process="n1 b0 init-0 1")
        message = store.commit(init, {}, next_stage="rollout", queue="rollout", worked_s=0)
        claims.append(claim(store, message, process=process))
    return claims


def stands_at(store: JobStore, job: str, state: str, stage: Stage) -> bool:
    status = store.status(job)
    return (status.state, status.stage) == (state, stage)


def test_jobs_of_a_process_that_dies_go_on_at_once_whatever_their_leases(
    store: JobStore, nodes: NodeRegistry, upkeep: Start, sleeper: Sleeper
) -> None:
    victim, neighbour = sleeper(), sleeper()
    rollout_in(store, "n1 b1 rollout-0 v", "a", "b")
    rollout_in(store, "n1 b1 rollout-1 n", "c")
    nodes.beat_process("n1", "b1", record("n1 b1 rollout-0 v", victim.pid))
    nodes.beat_process("n1", "b1", record("n1 b1 rollout-1 n", neighbour.pid))
    upkeep()
    until(nodes.nodes, "the node is there")
    assert stands_at(store, "a", "running", "rollout")
    victim.kill()
    until(lambda: all(stands_at(store, job, "queued", "rollout") for job in "ab"), "both are queued to go on")
    assert {store.status(job).attempt for job in "ab"} == {1}
    assert stands_at(store, "c", "running", "rollout")
    assert [process["id"] for process in nodes.nodes()[0]["processes"]] == ["n1 b1 rollout-1 n"]


def test_a_death_from_before_the_upkeep_began_is_seen_as_well(
    store: JobStore, nodes: NodeRegistry, upkeep: Start, sleeper: Sleeper
) -> None:
    victim = sleeper()
    rollout_in(store, "n1 b1 rollout-0 v", "a", "b")
    nodes.beat_process("n1", "b1", record("n1 b1 rollout-0 v", victim.pid))
    victim.kill()
    victim.wait(DEADLINE_S)
    upkeep()
    until(lambda: all(stands_at(store, job, "queued", "rollout") for job in "ab"), "they go on")


def test_a_process_that_is_no_sibling_is_left_to_its_leases(
    store: JobStore, nodes: NodeRegistry, sleeper: Sleeper
) -> None:
    deaths = Deaths("n1", store, nodes)
    stranger, gone = sleeper(), sleeper()  # children of ours: another process may have got a dead one's pid
    rollout_in(store, "n1 b1 rollout-0 s", "a")
    rollout_in(store, "n1 b1 rollout-1 g", "b", "c")
    gone.kill()
    gone.wait(DEADLINE_S)
    deaths.look("b1", record("n1 b1 rollout-0 s", stranger.pid))
    deaths.look("b1", record("n1 b1 rollout-1 g", gone.pid))
    assert deaths.descriptors == []
    assert deaths.settle() == 2
    assert deaths.settle() == 0
    store.sweep()
    assert stands_at(store, "a", "running", "rollout")


def test_a_node_that_returns_under_its_name_takes_the_place_of_its_earlier_boot(
    store: JobStore, nodes: NodeRegistry, redis_client: redis.Redis, upkeep: Start, sleeper: Sleeper
) -> None:
    elsewhere = sleeper()  # its pid means nothing on the machine of before
    nodes.beat({"node": "n1", "boot": "b0", "machine": "before it was started again"})
    nodes.beat({"node": "n2", "boot": "b0", "machine": machine()})
    rollout_in(store, "n1 b0 rollout-0 v", "a", "b")
    nodes.beat_process("n1", "b0", record("n1 b0 rollout-0 v", elsewhere.pid))
    init = claim(store, submit(store, "waits"), process="n1 b0 init-0 1")
    store.commit(init, {}, next_stage="rollout", queue="rollout.n1.b0", worked_s=0, node="n1")
    nodes.drain("n1")
    upkeep("b1")
    until(lambda: all(stands_at(store, job, "queued", "rollout") for job in "ab"), "what ran there goes on")
    until(lambda: stands_at(store, "waits", "queued", "init"), "what waited for it starts over")
    until(lambda: nodes.nodes()[0]["draining"], "an order to drain outlives a keeper")
    assert [(node["node"], node["boot"]) for node in nodes.nodes()] == [("n1", "b1"), ("n2", "b0")]
    assert redis_client.keys("prorl:processes:n1 b0") == []


def test_a_node_that_stops_sends_what_waits_for_it_elsewhere_and_one_that_is_replaced_does_not(
    store: JobStore, nodes: NodeRegistry, upkeep: Start
) -> None:
    first = upkeep()
    until(nodes.nodes, "the node is there")
    init = claim(store, submit(store), process="n1 b1 init-0 1")
    store.commit(init, {}, next_stage="rollout", queue="rollout.n1.b1", worked_s=0, node="n1")
    first.send_signal(signal.SIGINT)
    assert first.wait(DEADLINE_S) == 0
    assert nodes.nodes(), "its successor is about to say the same"
    assert stands_at(store, "a", "queued", "rollout")
    second = upkeep()
    until(lambda: second.poll() is None and nodes.nodes()[0]["pid"] == second.pid, "the successor has begun")
    assert stands_at(store, "a", "queued", "rollout")
    second.terminate()
    assert second.wait(DEADLINE_S) == 0
    assert nodes.nodes() == []
    assert stands_at(store, "a", "queued", "init"), "and nobody else was there to do it"


def test_an_upkeep_beats_and_asks_for_a_process_for_suspects(
    store: JobStore, nodes: NodeRegistry, upkeep: Start
) -> None:
    nodes.beat({"node": "n1", "boot": "b1"})
    init = claim(store, submit(store), process="n1 b1 init-0 1")
    at = store.commit(init, {}, next_stage="rollout", queue="rollout.n1.b1", worked_s=0, node="n1", sandboxes=["box"])
    for _ in range(2):
        claim(store, at, process="n1 b1 rollout-0 1")
        store.lapse("n1 b1 rollout-0 1")
        [at] = store.sweep().messages
    assert at.queue == "solo.n1.b1"
    process = upkeep(alone=False)
    assert says(process) == "beat"
    assert says(process) == "solo"
    process.terminate()
    assert process.wait(DEADLINE_S) == 0


def says(process: subprocess.Popen[bytes]) -> str:
    """The next line that it prints."""
    assert process.stdout
    poll = select.poll()
    poll.register(process.stdout, select.POLLIN)
    assert poll.poll(DEADLINE_S * 1000)
    return process.stdout.readline().decode().strip()  # not buffered: what follows is still there to be polled
