"""What there is once: the counters, the nodes' records, what the lost-message rule remembers, keys that must expire."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from prorl_celery.checking.finding import Finding, findings_of, pages
from prorl_celery.jobs.messages import Message
from prorl_celery.store.clients import reaching_redis
from prorl_celery.store.keys import Keys

PAGE = 500
MUST_EXPIRE = ("processes:", "policy:op:", "lost:", "uniform:", "uniform_clock:")
MUST_EXPIRE_WHOLE = ("leader", "policy:processes")
ORDERED = ("index:", "queued:")


class Fleet:
    """Looks at those keys that the keyspace has."""

    name = "fleet"
    settle_seconds = 0.0

    def __init__(self, client: Any, run: Callable[..., Any], keys: Keys, known: set[str]) -> None:
        self._client = client
        self._run = run
        self._keys = keys
        self._known = known

    def look(self) -> Iterator[Finding]:
        """All of it."""
        for page in self._pages():
            yield from findings_of(self._run("check_fleet", "look", *page)[0])

    def again(self, findings: Sequence[Finding]) -> Iterable[Finding]:
        """All of it: it is little."""
        return self.look()

    def mend(self, findings: Sequence[Finding]) -> list[Message]:
        """Mend all of it."""
        for page in self._pages():
            self._run("check_fleet", "mend", *page)
        return []

    def _pages(self) -> Iterator[tuple[str | int, ...]]:
        names = sorted(name for name in self._known if name in MUST_EXPIRE_WHOLE or name.startswith(MUST_EXPIRE))
        highest = self._highest()
        for page in list(pages(names, PAGE)) or [()]:
            yield (highest, *page)

    def _highest(self) -> int:
        """The highest order that was given out, of creation or of publishing."""
        names = [name for name in self._known if name.startswith(ORDERED)]
        highest = 0
        for page in pages(names, PAGE):
            with reaching_redis():
                pipe = self._client.pipeline(transaction=False)
                for name in page:
                    pipe.zrange(self._keys(name), 0, 0, desc=True, withscores=True)
                highest = max([highest, *(int(last[0][1]) for last in pipe.execute() if last)])
        return highest
