"""Pauses, versions of weights, and who has heard of them."""

from __future__ import annotations

import time
from typing import Any

import pytest
import redis
from redis_fixtures import snapshot

from prorl_celery.scheduling.backends import Backend, BackendRegistry
from prorl_celery.scheduling.policy import PolicyRegistry, Told, Weights
from prorl_celery.settings import Settings
from prorl_celery.store.keys import Keys


@pytest.fixture
def policy(either_client: redis.Redis) -> PolicyRegistry:
    return PolicyRegistry(either_client, Settings())


@pytest.fixture
def backends(either_client: redis.Redis) -> BackendRegistry:
    registry = BackendRegistry(either_client, Settings())
    for url, model in (("http://a1", "a"), ("http://a2", "a"), ("http://b1", "b")):
        registry.put(Backend(url=url, model=model, gives_ids=True, policy_version=1))
    return registry


def versions(policy: PolicyRegistry) -> dict[str, int | None]:
    return {url: weights.version for url, weights in policy.look().weights.items()}


def test_a_pause_holds_its_model_until_it_is_ended(policy: PolicyRegistry, backends: BackendRegistry) -> None:
    epoch = policy.pause("a", "finish", 600.0)
    (pause,) = policy.look().pauses
    assert (pause.model, pause.mode, pause.epoch) == ("a", "finish", epoch)
    assert 590 < pause.seconds_left <= 600
    assert pause.holds("a")
    assert not pause.holds("b")
    resumed = policy.resume("a", None)
    assert (resumed.pauses_ended, resumed.backends_told) == (1, 0)
    assert policy.look().pauses == ()
    assert policy.look().epoch == resumed.epoch > epoch
    assert versions(policy) == {"http://a1": 1, "http://a2": 1, "http://b1": 1}


def test_a_version_is_that_of_the_models_that_were_paused(policy: PolicyRegistry, backends: BackendRegistry) -> None:
    policy.pause("a", "finish", 600.0)
    assert policy.resume(None, 2).backends_told == 2
    assert versions(policy) == {"http://a1": 2, "http://a2": 2, "http://b1": 1}
    policy.pause(None, "finish", 600.0)
    assert policy.resume(None, 3).backends_told == 3
    assert policy.resume("b", 4).backends_told == 1
    assert versions(policy) == {"http://a1": 3, "http://a2": 3, "http://b1": 4}
    assert policy.resume(None, 5).backends_told == 3
    backend = backends.get("http://a1")
    assert backend is not None
    assert backend.policy_version == 5
    assert backend.state == "up"


def test_one_model_may_go_on_while_all_others_are_held(policy: PolicyRegistry, backends: BackendRegistry) -> None:
    policy.pause(None, "abort", 600.0)
    policy.resume("a", 2)
    (pause,) = policy.look().pauses
    assert pause.holds("b")
    assert not pause.holds("a")
    assert policy.resume("a", None).pauses_ended == 0
    policy.pause(None, "abort", 600.0)
    assert policy.look().pauses[0].holds("a")


def test_a_pause_ends_by_itself(policy: PolicyRegistry) -> None:
    policy.pause(None, "finish", 0.02)
    deadline = time.monotonic() + 10
    while policy.look().pauses:
        assert time.monotonic() < deadline


def test_the_same_version_loaded_again_has_another_salt(policy: PolicyRegistry, backends: BackendRegistry) -> None:
    assert Weights(None).cache_salt is None
    salts = [policy.look().weights["http://a1"].cache_salt]
    for _ in range(2):
        policy.resume("a", 7)
        salts.append(policy.look().weights["http://a1"].cache_salt)
    policy.renew("http://a1")
    salts.append(policy.look().weights["http://a1"].cache_salt)
    backends.put(Backend(url="http://a1", model="a", policy_version=7))  # the same weights, registered again
    assert policy.look().weights["http://a1"].cache_salt == salts[-1]
    assert salts[0] == "v1"
    assert all(salt is not None and salt.startswith("v7.") for salt in salts[1:])
    assert len(set(salts)) == 4


def test_a_pause_is_heeded_when_every_live_process_obeys_it_with_no_call_in_flight(
    policy: PolicyRegistry, either_client: Any
) -> None:
    policy.look("p1", Told(epoch=0, in_flight={"a": 2}))
    policy.look("p2", Told(epoch=0))
    epoch = policy.pause("a", "finish", 600.0)
    assert not policy.heed(epoch, "a").complete
    policy.look("p1", Told(epoch=epoch, in_flight={"a": 1, "b": 3}, held={"a": 1}))
    heed = policy.heed(epoch, "a")
    assert (heed.processes, heed.acknowledged, heed.in_flight, heed.held) == (2, 1, 1, 1)
    assert policy.heed(epoch, None).in_flight == 4
    policy.look("p1", Told(epoch=epoch, in_flight={"b": 3}))
    policy.look("p2", Told(epoch=epoch))
    assert policy.heed(epoch, "a").complete
    assert not policy.heed(epoch, None).complete
    # One that has been silent for too long is dead; one that has stopped says so.
    either_client.hset("prorl:policy:processes", "p3", '1 {"epoch": 0, "in_flight": {"a": 1}}')
    assert policy.heed(epoch, "a").complete
    policy.look("p4", Told(epoch=0))
    assert not policy.heed(epoch, "a").complete
    policy.leave("p4")
    assert policy.heed(epoch, "a").complete


def test_keys_of_the_policy_have_documented_forms(
    policy: PolicyRegistry, backends: BackendRegistry, either_client: redis.Redis
) -> None:
    policy.pause("a", "finish", 600.0)
    policy.look("p1", Told(epoch=0))
    policy.resume(None, 2)
    policy.pause(None, "finish", 600.0)
    keys = Keys("prorl:")
    assert [key for key in snapshot(either_client) if not keys.known(key)] == []


def test_changes_are_told_on_their_channel(policy: PolicyRegistry, redis_client: redis.Redis) -> None:
    with redis_client.pubsub(ignore_subscribe_messages=True) as heard:
        heard.subscribe("prorl:policy", "prorl:policy:told")
        registry = PolicyRegistry(redis_client, Settings())
        epoch = registry.pause(None, "finish", 60.0)
        for _ in range(2):  # the second time it tells nothing new
            registry.look("p", Told(epoch=epoch))
        registry.resume(None, None)
        messages = []
        while len(messages) < 3:
            message = heard.get_message(timeout=10.0)
            if message is not None:
                messages.append((message["channel"].decode(), message["data"].decode()))
    assert messages == [("prorl:policy", str(epoch)), ("prorl:policy:told", ""), ("prorl:policy", str(epoch + 1))]
