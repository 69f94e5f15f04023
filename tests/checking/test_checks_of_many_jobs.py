"""A check of 10,000 jobs is a few hundred short commands, and what is wrong is found among them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

import pytest
import redis
from checking_help import node, publish
from redis_fixtures import claim, request

from prorl_celery.checking import Finding, check
from prorl_celery.jobs.messages import Message
from prorl_celery.jobs.store import JobStore
from prorl_celery.settings import Settings

JOBS = 10_000
MOST_COMMANDS = JOBS // 20


@pytest.mark.slow
def test_ten_thousand_jobs_cost_few_commands(
    redis_store: JobStore, redis_client: redis.Redis, redis_settings: Settings
) -> None:
    for first in range(0, JOBS, 1000):
        redis_store.create([request(f"j{number}") for number in range(first, first + 1000)])
    waiting = [f"j{number}" for number in range(JOBS) if number % 10 > 7]
    publish(redis_settings, *(Message("init", "init", job, 0, 5) for job in waiting))
    pipe = redis_client.pipeline(transaction=False)
    for number in range(JOBS):
        if number % 10 > 7:
            pipe.hset(f"prorl:job:j{number}", "published", 1)
        elif number % 10 > 6:
            claim(redis_store, Message("init", "init", f"j{number}", 0, 5))
        else:
            redis_store.cancel(f"j{number}")
    pipe.execute()
    node(redis_client, redis_settings)
    sent = sent_while(redis_client, lambda: check(redis_client, redis_settings))
    print(f"{len(sent)} commands for {JOBS} jobs: {Counter(sent)}")
    assert len(sent) <= MOST_COMMANDS
    assert "KEYS" not in sent
    redis_client.zrem("prorl:index:queued:init", "j7779")
    redis_client.lrem("init\x06\x163", 1, redis_client.lindex("init\x06\x163", 1000))
    node(redis_client, redis_settings)
    assert sorted(finding.kind for finding in check(redis_client, redis_settings)) == ["message-lost", "not-indexed"]


def sent_while(client: redis.Redis, act: Callable[[], list[Finding]]) -> list[str]:
    """The commands that clients send while `act` looks, and finds nothing."""
    with client.monitor() as monitor:
        started = time.monotonic()
        assert act() == []
        print(f"{time.monotonic() - started:.2f} s, while Redis tells us every step of its scripts")
        client.echo("the end")
        sent = []
        for line in monitor.listen():
            if line["command"].startswith("ECHO"):
                return sent
            if line["client_type"] != "lua":
                sent.append(line["command"].split()[0])
    raise AssertionError("the monitor ended")
