"""A store that nobody damaged has nothing to find, whatever its jobs are at; and a check costs little."""

from __future__ import annotations

import redis
from checking_help import busy_store

from prorl_celery.checking import check
from prorl_celery.jobs.store import JobStore
from prorl_celery.settings import Settings


def test_an_empty_store_is_sound(redis_client: redis.Redis, redis_settings: Settings) -> None:
    assert check(redis_client, redis_settings) == []


def test_jobs_in_every_state_are_sound(
    redis_store: JobStore, redis_client: redis.Redis, redis_settings: Settings
) -> None:
    busy_store(redis_store, redis_client, redis_settings)
    assert check(redis_client, redis_settings) == []
