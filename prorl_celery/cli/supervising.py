"""What `prorl up` and `prorl worker` share: the run of a supervisor that `prorl restart` can renew."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prorl_celery.node.places import private_directory
from prorl_celery.node.renewal import Estate, Renewal, inherit
from prorl_celery.node.requests import Requests
from prorl_celery.node.services import Boot
from prorl_celery.node.supervisor import Supervisor
from prorl_celery.node.units import Unit
from prorl_celery.settings import Settings

BEATS_MISSED = 3
"""A process may miss so many heartbeats before its silence counts, however short PRORL_SILENCE is."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a supervisor comes from: a fresh start, or the program that ran in its process before."""

    estate: Estate | None
    boot: Boot
    requests: Requests

    @classmethod
    def of(cls, adopt: int | None) -> Origin:
        """From the command's option. Raises `InternalError` where that leads to nothing."""
        if adopt is None:
            return cls(None, Boot(), Requests())
        estate = inherit(adopt)
        return cls(estate, Boot(estate.carried["boot"]), Requests.adopt(estate.requests))

    @property
    def carried(self) -> dict[str, Any]:
        """What the command carried over from before; empty at a fresh start."""
        return {} if self.estate is None else self.estate.carried

    def descriptor(self, name: str) -> int | None:
        """An open file from before, by its name."""
        return None if self.estate is None else self.estate.descriptors[name]


def note_of(settings: Settings) -> Path:
    """Where the supervisor of a node says how far a rolling restart is."""
    return settings.run_dir / settings.node / "supervisor.json"


def supervise(
    units: Sequence[Unit],
    settings: Settings,
    origin: Origin,
    *,
    descriptors: Mapping[str, int],
    carried: Mapping[str, Any] | None = None,
) -> int:
    """Run the units until told to stop. Returns the exit code. `descriptors` and `carried` come back by `Origin`."""
    note = note_of(settings)
    private_directory(note.parent)
    renewal = Renewal(
        carried=lambda: {**(carried or {}), "boot": origin.boot.id},
        descriptors=descriptors,
        note=note,
        estate=origin.estate,
    )
    silence = max(settings.silence_seconds, BEATS_MISSED * settings.heartbeat_seconds)
    supervisor = Supervisor(units, requests=origin.requests, silence_seconds=silence, renewal=renewal)
    try:
        return supervisor.run()
    finally:
        note.unlink(missing_ok=True)


def raise_descriptor_limit() -> None:
    """As many open files as the machine allows: a slot holds several."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
