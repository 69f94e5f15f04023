"""A rolling restart: the supervisor's program is tried, executed in its place, and then its children replaced in turn.

    serving -> trying -> [the process executes itself anew] -> replacing -> serving
                  '--------------------> failed <------------------'

Nothing ends before what follows it has begun: a program that does not start leaves the running one as it is, and when a
fresh child does not come up, those that have not had their turn go on as they are. What a unit that is `kept` runs is
not touched. How far it is stands in a file, for `prorl restart`.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Mapping
from typing import Literal

from prorl_celery.node.children import Child
from prorl_celery.node.crew import Crew
from prorl_celery.node.renewal import Estate, Renewal, bequeath, execute
from prorl_celery.node.requests import Requests
from prorl_celery.node.units import Slot, Unit
from prorl_celery.sandbox.owner import this_process

REHEARSAL_S = 120.0
"""How long the program may take to find out whether it would start."""
COMES_UP_S = 60.0
"""How long a fresh child may take until it is at work, once its predecessor has ended."""
FAILURES_MOST = 3
"""Deaths in a row of a fresh child at which the restart is given up."""

State = Literal["serving", "trying", "replacing", "failed"]

log = logging.getLogger("prorl.supervisor")


class RollingRestart:
    """Of one supervisor. `advance` takes the next step that is due; nothing here waits."""

    def __init__(
        self,
        renewal: Renewal,
        slots: Mapping[str, Slot],
        crew: Crew,
        requests: Requests,
        launch: Callable[[Slot], Child],
    ) -> None:
        self._renewal = renewal
        self._slots = slots
        self._crew = crew
        self._requests = requests
        self._launch = launch
        self._trial = Slot(Unit("restart", renewal.rehearsal, once=True))
        self._trial_code: int | None = None
        self._turn: tuple[Slot, Child] | None = None
        self._turn_ends = float("inf")
        self._wanted = renewal.estate is not None and renewal.estate.again
        self._error: str | None = None
        self._state: State = "serving" if renewal.estate is None else "replacing"
        self._restarts = 0 if renewal.estate is None else renewal.estate.restarts
        self._owner = this_process()
        self._note()

    @property
    def deadline(self) -> float:
        """When `advance` has something to do though nothing happens."""
        return self._turn_ends

    def ask(self) -> None:
        """A restart is asked for; one more when one is under way."""
        self._wanted = True

    def advance(self) -> None:
        """Take the steps that are due."""
        if self._state == "replacing":
            self._replace()
        elif self._state == "trying":
            self._see()
        elif self._wanted:
            self._wanted = False
            self._try()

    def ended(self, slot: Slot, code: int) -> bool:
        """Whether a child that has ended was ours: the trial of the program."""
        if slot is not self._trial:
            return False
        self._trial_code = code
        return True

    def _try(self) -> None:
        log.info("restarting: trying whether the program starts")
        self._change("trying")
        try:
            self._trial.child = self._launch(self._trial)
        except OSError as error:
            self._give_up(f"the program cannot be tried: {error}")
            return
        self._trial.child.kill_at = time.monotonic() + REHEARSAL_S
        self._trial_code = None

    def _see(self) -> None:
        if self._trial_code == 0:
            self._execute()
        elif self._trial_code is not None:
            self._give_up(f"the program does not start any more (exit code {self._trial_code}); its output says why")

    def _execute(self) -> None:
        slots, children = bequeath(self._slots.values(), self._crew)
        estate = Estate(
            self._renewal.carried(),
            dict(self._renewal.descriptors),
            self._requests.descriptors,
            self._restarts,
            self._wanted,
            slots,
            children,
        )
        try:
            execute(self._renewal.program, estate)
        except OSError as error:
            self._give_up(f"the program cannot be executed: {error}")

    def _replace(self) -> None:
        if self._turn is not None:
            slot, old = self._turn
            if old in self._crew:  # it is killed when its grace is over
                return
            if slot.failures >= FAILURES_MOST or time.monotonic() >= self._turn_ends:
                self._give_up(f"a fresh {slot.unit.name} does not come up")
                return
            if not _is_up(slot, old):
                self._turn_ends = min(self._turn_ends, time.monotonic() + COMES_UP_S)
                return
            self._turn, self._turn_ends = None, float("inf")
        outdated = [slot for slot in self._slots.values() if slot.child is not None and slot.child.outdated]
        if not outdated:
            log.info("restarted")
            self._restarts += 1
            self._change("serving")
            return
        slot = outdated[0]
        child = self._crew.retire(slot)
        assert child is not None
        slot.failures, slot.wanted = 0, False
        self._turn = slot, child
        self._crew.dismiss(slot, child)
        self._note()

    def _give_up(self, why: str) -> None:
        log.error("not restarted: %s", why)
        self._restarts += 1
        self._turn, self._turn_ends = None, float("inf")
        self._error = why
        self._change("failed")

    def _change(self, state: State) -> None:
        self._state = state
        if state != "failed":
            self._error = None
        self._note()

    def _note(self) -> None:
        told = {
            "pid": os.getpid(),
            "owner": str(self._owner),
            "state": self._state,
            "restarts": self._restarts,
            "error": self._error,
            "outdated": [slot.unit.name for slot in self._slots.values() if slot.child and slot.child.outdated],
        }
        fresh = self._renewal.note.with_suffix(".new")
        try:
            fresh.write_text(json.dumps(told) + "\n")
            fresh.replace(self._renewal.note)
        except OSError as error:  # a full disk must not end what it tells of
            log.warning("cannot write %s: %s", self._renewal.note, error)


def _is_up(slot: Slot, old: Child) -> bool:
    """Whether the slot's fresh child is at work, where one is to be: as far as its predecessor was."""
    if slot.child is None:
        return slot.idle
    return slot.ready and (slot.child.beaten_at is not None or old.beaten_at is None)
