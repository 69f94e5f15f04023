"""A worker of a node that is drained works off what is bound to the node, and takes nothing that others could."""

from __future__ import annotations

from stage_worker import BOOT, Fleet, eventually, stage_worker


def test_a_drained_node_works_off_its_own_queue_alone_until_it_is_told_otherwise(fleet: Fleet) -> None:
    node = fleet.settings.node
    with stage_worker(fleet, "rollout") as worker:
        assert fleet.nodes.drain(node) == [BOOT]
        assert eventually(lambda: worker.record["draining"]), worker.says()
        assert eventually(lambda: "Canceling queue rollout\n" in worker.says())
        fleet.rollout("anywhere", "nothing")
        fleet.rollout("bound", "nothing", queue=f"rollout.{node}.{BOOT}")
        assert eventually(lambda: fleet.stands("bound", "queued", "eval")), worker.says()
        assert fleet.stands("anywhere", "queued", "rollout")
        fleet.nodes.drain(node, False)
        assert eventually(lambda: fleet.stands("anywhere", "queued", "eval")), worker.says()
        assert not worker.record["draining"]
