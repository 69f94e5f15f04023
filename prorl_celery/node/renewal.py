"""How a supervisor becomes one of newer code: it executes its program anew and keeps its pid, and so its children.

The process that ends writes an `Estate` into a memory file whose descriptor survives the execution, with all others
that the estate names; the one that begins (`prorl up --adopt FD`) inherits it. Signals stay blocked in between, so that
none finds the process without a handler; a stop that was asked for meanwhile is then obeyed.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from prorl_celery.errors import InternalError
from prorl_celery.node.children import OWN_SIGNALS, Child, Command
from prorl_celery.node.crew import Crew
from prorl_celery.node.units import Slot, Unit

ADOPT = "--adopt"
REHEARSE = "--rehearse"
"""Hidden options of the commands that run a supervisor: inherit from a descriptor; only see whether it would start."""

_SLOT_FIELDS = ("ready", "done", "wanted", "failures", "due")


@dataclass(frozen=True, slots=True)
class Estate:
    """What the next program of this process needs to go on. All of it is JSON."""

    carried: dict[str, Any]
    """What the command itself wants back (its port, a token)."""
    descriptors: dict[str, int]
    """Open files of its, by name (locks)."""
    requests: tuple[int, int]
    """Both ends of the children's line."""
    restarts: int
    """Rolling restarts until now."""
    again: bool
    """Another has been asked for while the program was tried."""
    slots: dict[str, dict[str, Any]] = field(default_factory=dict)
    children: list[dict[str, Any]] = field(default_factory=list)

    @property
    def open_files(self) -> list[int]:
        """Every descriptor that it names."""
        pipes = [child["stdin"] for child in self.children if child["stdin"] is not None]
        return [*self.descriptors.values(), *self.requests, *pipes]


@dataclass(frozen=True, slots=True)
class Renewal:
    """What a command gives its supervisor so that it can be renewed."""

    carried: Callable[[], dict[str, Any]]
    descriptors: Mapping[str, int]
    note: Path
    """A file in which the supervisor says how far a rolling restart is."""
    argv: Sequence[str] = ()
    """What to execute; by default what this process was started with."""
    estate: Estate | None = None
    """What was inherited, where the process has been renewed already."""

    @property
    def program(self) -> list[str]:
        """The command line, without the options of a renewal."""
        argv = list(self.argv) or [sys.executable, *sys.orig_argv[1:]]
        return argv[:-2] if argv[-2:-1] == [ADOPT] else argv

    def rehearsal(self) -> Command:
        """The program as it would start now, to be tried before this one is given up for it."""
        return Command((*self.program, REHEARSE))


def bequeath(slots: Iterable[Slot], crew: Crew) -> tuple[dict[str, dict[str, Any]], list[dict[str, Any]]]:
    """The slots' and the children's part of an estate."""
    kept = {slot.unit.name: {name: getattr(slot, name) for name in _SLOT_FIELDS} for slot in slots}
    children = []
    for slot, child in crew:
        role = "probe" if child is slot.probe else "child" if child is slot.child else "retired"
        children.append({"slot": slot.unit.name, "role": role} | asdict(child))
    return kept, children


def adopt(estate: Estate, slots: dict[str, Slot], crew: Crew) -> None:
    """Take over the children of an estate. Those of a unit that is no more are dismissed, and those of a unit that is
    not kept await their replacement (`outdated`).
    """
    for name, values in estate.slots.items():
        if name in slots:
            for attribute in _SLOT_FIELDS:
                setattr(slots[name], attribute, values[attribute])
    for values in estate.children:
        child = Child(**{f.name: values[f.name] for f in fields(Child)})
        slot = slots.get(values["slot"])
        if slot is None:
            abolished = Slot(Unit(values["slot"], _never, once=True), done=True)
            crew.adopt(abolished, child)
            crew.dismiss(abolished, child)
            continue
        crew.adopt(slot, child)
        if values["role"] == "probe":
            slot.probe = child
        elif values["role"] == "child":
            slot.child = child
            child.outdated = not (slot.unit.kept or slot.unit.once)


def execute(program: Sequence[str], estate: Estate) -> None:
    """Become `program`. Returns only by raising `OSError`, and then nothing has changed."""
    will = os.memfd_create("prorl-estate", os.MFD_CLOEXEC)
    with os.fdopen(will, "wb", closefd=False) as file:
        file.write(json.dumps(asdict(estate)).encode())
    os.lseek(will, 0, os.SEEK_SET)
    passed = [will, *estate.open_files]
    before = signal.pthread_sigmask(signal.SIG_BLOCK, OWN_SIGNALS)
    for descriptor in passed:
        os.set_inheritable(descriptor, True)
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execv(program[0], [*program, ADOPT, str(will)])
    except OSError:
        for descriptor in passed:
            os.set_inheritable(descriptor, False)
        os.close(will)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        raise


def inherit(will: int) -> Estate:
    """The estate that `execute` left in that descriptor. No program that we start inherits what it names.

    Raises `InternalError` where there is none.
    """
    try:
        with os.fdopen(will, "rb") as file:
            values = json.load(file)
        estate = Estate(**values | {"requests": tuple(values["requests"])})
        for descriptor in estate.open_files:
            os.set_inheritable(descriptor, False)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise InternalError(f"descriptor {will} holds nothing to go on from: {error}") from error
    return estate


def _never() -> Command:
    raise InternalError("a unit that is no more is not started")
