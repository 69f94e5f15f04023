import redis

from prorl_celery.jobs.store import JobStore
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


def test_a_node_that_drains_and_its_processes_are_told_until_it_is_undone(either_client: redis.Redis) -> None:
    nodes = NodeRegistry(either_client, Settings())
    process = {"id": "n1 b init-0 1", "name": "init-0", "stage": "init", "busy": 1, "handlers": []}
    nodes.beat({"node": "n1", "boot": "b"})
    nodes.beat({"node": "n1 b", "boot": "c"})  # another node, whose name begins with ours
    assert not nodes.beat_process("n1", "b", process)
    assert nodes.drain("n1") == ["b"]
    assert nodes.drain("n1") == ["b"]
    assert nodes.drain("n") == []
    assert nodes.beat({"node": "n1", "boot": "b"}).draining
    assert nodes.beat_process("n1", "b", process)
    assert [node["draining"] for node in nodes.nodes()] == [True, False]
    assert nodes.drain("n1", on=False) == ["b"]
    assert not nodes.beat_process("n1", "b", process)
    assert not nodes.nodes()[0]["draining"]


def test_a_node_is_drained_when_nothing_runs_on_it_and_nothing_waits_for_it(either_client: redis.Redis) -> None:
    nodes = NodeRegistry(either_client, Settings())
    busy = {"id": "n1 b init-0 1", "name": "init-0", "stage": "init", "busy": 1, "handlers": []}
    nodes.beat({"node": "n1", "boot": "b"})
    assert not nodes.nodes()[0]["drained"], "it was not told to drain"
    nodes.drain("n1")
    nodes.beat_process("n1", "b", busy)
    assert not nodes.nodes()[0]["drained"]
    idle = busy | {"busy": 0}
    nodes.beat_process("n1", "b", idle)
    assert not nodes.nodes()[0]["drained"], "its process has not heard of it yet, and may take a job"
    nodes.beat_process("n1", "b", idle | {"draining": True})
    either_client.sadd("prorl:on:n1", "a job that waits for it")
    assert not nodes.nodes()[0]["drained"]
    either_client.delete("prorl:on:n1")
    assert nodes.nodes()[0]["drained"]


def test_the_order_to_drain_ends_with_the_boot_that_it_was_given_to(either_client: redis.Redis) -> None:
    nodes = NodeRegistry(either_client, Settings())
    nodes.beat({"node": "n1", "boot": "b"})
    nodes.drain("n1")
    nodes.remove("n1", "b")
    assert not nodes.beat({"node": "n1", "boot": "c"}).draining
    assert either_client.keys("prorl:draining") == []


def test_processes_of_one_name_are_told_apart_by_their_ids(either_client: redis.Redis) -> None:
    nodes = NodeRegistry(either_client, Settings())
    nodes.beat({"node": "n1", "boot": "b"})
    record = {"name": "rollout-0", "stage": "rollout", "handlers": []}
    nodes.beat_process("n1", "b", record | {"id": "n1 b rollout-0 old", "busy": 1})
    nodes.beat_process("n1", "b", record | {"id": "n1 b rollout-0 new", "busy": 2})
    assert nodes.nodes()[0]["busy"] == {"rollout": 3}
    nodes.forget_process("n1", "b", "n1 b rollout-0 old")
    assert [process["busy"] for process in nodes.nodes()[0]["processes"]] == [2]


def test_a_node_learns_of_the_suspects_that_it_may_run(either_client: redis.Redis) -> None:
    nodes = NodeRegistry(either_client, Settings())
    node = {"node": "n1.cluster", "boot": "b"}
    assert nodes.beat(node).alone == 0
    either_client.zadd("prorl:queued:3:solo", {"any": 1})
    either_client.zadd("prorl:queued:9:solo.n1.cluster.b", {"bound": 1, "too": 2})
    either_client.zadd("prorl:queued:0:solo.n2.b", {"elsewhere": 1})
    assert nodes.beat(node).alone == 3
    nodes.drain("n1.cluster")
    assert nodes.beat(node).alone == 2, "it takes no new jobs"


def test_a_node_that_leaves_is_remembered_until_the_next_sweep_and_then_nothing_is_left_of_it(
    either_client: redis.Redis,
) -> None:
    nodes = NodeRegistry(either_client, Settings())
    nodes.beat({"node": "n1", "boot": "b"})
    nodes.beat({"node": "n2", "boot": "b"})
    nodes.beat_process("n1", "b", {"name": "init-0", "stage": "init", "busy": 0, "handlers": []})
    bound = [f"{queue}\x06\x16\x06\x16{queue}" for queue in ("init", "eval.n1.b", "solo.n1.b", "rollout.n2.b")]
    either_client.sadd("_kombu.binding.prorl", *bound)
    nodes.remove("n1", "b")
    nodes.remove("n3", "b")
    assert [node["node"] for node in nodes.nodes()] == ["n2"]
    assert either_client.zscore("prorl:nodes:seen", "n1 b") == 0
    assert either_client.keys("prorl:processes:*") == []
    JobStore(either_client, Settings()).sweep()
    assert either_client.hkeys("prorl:nodes") == [b"n2 b"]
    assert either_client.zrange("prorl:nodes:seen", 0, -1) == [b"n2 b"]
    assert either_client.smembers("_kombu.binding.prorl") == {bound[0].encode(), bound[3].encode()}
