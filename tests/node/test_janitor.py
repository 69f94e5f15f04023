"""The janitor against a real store: what a live job may still use stays, all else goes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis
from redis_fixtures import claim, submit

from prorl_celery.errors import SandboxError
from prorl_celery.jobs.claims import Claim
from prorl_celery.jobs.messages import node_queue
from prorl_celery.jobs.models import JobError
from prorl_celery.jobs.store import JobStore
from prorl_celery.node.janitor.counter import LeakCounter
from prorl_celery.node.janitor.strays import Janitor
from prorl_celery.scheduling.nodes import NodeRegistry
from prorl_celery.settings import Settings

QUEUE = node_queue("rollout", "n1", "boot")


class Keeper:
    """Lists sandboxes, and ends them when it is told."""

    def __init__(self) -> None:
        self.sandboxes: dict[str, dict[str, Any]] = {}
        self.stubborn: set[str] = set()

    def start(self, claim: Claim, purpose: str = "rollout") -> str:
        name = f"{claim.job_id}-{claim.fence}-{purpose}"
        self.sandboxes[name] = {
            "sandbox_id": name,
            "job_id": claim.job_id,
            "attempt": claim.attempt,
            "fence": claim.fence,
            "purpose": purpose,
            "age_s": 60.0,
            "stuck": False,
        }
        return name

    def list(self) -> list[dict[str, Any]]:
        return list(self.sandboxes.values())

    def begin_stop(self, name: str) -> None:
        if name in self.stubborn:
            raise SandboxError("not now")
        del self.sandboxes[name]


@pytest.fixture
def keeper() -> Keeper:
    return Keeper()


@pytest.fixture
def swept(keeper: Keeper, redis_store: JobStore, redis_settings: Settings) -> Callable[[], set[str]]:
    """One round of the janitor; gives what is left."""
    janitor = Janitor(redis_store, keeper, redis_settings)

    def sweep() -> set[str]:
        janitor.sweep()
        return set(keeper.sandboxes)

    return sweep


def to_node(store: JobStore, init: Claim, sandbox: str) -> Claim:
    return claim(
        store,
        store.commit(init, {}, next_stage="rollout", queue=QUEUE, node="n1", sandboxes=[sandbox], worked_s=0),
    )


def test_a_jobs_sandbox_stays_from_its_start_to_the_end_of_rollout(
    redis_store: JobStore, keeper: Keeper, swept: Callable[[], set[str]]
) -> None:
    init = claim(redis_store, submit(redis_store))
    name = keeper.start(init)
    assert swept() == {name}
    message = redis_store.commit(init, {}, next_stage="rollout", queue=QUEUE, node="n1", sandboxes=[name], worked_s=0)
    assert swept() == {name}
    rollout = claim(redis_store, message)
    assert swept() == {name}
    scoring = claim(redis_store, redis_store.commit(rollout, {}, next_stage="eval", queue="eval", worked_s=0))
    fresh = keeper.start(scoring, "eval")
    assert swept() == {fresh}
    redis_store.finish(scoring, state="completed", finish_reason="stop", reward=1.0, worked_s=0)
    assert swept() == set()


def test_a_new_sandbox_is_judged_only_when_its_job_has_ended(
    redis_store: JobStore, keeper: Keeper, swept: Callable[[], set[str]]
) -> None:
    over, unknown = claim(redis_store, submit(redis_store, "over")), claim(redis_store, submit(redis_store, "later"))
    ended, new = keeper.start(over), keeper.start(unknown)
    keeper.sandboxes[ended]["age_s"] = keeper.sandboxes[new]["age_s"] = 0.5
    keeper.sandboxes[new]["job_id"] = "claimed-since"
    assert swept() == {ended, new}
    redis_store.finish(over, state="completed", finish_reason="stop", reward=1.0, worked_s=0)
    assert swept() == {new}
    keeper.sandboxes[new]["age_s"] = 60.0
    assert swept() == set()


def test_the_sandbox_of_a_lost_rollout_goes_though_its_job_is_in_init_again(
    redis_store: JobStore, redis_client: redis.Redis, keeper: Keeper, swept: Callable[[], set[str]]
) -> None:
    """Two lost with one process are charged to neither: the attempt stays. Their sandboxes hold the very places that
    init waits for."""
    for job_id in ("a", "b"):
        init = claim(redis_store, submit(redis_store, job_id))
        to_node(redis_store, init, keeper.start(init))
    redis_store.sweep()
    for member in redis_client.zrange("prorl:leases", 0, -1):
        redis_client.zadd("prorl:leases", {member: 0})
    for message in redis_store.sweep().messages:
        assert claim(redis_store, message, op="again").attempt == 1
    assert swept() == set()


def test_the_sandbox_of_an_init_that_failed_goes_and_the_next_ones_stays(
    redis_store: JobStore, keeper: Keeper, swept: Callable[[], set[str]]
) -> None:
    init = claim(redis_store, submit(redis_store))
    keeper.start(init)
    error = JobError(kind="sandbox", stage="init", message="broke", retryable=True)
    message = redis_store.fail(init, error, worked_s=0)
    assert message is not None
    again = claim(redis_store, message, op="again")
    kept = keeper.start(again)
    assert swept() == {kept}


@pytest.mark.parametrize("bound", [True, False])
def test_what_waits_for_eval_stays_until_an_eval_has_failed_that_can_do_without(
    redis_store: JobStore, redis_client: redis.Redis, keeper: Keeper, swept: Callable[[], set[str]], bound: bool
) -> None:
    NodeRegistry(redis_client, Settings()).beat({"node": "n1", "boot": "boot"})
    rollout = to_node(redis_store, claim(redis_store, submit(redis_store)), "main")
    names = {keeper.start(rollout, "kept"), keeper.start(rollout, "ahead")}
    message = redis_store.commit(
        rollout, {}, next_stage="eval", queue=node_queue("eval", "n1", "boot"), node="n1", sandboxes=sorted(names),
        bound=bound, worked_s=0,
    )  # fmt: skip
    assert swept() == names
    scoring = claim(redis_store, message)
    assert swept() == names
    assert redis_store.hand_back(scoring, waited_s=0) is not None
    assert swept() == (names if bound else set())


@pytest.fixture
def counted(redis_settings: Settings, tmp_path: Path) -> Settings:
    """Settings with a directory to count leaks in."""
    (tmp_path / redis_settings.node).mkdir()
    return redis_settings.with_(run_dir=tmp_path)


def test_a_stray_that_cannot_be_ended_is_tried_every_round_and_counted_once_when_its_time_is_over(
    redis_store: JobStore, keeper: Keeper, counted: Settings
) -> None:
    now = 1000.0
    janitor = Janitor(redis_store, keeper, counted, clock=lambda: now)
    init = claim(redis_store, submit(redis_store))
    name = keeper.start(init)
    redis_store.finish(init, state="failed", finish_reason="error", worked_s=0)
    keeper.stubborn.add(name)
    for moment, count in ((1000.0, 0), (1020.0, 0), (1031.0, 1), (1036.0, 1), (2000.0, 1)):
        now = moment
        janitor.sweep()
        assert (set(keeper.sandboxes), LeakCounter(counted).value) == ({name}, count)
    keeper.stubborn.clear()
    janitor.sweep()
    assert keeper.sandboxes == {}


def test_one_that_the_keeper_has_counted_is_not_counted_again(
    redis_store: JobStore, keeper: Keeper, counted: Settings
) -> None:
    now = 1000.0
    janitor = Janitor(redis_store, keeper, counted, clock=lambda: now)
    name = keeper.start(claim(redis_store, submit(redis_store)))
    redis_store.cancel("a")
    keeper.stubborn.add(name)
    keeper.sandboxes[name]["stuck"] = True
    for moment in (1000.0, 1040.0):
        now = moment
        janitor.sweep()
    assert LeakCounter(counted).value == 0
