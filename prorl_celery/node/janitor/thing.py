"""Something of ours on this machine, and whether it is still anybody's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from prorl_celery.sandbox.owner import Owner

Kind = Literal["process", "group", "network", "mount", "socket", "folder"]
Fate = Literal["lives", "left", "unknown"]

FATES: dict[str, Fate] = {"lives": "lives", "dead": "left", "unknown": "unknown"}
"""What becomes of an owner's things."""


@dataclass(frozen=True, slots=True)
class Thing:
    """`fate`: it has a living owner, it is left over, or its owner cannot be seen from here."""

    kind: Kind
    name: str
    """A pid, a path, the name of an instance with a network."""
    fate: Fate
    owner: Owner | None = None
    """The keeper, or stage process, that it names, where it names one."""
    sandbox: str = ""
    """Of a sandbox's process: what tells its sandbox from the keeper's others."""
