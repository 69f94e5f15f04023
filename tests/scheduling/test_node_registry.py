import redis

from prorl_celery.scheduling.nodes import NodeRegistry
from prorl_celery.settings import Settings


def test_nodes_that_beat_are_alive_until_they_stop(either_client: redis.Redis) -> None:
    nodes = NodeRegistry(either_client, Settings())
    assert nodes.nodes() == []
    nodes.beat({"node": "n2", "boot": "b", "room": 0})
    nodes.beat({"node": "n1", "boot": "b", "room": 3})
    nodes.beat({"node": "n1", "boot": "b", "room": 2})
    assert [(one["node"], one["room"]) for one in nodes.nodes()] == [("n1", 2), ("n2", 0)]
    nodes.remove("n2", "b")
    assert [one["node"] for one in nodes.nodes()] == ["n1"]


def test_a_silent_node_is_gone(either_client: redis.Redis) -> None:
    nodes = NodeRegistry(either_client, Settings())
    nodes.beat({"node": "n1", "boot": "b"})
    either_client.zadd("prorl:nodes:seen", {"n1 b": 1})
    assert nodes.nodes() == []


def test_room_elsewhere_is_room_on_another_node(either_client: redis.Redis) -> None:
    nodes = NodeRegistry(either_client, Settings())
    nodes.beat({"node": "n1", "boot": "b", "room": 3})
    assert not nodes.other_has_room("n1")
    assert nodes.other_has_room("n2")
    nodes.beat({"node": "n2", "boot": "b", "room": 0})
    assert not nodes.other_has_room("n1")
