"""Whatever single field a record has lost: a check can still look, a repair ends, and what is left adds up."""

from __future__ import annotations

import pytest
import redis
from checking_help import busy_store
from damages import P

from prorl_celery.checking import check, repair
from prorl_celery.jobs.store import JobStore
from prorl_celery.settings import Settings

JOBS = ("waits", "runs", "done", "q:1:0", "q:0:1", "k:1:0", "k:0:0", "x:0:0")
BATCHES = ("dapo:q", "dapo:k", "dapo:x", "group:0:q", "group:1:k", "group:0:x")


@pytest.mark.slow
@pytest.mark.parametrize("key", [*(f"job:{job}" for job in JOBS), *BATCHES])
def test_a_record_that_lost_a_field_is_mended(
    redis_store: JobStore, redis_client: redis.Redis, redis_settings: Settings, key: str
) -> None:
    busy_store(redis_store, redis_client, redis_settings)
    fields = sorted(redis_client.hkeys(P + key))
    assert len(fields) >= 5
    for field in fields:
        redis_client.flushall()
        busy_store(redis_store, redis_client, redis_settings)
        redis_client.hdel(P + key, field)
        left = repair(check(redis_client, redis_settings), redis_client, redis_settings)
        assert left == [], field
