"""The nodes of the fleet, as their own heartbeats describe them.

A record is believed for `NODE_TTL_SECONDS`; a node that stays silent longer counts as gone, and the sweep sends the
jobs that wait for it back to init. A node that is told to drain takes no new jobs and works off what is bound to it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import redis

from prorl_celery.settings import Settings
from prorl_celery.store.scripts import Scripts

NODE_TTL_SECONDS = 10.0
TTL_MS = round(NODE_TTL_SECONDS * 1000)


class Told(NamedTuple):
    """What a node learns when it says that it is alive."""

    draining: bool
    """It should take no new jobs."""
    alone: int
    """Jobs that wait for a process of their own, which this node may run."""
    processes: list[dict[str, Any]]
    """The records of its stage processes, those that are silent included."""


class NodeRegistry:
    """Keeps the nodes' records. Raises `StoreUnavailable`."""

    def __init__(self, client: redis.Redis, settings: Settings) -> None:
        self._run = Scripts(client, settings).run

    def beat(self, record: Mapping[str, Any]) -> Told:
        """Say that a node is alive, and how it is: `node`, `boot`, and what operators see (slots, room...)."""
        member = _member(record["node"], record["boot"])
        draining, alone, *processes = self._run("node_beat", member, json.dumps(record), TTL_MS)
        return Told(bool(draining), alone, [json.loads(process) for process in processes])

    def beat_process(self, node: str, boot: str, record: Mapping[str, Any]) -> bool:
        """Say that a stage process of a node is at work: `id`, `name`, `stage`, `pid`, `slots`, `busy`, `handlers`.

        Returns whether its node drains: the process takes no new jobs then. One without an id is known by its name.
        """
        process = record.get("id", record["name"])
        return bool(self._run("process_beat", _member(node, boot), process, json.dumps(record), TTL_MS))

    def forget_process(self, node: str, boot: str, process: str) -> None:
        """Say that the stage process of that id is no more."""
        self._run("process_beat", _member(node, boot), process, "", TTL_MS)

    def drain(self, node: str, on: bool = True) -> list[str]:
        """Have a node take no new jobs, or, not `on`, have it take them again. The boots of it that are told; none
        where no such node is alive. A boot forgets it when it ends.
        """
        return [member.decode().rpartition(" ")[2] for member in self._run("node_drain", node, int(on))]

    def nodes(self) -> list[dict[str, Any]]:
        """The records of the nodes that are alive, by name; each with its live `processes`, the `busy` slots by stage
        and the `handlers` that they know, whether it is `draining`, and `drained` when its processes take nothing new
        and nothing is left on it.
        """
        found = []
        for record, draining, jobs, *processes in self._run("nodes"):
            node = json.loads(record)
            node["processes"] = sorted((json.loads(text) for text in processes), key=lambda p: str(p["name"]))
            node["busy"] = {}
            for process in node["processes"]:
                node["busy"][process["stage"]] = node["busy"].get(process["stage"], 0) + process["busy"]
            node["handlers"] = sorted({name for process in node["processes"] for name in process["handlers"]})
            node["draining"] = bool(draining)
            obeyed = all(process.get("draining") for process in node["processes"])
            node["drained"] = bool(draining) and obeyed and not jobs and not any(node["busy"].values())
            found.append(node)
        return sorted(found, key=lambda node: (node["node"], node["boot"]))

    def remove(self, node: str, boot: str) -> None:
        """Say that a node has stopped, its processes before it: what waits for it goes elsewhere at the next sweep."""
        self._run("node_beat", _member(node, boot), "", 0)

    def other_has_room(self, node: str) -> bool:
        """Whether init could make a sandbox on another node right now (its `room` is above 0 and it takes new jobs)."""
        others = (record for record in self.nodes() if record["node"] != node and not record["draining"])
        return any(record.get("room") for record in others)

    def works_on(self, stage: str, node: str, boot: str) -> bool:
        """Whether a node has a live process of this stage."""
        mine = (record for record in self.nodes() if (record["node"], record["boot"]) == (node, boot))
        return any(process["stage"] == stage for record in mine for process in record["processes"])


def _member(node: str, boot: str) -> str:
    return f"{node} {boot}"
