"""What a soak came to: counted at the backends, in the store, on the machine, and by the checker."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from prorl_celery.bench.soak.recovery import Hit
from prorl_celery.jobs.store import JobStore
from prorl_celery.node.pause import until
from prorl_celery.store.clients import reaching_redis
from prorl_celery.store.keys import Keys

_CALL = re.compile(r"(?P<job>soak-\d+)-t(?P<turn>\d+)-[0-9a-f]{8}$")
FINISHED = ("stop", "length")
PURGE_S = 60.0


def turns_redone(
    journals: Iterable[Path], hits: Sequence[Hit], keeper_losses: Sequence[float]
) -> tuple[list[str], int]:
    """Calls that sampled a turn to its end although it was in the log when the job's worker was killed: the jobs of
    those while the keeper lived, one for each call, and how many there were whose sandbox it had taken along.
    """
    calls: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for journal in journals:
        for line in journal.read_text().splitlines():
            call = json.loads(line)
            found = _CALL.search(call["request_id"])
            if found is not None and call["outcome"] in FINISHED:
                calls[found["job"]].append((int(found["turn"]), call["started"]))
    redone: set[tuple[str, int, float]] = set()
    excused: set[tuple[str, int, float]] = set()
    for hit in hits:
        for turn, started in calls[hit.job_id]:
            if turn < hit.turns and started > hit.at:
                lost = any(hit.at <= loss < started for loss in keeper_losses) or hit.victim == "keeper"
                (excused if lost else redone).add((hit.job_id, turn, started))
    return sorted(job_id for job_id, _, _ in redone - excused), len(excused)


def executions_wasted(store: JobStore, ids: Iterable[str]) -> tuple[int, int]:
    """Claims of a stage beyond the first of each job that no later claim went on from; and all claims."""
    claims = beyond = 0
    for job_id in ids:
        begun = Counter(event.what for event in store.events(job_id) if event.what.startswith("running "))
        claims += begun.total()
        beyond += begun.total() - len(begun)
    return max(0, beyond - store.counters().get("went_on", 0)), claims


def keys_left(client: Any, keys: Keys, store: JobStore) -> int:
    """Let every result expire now; how many keys of jobs are there then, the tombstones that Redis itself expires left
    out. Raises `StoreUnavailable`.
    """
    expiry = keys("expiry")

    def purged() -> bool:
        with reaching_redis():
            for job_id in client.zrange(expiry, 0, 999):
                client.zadd(expiry, {job_id: 0}, xx=True)
        store.sweep()
        with reaching_redis():
            return not client.zcard(expiry)

    until(purged, PURGE_S, every=0.0)
    forms = re.compile(
        re.escape(keys.prefix)
        + r"(job|data|turns|events|batch|queued|on|assigned|index|leases|cancels|dead|stalled|expiry)\b"
    )
    with reaching_redis():
        found = [key.decode() for key in client.scan_iter(count=1000)]
        return sum(bool(forms.match(key)) and client.ttl(key) == -1 for key in found)
