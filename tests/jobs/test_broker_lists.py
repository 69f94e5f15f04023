"""The lost-message rule looks into kombu's lists; kombu must keep them where we think."""

from pathlib import Path

import pytest
import redis
from kombu import Connection
from redis_fixtures import submit

from prorl_celery.app import queue_named
from prorl_celery.jobs.messages import Message, broker_list
from prorl_celery.jobs.store import JobStore
from prorl_celery.scheduling.nodes import NodeRegistry
from prorl_celery.settings import Settings


def publish(socket: Path, message: Message) -> None:
    queue = queue_named(message.queue)
    with Connection(f"redis+socket://{socket}") as connection, connection.Producer() as producer:
        producer.publish(
            {},
            exchange=queue.exchange,
            routing_key=queue.routing_key,
            declare=[queue],
            priority=message.level,
        )


@pytest.mark.parametrize("priority", range(10))
def test_kombu_keeps_a_message_in_the_list_of_its_level(
    redis_client: redis.Redis, redis_socket: Path, priority: int
) -> None:
    message = Message("rollout", "rollout.n1.b1", "a", 0, priority)
    publish(redis_socket, message)
    assert redis_client.llen(broker_list(message.queue, message.level)) == 1


def test_of_a_dead_nodes_queue_the_broker_keeps_nothing(
    redis_store: JobStore, redis_client: redis.Redis, redis_socket: Path
) -> None:
    publish(redis_socket, submit(redis_store))
    publish(redis_socket, Message("rollout", "rollout.n1.b1", "gone", 0, 5))
    redis_client.sadd("prorl:queues", "rollout.n1.b1")
    redis_store.sweep()
    assert [key for key in redis_client.keys("*") if b"n1.b1" in key] == []
    assert redis_client.smembers("_kombu.binding.prorl") == {b"init\x06\x16\x06\x16init"}
    assert redis_client.llen("init\x06\x163") == 1


def test_of_a_dead_nodes_queue_that_nobody_published_to_the_broker_keeps_no_binding(
    redis_store: JobStore, redis_client: redis.Redis, redis_socket: Path
) -> None:
    NodeRegistry(redis_client, Settings()).beat({"node": "n1", "boot": "b1"})
    for queue in ("init", "rollout.n1.b1", "eval.n2.b1"):
        with Connection(f"redis+socket://{redis_socket}") as connection:
            queue_named(queue)(connection.default_channel).declare()
    redis_store.sweep()
    bound = {member.split(b"\x06\x16")[-1] for member in redis_client.smembers("_kombu.binding.prorl")}
    assert bound == {b"init", b"rollout.n1.b1"}
