"""What goes through the broker: small JSON messages on the right queues, in the order of priority."""

from __future__ import annotations

import base64
import json

import pytest
import redis

from prorl_celery.app import Publisher, make_app
from prorl_celery.errors import StoreUnavailable
from prorl_celery.jobs.messages import Message, broker_list, node_queue
from prorl_celery.settings import Settings
from prorl_celery.store.address import broker_url


def test_a_message_holds_an_id_and_a_fence_and_stays_under_two_kib(
    redis_client: redis.Redis, redis_settings: Settings
) -> None:
    longest = "j" * 128
    queue = node_queue("rollout", "n" * 64, "0123abcd")
    Publisher(make_app(redis_settings)).publish(Message("rollout", queue, longest, 2**31, 9))
    (raw,) = redis_client.lrange(broker_list(queue, 0), 0, -1)
    assert len(raw) < 2048
    envelope = json.loads(raw)
    arguments, keywords, _ = json.loads(base64.b64decode(envelope["body"]))
    assert (arguments, keywords) == ([longest, 2**31], {})
    assert envelope["content-type"] == "application/json"
    assert envelope["headers"]["task"] == "prorl.rollout"


def test_priorities_go_to_the_four_lists_of_the_broker(redis_client: redis.Redis, redis_settings: Settings) -> None:
    publisher = Publisher(make_app(redis_settings))
    publisher.publish_all([Message("init", "init", f"j{p}", 0, p) for p in range(10)])
    lengths = {level: redis_client.llen(broker_list("init", level)) for level in (0, 3, 6, 9)}
    assert lengths == {0: 3, 3: 3, 6: 3, 9: 1}


def test_a_publish_costs_one_command(redis_client: redis.Redis, redis_settings: Settings) -> None:
    publisher = Publisher(make_app(redis_settings))
    publisher.publish(Message("init", "init", "first", 0, 5))
    redis_client.config_resetstat()
    publisher.publish_all([Message("init", "init", f"j{n}", 0, 5) for n in range(20)])
    stats = redis_client.info("commandstats")
    calls = {name: stat["calls"] for name, stat in stats.items() if "config" not in name and "info" not in name}
    assert calls == {"cmdstat_lpush": 20}


def test_a_broker_that_is_away_is_a_typed_error_and_not_a_hang() -> None:
    publisher = Publisher(make_app(Settings(redis_url="redis://127.0.0.1:1/0")))
    with pytest.raises(StoreUnavailable, match="did not take a message") as caught:
        publisher.publish(Message("init", "init", "j", 0, 5))
    assert caught.value.job_id == "j"


@pytest.mark.parametrize(
    ("ours", "kombus"),
    [
        ("redis://host:1/0", "redis://host:1/0"),
        ("unix:///run/r.sock?db=2", "redis+socket:///run/r.sock?virtual_host=2"),
        ("unix://:secret@/run/r.sock", "redis+socket://:secret@/run/r.sock?virtual_host=0"),
        ("sentinel://a/main", "sentinel://a:26379/0"),
        ("sentinel://:p%2Fw@a:1,[::1]:2/main/3", "sentinel://:p%2Fw@a:1/3"),
    ],
)
def test_sockets_and_sentinels_are_named_as_kombu_wants_it(ours: str, kombus: str) -> None:
    assert broker_url(ours) == kombus


@pytest.mark.parametrize(
    "url", ["redis://host:1/0", "rediss://host:1/0", "unix:///run/r.sock?db=2", "sentinel://a/main"]
)
def test_every_url_is_served_by_our_transport(url: str) -> None:
    """Kombu's own loses a worker whose Redis goes away while its jobs run."""
    app = make_app(Settings(redis_url=url))
    for connection in (app.connection_for_read(), app.connection_for_write()):
        assert type(connection.transport).__module__ == "prorl_celery.store.broker"
