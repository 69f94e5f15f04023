"""What an examination gives, and what several of them need."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from prorl_celery.errors import SandboxUnavailable
from prorl_celery.sandbox.launch import User, sandbox_user
from prorl_celery.settings import Settings

Verdict = Literal["ok", "lacking", "missing"]
"""`missing` stops the service or its default sandbox; `lacking` costs something that the remedy names."""

UNKNOWN = 255


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at."""

    what: str
    verdict: Verdict
    seen: str
    remedy: str = ""


def whom(settings: Settings) -> User | None:
    """Whom sandboxes run as; None is this user, also where the one that is set does not exist (told by itself)."""
    try:
        return sandbox_user(settings)
    except SandboxUnavailable:
        return None


def code_as(user: User | None, function: Callable[[], int]) -> int:
    """What a function returns (0 to 254) in a child that is this user; `UNKNOWN` where it raised something."""
    pid = os.fork()
    if pid == 0:
        code = UNKNOWN
        try:
            if user is not None:
                user.become()
            code = function()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def sysctl(name: str) -> str | None:
    """A kernel setting; None where this kernel has none of that name."""
    path = Path("/proc/sys") / name.replace(".", "/")
    return path.read_text(encoding="ascii").strip() if path.exists() else None
