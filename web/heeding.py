"""Waits until the processes that make model calls have heard of a change to the policy, and obey it."""

from __future__ import annotations

import time
from typing import Any

import redis

from prorl_celery.scheduling.policy import Heed, PolicyRegistry
from prorl_celery.store.clients import reaching_redis

LOOK_AGAIN_SECONDS = 1.0
"""A process that died says nothing any more: its word lapses, and that is seen by looking."""


class Heeding:
    """On a client for calls that block. Thread-safe; each wait holds one of its connections."""

    def __init__(self, policy: PolicyRegistry, client: redis.Redis) -> None:
        self._policy = policy
        self._client: Any = client

    def known(self, epoch: int, timeout: float) -> Heed:
        """Wait until every live process has heard of this epoch, at most `timeout` seconds; how far that came.

        Raises `StoreUnavailable`.
        """
        return self._wait(epoch, None, timeout, still=False)[0]

    def paused(self, epoch: int, model: str | None, timeout: float) -> tuple[Heed, bool]:
        """Wait until every live process obeys the pause of this epoch and has no call of the model in flight, or that
        pause is over; how far that came, and whether the pause stands. Raises `StoreUnavailable`.
        """
        return self._wait(epoch, model, timeout, still=True)

    def _wait(self, epoch: int, model: str | None, timeout: float, *, still: bool) -> tuple[Heed, bool]:
        deadline = time.monotonic() + timeout
        keys = self._policy.keys
        with reaching_redis(), self._client.pubsub() as heard:
            heard.subscribe(keys("policy", "told"), keys("policy"))
            while True:
                heed = self._policy.heed(epoch, model)
                stands = not still or any(pause.epoch == epoch for pause in self._policy.look().pauses)
                left = deadline - time.monotonic()
                done = heed.complete if still else heed.acknowledged == heed.processes
                if done or not stands or left <= 0:
                    return heed, stands
                heard.get_message(timeout=min(left, LOOK_AGAIN_SECONDS))
