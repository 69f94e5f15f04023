"""What keeps the jobs of dead processes from being lost: the sweep, and what is told to it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from prorl_celery.jobs.claims import SweepOutcome
from prorl_celery.jobs.replies import message_of, milliseconds
from prorl_celery.jobs.turn_writing import TurnWriter

CANCEL_PATIENCE_SECONDS = 10.0
"""How long a worker has to act on a cancel before the sweep ends the job."""

SWEEP_JOBS = 200
"""Most jobs of one kind that one sweep looks at, so that no script holds Redis for long."""

BROKER_SEPARATOR = "\x06\x16"
"""What kombu puts between a queue and a level other than 0 in the name of a list."""

BROKER_BINDINGS = "_kombu.binding.prorl"
"""Where kombu keeps the queues of our exchange."""

LEAD_SWEEPS = 3
"""Sweeps that the leading process may miss before another takes over."""


class Upkeep(TurnWriter):
    """Sweeps, and knows who does."""

    def sweep(self) -> SweepOutcome:
        """Repair what dead processes left, find lost messages, purge what expired. Bounded work; call it often."""
        every = milliseconds(self._settings.sweep_seconds)
        lapsed, ended = self._run("sweep_leases", SWEEP_JOBS, milliseconds(CANCEL_PATIENCE_SECONDS), every)
        lost = self._run(
            "sweep_queues",
            SWEEP_JOBS,
            milliseconds(self._settings.republish_after_seconds),
            BROKER_SEPARATOR,
            BROKER_BINDINGS,
        )
        purged = self._run("purge", SWEEP_JOBS)
        return SweepOutcome([message_of(parts) for parts in lapsed + lost], [job.decode() for job in ended], purged)

    def resign(self, process_id: str) -> None:
        """Give the lead up, so that another process sweeps at once."""
        self._run("resign", process_id)

    def lead(self, process_id: str) -> bool:
        """Whether this process is the one that sweeps. Ask before every sweep: asking keeps the lead."""
        return bool(self._run("lead", process_id, milliseconds(LEAD_SWEEPS * self._settings.sweep_seconds)))

    def lapse(self, process_id: str) -> int:
        """Make the leases of a process's jobs lapse now, since it is known to be dead; the next sweep handles them.
        Returns how many.
        """
        return int(self._run("lapse", process_id))

    def note_stall(self, job_id: str, fence: int, stall: Mapping[str, Any] | None) -> bool:
        """Note that a running job does not move: `act`, `thread` and `since_s`, how long it has been at it. None: it
        moves again, as its next turn or stage says as well. False when the claim is gone.
        """
        return bool(self._run("note_stall", job_id, fence, "" if stall is None else json.dumps(dict(stall))))
