"""Steps of the store that are done again while Redis is away.

A stage's work must not be lost to a restart of Redis, nor to an answer that got lost: every step may be repeated as it
is, and says the same again. The claim's lease lives on meanwhile: the heartbeat renews it as soon as Redis is back.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from prorl_celery.errors import StoreUnavailable

log = logging.getLogger(__name__)

T = TypeVar("T")

INSIST_SECONDS = 120.0
"""A Redis that is away for longer is a matter for the sweep: then the lease lapses."""
PAUSE_FIRST_SECONDS = 0.1
PAUSE_MOST_SECONDS = 2.0


def insist(step: Callable[[], T], pause: Callable[[float], bool], *, seconds: float = INSIST_SECONDS) -> T:
    """What the step gives, once Redis answers. `pause` waits for so many seconds, and says whether to go on; it may
    raise.

    Raises: what the step and `pause` raise; `StoreUnavailable` after `seconds`, or when `pause` says no.
    """
    deadline = time.monotonic() + seconds
    wait = PAUSE_FIRST_SECONDS
    while True:
        try:
            return step()
        except StoreUnavailable as error:
            if time.monotonic() + wait > deadline or not pause(wait):
                raise
            log.warning("done again: %s", error)
        wait = min(2 * wait, PAUSE_MOST_SECONDS)
