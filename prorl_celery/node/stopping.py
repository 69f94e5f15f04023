"""How a supervisor stops: phase by phase in rising order, each told by signal, each with its grace, then killed."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable

from prorl_celery.node.children import Child
from prorl_celery.node.crew import LAST_WAIT_S, Crew
from prorl_celery.node.units import Slot

HURRY_S = 1.0

log = logging.getLogger("prorl.supervisor")


class Stop:
    """The stop of a supervisor, from the word to the end of the last child."""

    def __init__(self, slots: Iterable[Slot], crew: Crew) -> None:
        self._slots = list(slots)
        self._crew = crew
        self._phases: list[int] | None = None
        self._hurry = False
        self._end_by: float | None = None

    @property
    def begun(self) -> bool:
        """Whether the word has been given."""
        return self._phases is not None

    @property
    def deadline(self) -> float:
        """When what is left at last has to be gone."""
        return float("inf") if self._end_by is None else self._end_by

    def begin_or_hurry(self, why: str) -> None:
        """Stop; the second time, cut every grace short."""
        if self._phases is None:
            log.info("stopping: %s", why)
            self._phases = sorted({0, *(slot.unit.stop_phase for slot in self._slots)})
            for slot in self._slots:
                if slot.probe is not None:
                    slot.probe.kill()
            for slot, child in self._crew:  # those that finish beside a fresh one have no more time than others now
                _cut_short(child, slot.unit.grace_seconds)
        elif not self._hurry:
            log.info("stopping at once: %s", why)
            self._hurry = True
            for slot, child in self._crew:
                _cut_short(child, HURRY_S)
                if child.told and not child.killed and child.kill_at is not None:
                    # A stage that drains gives its jobs back when it is told again.
                    child.tell(slot.unit.stop_signal, kill_at=child.kill_at)

    def advance(self) -> None:
        """Tell the children of the first phase that has any."""
        while self._phases:
            members = [pair for pair in self._crew if pair[0].unit.stop_phase == self._phases[0]]
            if not members:
                self._phases.pop(0)
                continue
            for slot, child in members:
                if not child.told:
                    grace = HURRY_S if self._hurry else slot.unit.grace_seconds
                    child.tell(slot.unit.stop_signal, kill_at=time.monotonic() + grace)
            return

    def over(self) -> bool:
        """Whether nothing is left: no child, and nothing that one of them started."""
        if self._phases is None or self._phases or len(self._crew):
            return False
        now = time.monotonic()
        self._end_by = now + LAST_WAIT_S if self._end_by is None else self._end_by
        left = self._crew.kill_orphans()
        if left and now >= self._end_by:
            log.error("processes that cannot be ended: %s", left)
            self._crew.unkillable = True
            return True
        return not left


def _cut_short(child: Child, grace: float) -> None:
    """Let a child that is due to be killed have no longer than that."""
    if child.kill_at is not None:
        child.kill_at = min(child.kill_at, time.monotonic() + grace)
