"""Each way to damage a store is found, as what it is and nothing else; it is mended, and then nothing is found."""

from __future__ import annotations

import pytest
import redis
from checking_help import busy_store
from damages import DAMAGES, Damage
from redis_fixtures import snapshot

from prorl_celery.checking import KINDS, check, repair
from prorl_celery.jobs.store import JobStore
from prorl_celery.settings import Settings


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.name)
def test_a_damage_is_found_mended_and_gone(
    redis_store: JobStore, redis_client: redis.Redis, redis_settings: Settings, damage: Damage
) -> None:
    busy_store(redis_store, redis_client, redis_settings)
    damage.act(redis_client)
    before = snapshot(redis_client)
    found = check(redis_client, redis_settings)
    said = {(finding.kind, finding.subject) for finding in found}
    assert (damage.kind, damage.subject) in said
    assert len(said) == 1 or not damage.alone
    assert all(damage.subject in subject or subject in damage.subject for _, subject in said)
    assert snapshot(redis_client) == before  # looking writes nothing
    assert repair(found, redis_client, redis_settings) == []
    assert check(redis_client, redis_settings) == []


def test_every_kind_of_finding_has_its_damage() -> None:
    elsewhere = {"stray-sandbox", "no-sandbox"}  # test_checked_sandboxes
    assert {damage.kind for damage in DAMAGES} | elsewhere == set(KINDS)
