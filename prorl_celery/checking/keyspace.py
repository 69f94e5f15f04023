"""All keys of ours: which there are, whether each is one that we know and of the type that it should be."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from prorl_celery.checking.finding import Finding, pages, shown
from prorl_celery.jobs.messages import Message
from prorl_celery.store.clients import reaching_redis
from prorl_celery.store.keys import Keys

PAGE = 1000
"""Keys of one SCAN; names of one pipeline."""

TYPES = {
    **dict.fromkeys(("leases", "cancels", "expiry", "dead", "stalled", "nodes:seen"), "zset"),
    **dict.fromkeys(("queues", "draining"), "set"),
    **dict.fromkeys(("passed", "backends", "nodes", "policy:pauses", "policy:processes", "counts"), "hash"),
    **dict.fromkeys(("seq", "results:trimmed", "policy:epoch", "leader", "swept"), "string"),
    "results": "stream",
    **dict.fromkeys(("revoked", "batches", "batches_live", "batches_left"), "zset"),
    **dict.fromkeys(("dapo:", "dapo_prompts:", "dapo_names:", "dapo_specs:", "group:"), "hash"),
    **dict.fromkeys(("dapo_waiting:", "uniform:"), "zset"),
    **dict.fromkeys(("dapo_open:", "members:"), "set"),
    "dapo_won:": "list",
    "uniform_clock:": "string",
    **dict.fromkeys(("index:", "batch:", "queued:", "heap:"), "zset"),
    **dict.fromkeys(("on:", "assigned:"), "set"),
    **dict.fromkeys(("joining:", "processes:"), "hash"),
    **dict.fromkeys(("policy:", "lost:"), "string"),
}
"""A key's type by its name, or by what its name begins with; those of single jobs are checked with the jobs."""

_OF_A_JOB = re.compile(r"(?:job|data|turns|events):([A-Za-z0-9._:-]{1,128})")


class Keyspace:
    """One walk over the keys. `jobs` and `others` are what it found: ids, and names without the prefix."""

    name = "keys"
    settle_seconds = 0.0

    def __init__(self, client: Any, keys: Keys) -> None:
        self._client = client
        self._keys = keys
        self.jobs: set[str] = set()
        self.others: set[str] = set()

    def look(self) -> Iterator[Finding]:
        """Walk, and tell of keys that are unknown or of a wrong type."""
        self.jobs.clear()
        self.others.clear()
        prefix, cursor = self._keys.prefix, 0
        pattern = re.sub(r"([\\*?\[\]])", r"\\\1", prefix) + "*"
        while True:
            with reaching_redis():
                cursor, page = self._client.scan(cursor, match=pattern, count=PAGE)
            for raw in page:
                name = raw.decode(errors="surrogateescape")[len(prefix) :]
                if of_a_job := _OF_A_JOB.fullmatch(name):
                    self.jobs.add(of_a_job[1])
                else:
                    self.others.add(name)
            if cursor == 0:
                break
        yield from self._judge(sorted(self.others))

    def again(self, findings: Sequence[Finding]) -> Iterable[Finding]:
        """Those keys that are still there and still wrong."""
        return self._judge([finding.place[0] for finding in findings])

    def mend(self, findings: Sequence[Finding]) -> list[Message]:
        """Delete them."""
        with reaching_redis():
            for finding in self.again(findings):
                self._client.unlink(self._key(finding.place[0]))
        return []

    def _judge(self, names: Sequence[str]) -> Iterator[Finding]:
        for page in pages(names, PAGE):
            with reaching_redis():
                pipe = self._client.pipeline(transaction=False)
                for name in page:
                    pipe.type(self._key(name))
                types = [kind.decode() for kind in pipe.execute()]
            for name, kind in zip(page, types, strict=True):
                key = shown(self._keys(name))
                if kind == "none":
                    continue
                if not self._keys.known(self._keys(name)):
                    yield Finding("unknown-key", key, f"a {kind} that is no key of ours", place=(name,))
                elif (wanted := type_of(name)) != kind:
                    yield Finding("wrong-type", key, f"is a {kind}, not a {wanted}", place=(name,))

    def _key(self, name: str) -> bytes:
        return self._keys(name).encode(errors="surrogateescape")


def type_of(name: str) -> str:
    """The type of a known key, by its name without the prefix."""
    return TYPES.get(name) or TYPES[name.split(":", 1)[0] + ":"]
