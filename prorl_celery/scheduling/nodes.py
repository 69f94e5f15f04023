"""The nodes of the fleet, as their own heartbeats describe them.

A record is believed for `NODE_TTL_SECONDS`; a node that stays silent longer counts as gone, and the sweep sends the
jobs that wait for it back to init.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import redis

from prorl_celery.settings import Settings
from prorl_celery.store.scripts import Scripts

NODE_TTL_SECONDS = 10.0
TTL_MS = round(NODE_TTL_SECONDS * 1000)


class NodeRegistry:
    """Keeps the nodes' records. Raises `StoreUnavailable`."""

    def __init__(self, client: redis.Redis, settings: Settings) -> None:
        self._run = Scripts(client, settings).run

    def beat(self, record: Mapping[str, Any]) -> None:
        """Say that a node is alive, and how it is: `node`, `boot`, and what operators see (slots, room...)."""
        member = _member(record["node"], record["boot"])
        self._run("node_beat", member, json.dumps(record), TTL_MS)

    def beat_process(self, node: str, boot: str, record: Mapping[str, Any]) -> None:
        """Say that a stage process of a node is at work: `name`, `stage`, `pid`, `slots`, `busy`, `handlers`."""
        self._run("process_beat", _member(node, boot), record["name"], json.dumps(record), TTL_MS)

    def forget_process(self, node: str, boot: str, name: str) -> None:
        """Say that a stage process has stopped."""
        self._run("process_beat", _member(node, boot), name, "", TTL_MS)

    def nodes(self) -> list[dict[str, Any]]:
        """The records of the nodes that are alive, by name; each with its live `processes`, the `busy` slots by stage
        and the `handlers` that they know.
        """
        found = []
        for record, *processes in self._run("nodes"):
            node = json.loads(record)
            node["processes"] = sorted((json.loads(text) for text in processes), key=lambda p: str(p["name"]))
            node["busy"] = {}
            for process in node["processes"]:
                node["busy"][process["stage"]] = node["busy"].get(process["stage"], 0) + process["busy"]
            node["handlers"] = sorted({name for process in node["processes"] for name in process["handlers"]})
            found.append(node)
        return sorted(found, key=lambda node: (node["node"], node["boot"]))

    def remove(self, node: str, boot: str) -> None:
        """Say that a node has stopped: what waits for it need not wait for its silence."""
        self._run("node_beat", _member(node, boot), "", 0)

    def other_has_room(self, node: str) -> bool:
        """Whether init could make a sandbox on another node right now (a record's `room` is above 0)."""
        return any(record["node"] != node and record.get("room") for record in self.nodes())

    def works_on(self, stage: str, node: str, boot: str) -> bool:
        """Whether a node has a live process of this stage."""
        mine = (record for record in self.nodes() if (record["node"], record["boot"]) == (node, boot))
        return any(process["stage"] == stage for record in mine for process in record["processes"])


def _member(node: str, boot: str) -> str:
    return f"{node} {boot}"
