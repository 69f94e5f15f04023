"""Folders of the host that a sandbox may see: only those that the node allows, at places where they hurt nothing.

A bind is written `SOURCE:TARGET` or `SOURCE:TARGET:rw`. What is allowed is in PRORL_SANDBOX_BINDS: `DIR` for reading,
`DIR:rw` for writing too, each with all that is below it. A source is followed through all its links first, so a link
that leads out of what is allowed is refused, and what is checked is what is bound.
"""

from __future__ import annotations

import os
import posixpath
from dataclasses import dataclass
from pathlib import Path

from prorl_celery.errors import SandboxRefused
from prorl_celery.sandbox.launch import User
from prorl_celery.sandbox.share import reachable

FORBIDDEN = frozenset(":,\\\"'\n\0")
"""Some of these separate binds on the program's command line, and there is no way to write them there."""
TAKEN = ("/proc", "/sys", "/dev", "/.singularity.d")
"""Nothing is bound at these, above them or below."""
WRITABLE = ("/workspace", "/tmp", "/var/tmp", "/home/agent", "/home", "/var")
"""Nothing is bound at these themselves: they are the sandbox's, and its size bounds them."""


@dataclass(frozen=True, slots=True)
class Bind:
    """One that is allowed. `source` has no links in it."""

    source: str
    target: str
    writable: bool


def allowed_binds(wanted: tuple[str, ...], allowed: tuple[str, ...], user: User | None) -> tuple[Bind, ...]:
    """The binds of a specification, if the node allows them and the sandbox user can see them.

    Raises: `SandboxRefused`, which names the bind and what would allow it. Looks at the files: may block.
    """
    roots = [_root(entry) for entry in allowed]
    return tuple(_allowed_bind(text, roots, user) for text in wanted)


def _root(entry: str) -> tuple[str, bool]:
    writable = entry.endswith(":rw")
    return os.path.realpath(entry.removesuffix(":rw")), writable


def _allowed_bind(text: str, roots: list[tuple[str, bool]], user: User | None) -> Bind:
    source, target, writable = _parse(text)
    found = os.path.realpath(source)
    if FORBIDDEN & set(found):
        raise SandboxRefused(f"the bind {text!r} leads to a name that cannot be bound: {found!r}")
    fitting = [may_write for root, may_write in roots if found == root or found.startswith(root.rstrip("/") + "/")]
    if not fitting:
        raise SandboxRefused(f"the bind {text!r} is not allowed here: PRORL_SANDBOX_BINDS names no folder with {found}")
    if writable and not any(fitting):
        raise SandboxRefused(f"the bind {text!r} is allowed for reading only: PRORL_SANDBOX_BINDS would say DIR:rw")
    path = Path(found)
    if not path.exists():
        raise SandboxRefused(f"the bind {text!r}: there is no {found} on this machine")
    if not reachable(path, user):
        raise SandboxRefused(f"the bind {text!r}: {user.name if user else 'this user'} cannot read {found}")
    return Bind(found, target, writable)


def _parse(text: str) -> tuple[str, str, bool]:
    parts = text.split(":")
    writable = parts[2:] == ["rw"]
    if len(parts) not in (2, 3) or (len(parts) == 3 and parts[2] not in ("rw", "ro")):
        raise SandboxRefused(f"the bind {text!r} is not SOURCE:TARGET or SOURCE:TARGET:rw")
    source, target = parts[:2]
    if any(not part.startswith("/") or FORBIDDEN & set(part) for part in (source, target)):
        raise SandboxRefused(f"the bind {text!r} needs two absolute paths without commas, quotes or backslashes")
    if target != posixpath.normpath(target) or target == "/" or target.startswith("//"):
        raise SandboxRefused(f"the bind {text!r}: {target!r} is no plain path to a place inside")
    if target in WRITABLE or any(target == at or target.startswith(f"{at}/") for at in TAKEN):
        raise SandboxRefused(f"the bind {text!r}: {target} is the sandbox's own")
    return source, target, writable
