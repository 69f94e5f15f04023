"""The lost-message rule looks into kombu's lists; kombu must keep them where we think."""

from pathlib import Path

import pytest
import redis
from kombu import Connection, Exchange, Queue

from prorl_celery.jobs.messages import Message, broker_list


@pytest.mark.parametrize("priority", range(10))
def test_kombu_keeps_a_message_in_the_list_of_its_level(
    redis_client: redis.Redis, redis_socket: Path, priority: int
) -> None:
    message = Message("rollout", "rollout.n1.b1", "a", 0, priority)
    with Connection(f"redis+socket://{redis_socket}") as connection, connection.Producer() as producer:
        queue = Queue(message.queue, Exchange(message.queue, type="direct"), routing_key=message.queue)
        producer.publish(
            {},
            exchange=queue.exchange,
            routing_key=queue.routing_key,
            declare=[queue],
            priority=9 - message.priority,
        )
        assert redis_client.llen(broker_list(message.queue, message.level)) == 1
