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


def test_a_node_tells_of_its_live_processes_and_their_busy_slots(either_client: redis.Redis) -> None:
    nodes = NodeRegistry(either_client, Settings())
    nodes.beat({"node": "n1", "boot": "b"})
    for name, stage, busy in (("rollout-1", "rollout", 2), ("rollout-0", "rollout", 3), ("eval-0", "eval", 1)):
        nodes.beat_process("n1", "b", {"name": name, "stage": stage, "busy": busy, "handlers": ["code"]})
    nodes.beat_process("n1", "another boot", {"name": "old", "stage": "init", "busy": 9, "handlers": []})
    (node,) = nodes.nodes()
    assert [process["name"] for process in node["processes"]] == ["eval-0", "rollout-0", "rollout-1"]
    assert node["busy"] == {"rollout": 5, "eval": 1}
    assert node["handlers"] == ["code"]
    nodes.forget_process("n1", "b", "rollout-1")
    assert nodes.nodes()[0]["busy"] == {"rollout": 3, "eval": 1}


def test_a_silent_process_is_gone_while_its_node_lives(either_client: redis.Redis) -> None:
    nodes = NodeRegistry(either_client, Settings())
    nodes.beat({"node": "n1", "boot": "b"})
    either_client.hset("prorl:processes:n1 b", "init-0", '1 {"name": "init-0", "stage": "init", "busy": 0}')
    assert nodes.nodes()[0]["processes"] == []
