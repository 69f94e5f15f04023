"""Ways to damage the store of `checking_help.busy_store`, and what a check must say of each.

A damage is what a lost write, a script of an older version, a person at redis-cli or a bug could leave. `P` is the
prefix.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass

import redis

P = "prorl:"
OLD = 1_000_000_000_000
"""A time long past, ms."""


@dataclass(frozen=True)
class Damage:
    """What is done to the store, and the kind and subject of the finding that it must give: the only one, or, not
    `alone`, with others about the same subject.
    """

    name: str
    act: Callable[[redis.Redis], object]
    kind: str
    subject: str
    alone: bool = True


def soon() -> int:
    return round(time.time() * 1000) + 10_000_000


def lease_of(client: redis.Redis, job: str) -> str:
    return f"{client.hget(P + 'job:' + job, 'fence').decode()}|{job}"


def drop_lease(client: redis.Redis, job: str) -> None:
    assert client.zrem(P + "leases", lease_of(client, job)) == 1


def age_message(client: redis.Redis) -> None:
    """The broker has lost what it was told of `waits` a long time ago."""
    assert client.lrem("init\x06\x163", 1, client.lindex("init\x06\x163", -1)) == 1
    client.hset(P + "job:waits", "published", OLD)


def break_heap(client: redis.Redis) -> None:
    client.zadd(P + "heap:m", {"http://a": 77})


def weigh(client: redis.Redis) -> None:
    for url in ("http://a", "http://b"):
        client.zadd(P + "heap:m", {url: client.scard(P + "assigned:" + url)})


def count_a_dead_job(client: redis.Redis) -> None:
    client.sadd(P + "assigned:http://a", "nobody")
    weigh(client)


def uncount(client: redis.Redis) -> None:
    client.srem(P + "assigned:" + client.hget(P + "job:runs", "backend").decode(), "runs")
    weigh(client)


def list_of_a_dead_node(client: redis.Redis) -> None:
    client.sadd("_kombu.binding.prorl", "rollout.n9.b9\x06\x16\x06\x16rollout.n9.b9")
    client.rpush("rollout.n9.b9\x06\x163", "{}")


def second_entry(client: redis.Redis) -> None:
    client.xadd(P + "results", {"job": "done"})


def unlist_one_of_many_evals(client: redis.Redis) -> None:
    client.hset(P + "job:dead", mapping={"max": 2, "evals": 2})
    client.zrem(P + "dead", "dead")


def untell(client: redis.Redis) -> None:
    client.xdel(P + "results", client.hget(P + "job:done", "entry"))


def park(client: redis.Redis) -> None:
    """A job of a batch that is being filled is taken for one that waits for an adoption."""
    assert client.zrem(P + "queued:3:init", "q:1:0") == 1
    client.hset(P + "job:q:1:0", "parked", "1")


def forget_node(client: redis.Redis) -> None:
    client.hset(P + "nodes", "n9 b9", json.dumps({"node": "n9", "boot": "b9"}))


DAMAGES = [
    # Records and data
    Damage("record-without-fence", lambda c: c.hdel(P + "job:runs", "fence"), "broken-record", "runs", alone=False),
    Damage(
        "record-of-no-state",
        lambda c: c.hset(P + "job:waits", "state", "dreaming"),
        "broken-record",
        "waits",
        alone=False,
    ),
    Damage(
        "record-of-no-stage", lambda c: c.hset(P + "job:bound", "stage", "x"), "broken-record", "bound", alone=False
    ),
    Damage("record-without-hash", lambda c: c.hdel(P + "job:done", "hash"), "broken-record", "done"),
    Damage("ended-without-a-time", lambda c: c.hdel(P + "job:done", "finished"), "broken-record", "done"),
    Damage("data-without-job", lambda c: c.hset(P + "data:nobody", "spec", "x"), "orphan", P + "data:nobody"),
    Damage("turns-without-job", lambda c: c.rpush(P + "turns:nobody", "x"), "orphan", P + "turns:nobody"),
    Damage("events-without-job", lambda c: c.rpush(P + "events:nobody", "1 1 x"), "orphan", P + "events:nobody"),
    Damage("request-lost", lambda c: c.hdel(P + "data:waits", "spec"), "no-request", "waits"),
    Damage("request-of-an-ended-job-lost", lambda c: c.delete(P + "data:done"), "no-request", "done"),
    Damage("output-lost", lambda c: c.hdel(P + "data:scored", "rollout"), "no-output", "scored"),
    Damage("turn-lost", lambda c: c.delete(P + "turns:runs"), "turn-count", "runs"),
    Damage("turn-count-off", lambda c: c.hincrby(P + "job:done", "nturns", 5), "turn-count", "done"),
    Damage("unknown-key", lambda c: c.set(P + "whatsit", 1), "unknown-key", P + "whatsit"),
    Damage("unknown-key-of-odd-bytes", lambda c: c.set(b"prorl:\xff\xfe", 1), "unknown-key", P + "\ufffd\ufffd"),
    Damage("wrong-type", lambda c: c.set(P + "draining", 1), "wrong-type", P + "draining"),
    Damage("wrong-type-of-a-log", lambda c: c.set(P + "turns:waits", 1), "wrong-type", P + "turns:waits"),
    # Indexes
    Damage("index-without-job", lambda c: c.zadd(P + "index:completed", {"nobody": 3}), "stray-index", "nobody"),
    Damage("index-of-another-state", lambda c: c.zadd(P + "index:failed", {"done": 3}), "stray-index", "done"),
    Damage("job-without-index", lambda c: c.zrem(P + "index:running:rollout", "runs"), "not-indexed", "runs"),
    Damage("index-out-of-order", lambda c: c.zadd(P + "index:completed", {"done": 0.5}), "not-indexed", "done"),
    Damage("batch-without-job", lambda c: c.zadd(P + "batch:b", {"nobody": 3}), "stray-batch", "nobody"),
    Damage("job-without-batch", lambda c: c.zrem(P + "batch:b", "done"), "not-in-batch", "done"),
    # Queues and messages
    Damage("job-in-no-queue", lambda c: c.zrem(P + "queued:3:init", "waits"), "not-queued", "waits"),
    Damage("queue-without-job", lambda c: c.zadd(P + "queued:3:init", {"nobody": 3}), "stray-queued", "nobody"),
    Damage("queue-of-a-running-job", lambda c: c.zadd(P + "queued:3:init", {"runs": 3}), "stray-queued", "runs"),
    Damage("queue-unlisted", lambda c: c.srem(P + "queues", "rollout.n1.b1"), "queue-unlisted", "bound"),
    Damage("message-lost", age_message, "message-lost", "waits"),
    Damage(
        "binding-of-a-dead-node",
        lambda c: c.sadd("_kombu.binding.prorl", "rollout.n9.b9\x06\x16\x06\x16rollout.n9.b9"),
        "stray-binding",
        "rollout.n9.b9",
    ),
    Damage("list-of-a-dead-node", list_of_a_dead_node, "stray-list", "rollout.n9.b9\x06\x163", alone=False),
    Damage("lane-passed-ahead", lambda c: c.hset(P + "passed", "3:init", 10**9), "stray-passed", "3:init"),
    Damage("lane-of-no-queue", lambda c: c.hset(P + "passed", "3:lunch:old", 1), "stray-passed", "3:lunch:old"),
    Damage("sequence-behind", lambda c: c.delete(P + "seq"), "sequence", "seq"),
    # Claims
    Damage("running-without-lease", lambda c: drop_lease(c, "runs"), "no-lease", "runs"),
    Damage("lease-of-an-ended-job", lambda c: c.zadd(P + "leases", {"3|done": soon()}), "stray-lease", "3|done"),
    Damage("lease-of-an-old-claim", lambda c: c.zadd(P + "leases", {"1|runs": soon()}), "stray-lease", "1|runs"),
    Damage("lease-of-no-job", lambda c: c.zadd(P + "leases", {"nonsense": soon()}), "stray-lease", "nonsense"),
    Damage("lease-never-swept", lambda c: c.zadd(P + "leases", {lease_of(c, "runs"): OLD}), "overdue-lease", "2|runs"),
    Damage("cancel-unlisted", lambda c: c.zrem(P + "cancels", "stuck"), "cancel-unlisted", "stuck"),
    Damage("cancel-of-nobody", lambda c: c.zadd(P + "cancels", {"runs": soon()}), "stray-cancel", "runs"),
    Damage("cancel-never-swept", lambda c: c.zadd(P + "cancels", {"stuck": OLD}), "overdue-cancel", "stuck"),
    Damage("not-on-its-node", lambda c: c.srem(P + "on:n1", "runs"), "not-placed", "runs"),
    Damage("on-another-node", lambda c: c.sadd(P + "on:n2", "runs"), "stray-placed", "runs"),
    Damage("ended-on-a-node", lambda c: c.hset(P + "job:done", "on", "n1"), "still-placed", "done"),
    Damage("stall-of-nobody", lambda c: c.zadd(P + "stalled", {"runs": 1}), "stray-stall", "runs"),
    Damage("stall-unlisted", lambda c: c.zrem(P + "stalled", "stuck"), "stall-unlisted", "stuck"),
    # Backends
    Damage("assigned-to-a-dead-job", count_a_dead_job, "stray-assigned", "nobody"),
    Damage("uncounted-at-its-backend", uncount, "not-assigned", "runs"),
    Damage("assigned-at-no-backend", lambda c: c.sadd(P + "assigned:http://z", "runs"), "stray-assigned", "runs"),
    Damage("held-by-a-queued-job", lambda c: c.hset(P + "job:waits", "held", "1"), "backend-held", "waits"),
    Damage("held-backend-forgotten", lambda c: c.hdel(P + "job:runs", "backend"), "backend-held", "runs", alone=False),
    Damage("held-by-an-ended-job", lambda c: c.hset(P + "job:done", "held", "1"), "backend-held", "done"),
    Damage("count-off", break_heap, "heap-score", "http://a"),
    Damage("heap-without-backend", lambda c: c.zadd(P + "heap:m", {"http://z": 0}), "stray-heap", "http://z"),
    Damage("backend-out-of-the-heap", lambda c: c.zrem(P + "heap:m", "http://b"), "not-in-heap", "http://b"),
    Damage("joins-nobody", lambda c: c.hset(P + "joining:m", "http://z", "0"), "stray-joining", "http://z"),
    # Ends and expiry
    Damage("live-record-expires", lambda c: c.pexpire(P + "job:waits", 10**8), "expires-early", "waits"),
    Damage("live-data-expire", lambda c: c.pexpire(P + "data:runs", 10**8), "expires-early", "runs"),
    Damage("ended-record-stays", lambda c: c.persist(P + "job:done"), "no-expiry", "done"),
    Damage("ended-turns-stay", lambda c: c.persist(P + "turns:done"), "no-expiry", "done"),
    Damage("ended-and-not-to-expire", lambda c: c.zrem(P + "expiry", "done"), "not-expiring", "done"),
    Damage("never-purged", lambda c: c.zadd(P + "expiry", {"done": OLD}), "overdue-expiry", "done"),
    Damage("live-and-to-expire", lambda c: c.zadd(P + "expiry", {"waits": soon()}), "stray-expiry", "waits"),
    Damage("leader-for-ever", lambda c: c.set(P + "leader", "somebody"), "no-expiry", P + "leader"),
    Damage("dead-unlisted", lambda c: c.zrem(P + "dead", "dead"), "not-dead", "dead"),
    Damage("dead-by-evals-unlisted", unlist_one_of_many_evals, "not-dead", "dead"),
    Damage("dead-and-well", lambda c: c.zadd(P + "dead", {"done": 1}), "stray-dead", "done"),
    Damage("told-twice", second_entry, "told-twice", "done"),
    Damage("told-of-nobody", lambda c: c.xadd(P + "results", {"job": "nobody"}), "told-of-none", "nobody"),
    Damage("not-told", untell, "not-told", "done"),
    # The fleet
    Damage("node-never-seen", forget_node, "stray-node", "n9 b9"),
    Damage("node-without-record", lambda c: c.zadd(P + "nodes:seen", {"n9 b9": soon()}), "stray-node", "n9 b9"),
    Damage("node-that-drains-for-ever", lambda c: c.sadd(P + "draining", "n9 b9"), "stray-node", "n9 b9"),
    Damage("count-of-words", lambda c: c.hset(P + "counts", "went_on", "many"), "count", "went_on"),
    # Batches
    Damage("batch-without-a-state", lambda c: c.hdel(P + "dapo:q", "state"), "broken-batch", "q", alone=False),
    Damage("batch-without-its-target", lambda c: c.hdel(P + "dapo:q", "target"), "broken-batch", "q"),
    Damage("batch-that-lost-its-policy", lambda c: c.hdel(P + "dapo:k", "policy"), "broken-batch", "k"),
    Damage("batch-that-counts-more-jobs", lambda c: c.hincrby(P + "dapo:q", "live", 3), "batch-count", "q"),
    Damage("batch-that-counts-fewer-groups", lambda c: c.hset(P + "dapo:q", "open", 0), "batch-count", "q"),
    Damage("batch-that-hopes-too-much", lambda c: c.hset(P + "dapo:q", "hope", 9), "batch-count", "q"),
    Damage("batch-that-thinks-it-won", lambda c: c.hset(P + "dapo:q", "won", 1), "batch-count", "q"),
    Damage("batch-nobody-tends", lambda c: c.zrem(P + "batches_live", "q"), "batch-unlisted", "q"),
    Damage("batch-that-none-lists", lambda c: c.zrem(P + "batches", "x"), "batch-unlisted", "x"),
    Damage("batch-kept-for-ever", lambda c: c.zrem(P + "batches_left", "k"), "batch-unlisted", "k"),
    Damage("batch-that-is-no-more-filled", lambda c: c.zadd(P + "batches_live", {"x": 1}), "stray-batches", "x"),
    Damage("batch-that-never-was", lambda c: c.zadd(P + "batches", {"nobody": 1}), "stray-batches", "nobody"),
    Damage("batch-that-keeps-nothing", lambda c: c.zadd(P + "batches_left", {"x": soon()}), "stray-batches", "x"),
    Damage("batch-that-nobody-gave-up", lambda c: c.zadd(P + "batches_left", {"k": OLD}), "overdue-left", "k"),
    Damage("batch-that-expires", lambda c: c.pexpire(P + "dapo_waiting:q", 10**8), "expires-early", "q"),
    Damage("batch-that-stays", lambda c: c.persist(P + "dapo:x"), "no-expiry", "x"),
    Damage("prompts-of-no-batch", lambda c: c.hset(P + "dapo_names:y", "0", "p"), "orphan", P + "dapo_names:y"),
    Damage("memory-for-ever", lambda c: c.zadd(P + "uniform:m", {"p9": 1}), "no-expiry", P + "uniform:m"),
    Damage("group-that-lost-an-end", lambda c: c.hdel(P + "group:0:q", "job:0"), "broken-group", "q:0", alone=False),
    Damage("group-without-rewards", lambda c: c.hdel(P + "group:0:q", "min"), "broken-group", "q:0", alone=False),
    Damage("group-of-nobody", lambda c: c.hset(P + "group:7:q", "owner", "nobody"), "lost-group", "q:7"),
    Damage("group-unlisted", lambda c: c.srem(P + "dapo_open:q", "q:1"), "lost-group", "q:1", alone=False),
    Damage("group-that-never-was", lambda c: c.sadd(P + "dapo_open:q", "q:9"), "stray-group", "q:9"),
    Damage(
        "group-that-is-left-open", lambda c: c.hset(P + "dapo:k", "adopted_by", "z"), "group-left", "k", alone=False
    ),
    Damage("group-that-expires", lambda c: c.pexpire(P + "group:1:q", 10**8), "expires-early", "q:1"),
    Damage("closed-group-that-stays", lambda c: c.persist(P + "group:0:k"), "no-expiry", "k:0"),
    Damage("sample-uncounted", lambda c: c.srem(P + "members:1:q", "q:1:0"), "not-member", "q:1:0", alone=False),
    Damage("sample-of-nobody", lambda c: c.sadd(P + "members:1:k", "k:1:9"), "stray-member", "k:1:9", alone=False),
    Damage(
        "sample-without-a-number", lambda c: c.hdel(P + "job:q:1:0", "sample"), "broken-record", "q:1:0", alone=False
    ),
    Damage("prompt-lost", lambda c: c.hdel(P + "dapo_specs:q", "0"), "no-request", "q:0:1"),
    Damage(
        "parked-without-a-prompt", lambda c: c.hdel(P + "job:k:1:0", "prompt"), "broken-record", "k:1:0", alone=False
    ),
    Damage("waiting-prompt-lost", lambda c: c.hdel(P + "dapo_specs:q", "3"), "lost-prompts", "q"),
    Damage("parked-for-no-reason", park, "stray-parked", "q:1:0"),
    Damage("surplus-that-goes-on", lambda c: c.zrem(P + "revoked", "x:0:0"), "not-revoked", "x:0:0", alone=False),
    Damage("revoked-and-over", lambda c: c.zadd(P + "revoked", {"done": soon()}), "stray-revoked", "done"),
    Damage("revoked-and-never-ended", lambda c: c.zadd(P + "revoked", {"x:0:0": OLD}), "overdue-revoked", "x:0:0"),
]
