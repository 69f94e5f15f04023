"""The queues that a worker process takes messages from. They change while it runs: a process that is retired takes
none, one whose node is drained only its node's own.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Sequence
from typing import Any

log = logging.getLogger(__name__)


class Intake:
    """Thread-safe. Only Celery's consumer, in its own thread, begins and ends consuming."""

    def __init__(self, queues: Sequence[str]) -> None:
        self._queues = tuple(queues)
        self._lock = threading.Lock()
        self._wanted = frozenset(queues)
        self._done: frozenset[str] | None = None
        self._consumer: Any = None

    @property
    def wanted(self) -> frozenset[str]:
        """The queues that should be read."""
        return self._wanted

    def attach(self, consumer: Any) -> None:
        """Celery's consumer, which reads all queues now."""
        with self._lock:
            self._consumer, self._done = consumer, frozenset(self._queues)
        self.check()

    def only(self, queues: Iterable[str]) -> None:
        """Read these of the process's queues, and no others."""
        with self._lock:
            self._wanted = frozenset(queues) & frozenset(self._queues)
        self.check()

    def check(self) -> None:
        """See that what is wanted is done: the connection to the broker may have been lost just then."""
        with self._lock:
            if self._consumer is None or self._done == self._wanted:
                return
            consumer = self._consumer
        consumer.call_soon(self._change)

    def _change(self) -> None:
        """In the consumer's thread."""
        with self._lock:
            wanted, consumer = self._wanted, self._consumer
        for queue in self._queues:
            consuming = consumer.task_consumer.consuming_from(queue)
            if queue in wanted and not consuming:
                consumer.add_task_queue(queue)
            elif queue not in wanted and consuming:
                consumer.cancel_task_queue(queue)
        with self._lock:
            self._done = wanted
        log.info("reads %s", ", ".join(sorted(wanted)) or "no queue")
