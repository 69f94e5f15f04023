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


class NodeRegistry:
    """Keeps the nodes' records. Raises `StoreUnavailable`."""

    def __init__(self, client: redis.Redis, settings: Settings) -> None:
        self._run = Scripts(client, settings).run

    def beat(self, record: Mapping[str, Any]) -> None:
        """Say that a node is alive, and how it is: `node`, `boot`, and what operators see (slots, room...)."""
        member = _member(record["node"], record["boot"])
        self._run("node_beat", member, json.dumps(record), round(NODE_TTL_SECONDS * 1000))

    def nodes(self) -> list[dict[str, Any]]:
        """The records of the nodes that are alive, by name."""
        records = [json.loads(text) for text in self._run("nodes") if text]
        return sorted(records, key=lambda record: (record["node"], record["boot"]))

    def remove(self, node: str, boot: str) -> None:
        """Say that a node has stopped: what waits for it need not wait for its silence."""
        self._run("node_beat", _member(node, boot), "", 0)

    def other_has_room(self, node: str) -> bool:
        """Whether init could make a sandbox on another node right now (a record's `room` is above 0)."""
        return any(record["node"] != node and record.get("room") for record in self.nodes())


def _member(node: str, boot: str) -> str:
    return f"{node} {boot}"
