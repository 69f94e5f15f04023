"""With a keeper a check also looks at its node's sandboxes: whose they are, and whether jobs still have theirs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from checking_help import node
from redis_fixtures import claim, submit

from prorl_celery.checking import check, repair
from prorl_celery.jobs.messages import Message
from prorl_celery.jobs.store import JobStore
from prorl_celery.node.janitor import strays
from prorl_celery.sandbox.base import SandboxSpec
from prorl_celery.sandbox.waiting import NeverCancelled
from prorl_celery.settings import Settings
from prorl_celery.testing.keeper import KeeperProcess

BOOT = "b1"


@pytest.fixture
def settings(redis_settings: Settings, tmp_path: Path) -> Settings:
    return redis_settings.with_(run_dir=tmp_path, spare_sandboxes=0)


@pytest.fixture
def keeper(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[KeeperProcess]:
    monkeypatch.setattr(strays, "YOUNG_SECONDS", 0.0)
    with KeeperProcess(settings, boot=BOOT) as process:
        yield process


def committed(store: JobStore, keeper: KeeperProcess) -> tuple[str, Message]:
    """A job that waits for its rollout in a sandbox of its own; the sandbox and the message."""
    init = claim(store, submit(store, "a"))
    spec = SandboxSpec(job_id="a", attempt=1, fence=init.fence)
    with NeverCancelled() as never:
        sandbox = keeper.client.start(spec, cancel=never, timeout=30)
        sandbox.close()
    name = sandbox.handle.sandbox_id
    message = store.commit(
        init, {}, next_stage="rollout", queue=f"rollout.n1.{BOOT}", node="n1", sandboxes=[name], worked_s=0.1
    )
    return name, message


def test_a_sandbox_of_a_live_job_is_left_alone(
    redis_store: JobStore, redis_client: redis.Redis, settings: Settings, keeper: KeeperProcess
) -> None:
    node(redis_client, settings)
    committed(redis_store, keeper)
    assert check(redis_client, settings, keeper.client) == []


def test_a_sandbox_of_no_live_job_is_found_and_ended(
    redis_store: JobStore, redis_client: redis.Redis, settings: Settings, keeper: KeeperProcess
) -> None:
    node(redis_client, settings)
    name, _ = committed(redis_store, keeper)
    redis_store.cancel("a")
    (found,) = check(redis_client, settings, keeper.client)
    assert (found.kind, found.subject) == ("stray-sandbox", name)
    assert len(keeper.client.list()) == 1
    assert repair([found], redis_client, settings, keeper.client) == []
    assert keeper.client.list() == []


def test_a_job_that_waits_for_a_sandbox_that_is_gone_starts_over(
    redis_store: JobStore, redis_client: redis.Redis, settings: Settings, keeper: KeeperProcess
) -> None:
    node(redis_client, settings)
    name, message = committed(redis_store, keeper)
    keeper.client.stop(name)
    (found,) = check(redis_client, settings, keeper.client)
    assert (found.kind, found.subject) == ("no-sandbox", "a")
    assert repair([found], redis_client, settings, keeper.client) == []
    status = redis_store.status("a")
    assert (status.state, status.stage, status.attempt) == ("queued", "init", 1)
    assert redis_store.claim("rollout", "a", message.fence, node="n1", process="p", op="o") is None
