"""Who started a sandbox, as text that the sandbox's processes carry where everybody can read it.

    prorl-init-PID-START-NAMESPACE-UID        in arguments, in the environment, in an instance's name
    prorl-child-...                           in the environment of what a stage process's children start

The pid and the start time name a process that no later one is confused with, the pid namespace says where that pid
means something, and the uid whose it is. Whoever finds such a label on this machine can tell whether its owner lives.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from prorl_celery.errors import SandboxError

LABEL = re.compile(rb"prorl-[a-z]+-(\d+)-(\d+)-(\d+)-(\d+)(?![\d])")
VARIABLE = "_PRORL_OWNER"
"""Where the environment of a process can be marked and its arguments cannot. Not one of our settings."""

Fate = Literal["lives", "dead", "unknown"]


@dataclass(frozen=True, slots=True)
class Owner:
    """A keeper, by what tells it from every other process of this boot."""

    pid: int
    start: int
    namespace: int
    uid: int

    def __str__(self) -> str:
        return f"{self.pid}-{self.start}-{self.namespace}-{self.uid}"

    @property
    def fate(self) -> Fate:
        """Whether it lives. Unknown where its pid is of another namespace than ours: a container's."""
        if self.namespace != pid_namespace():
            return "unknown"
        return "lives" if start_time(self.pid) == self.start else "dead"


def this_process() -> Owner:
    """The calling process as an owner. Raises `SandboxError` where /proc does not show it."""
    start = start_time(os.getpid())
    if start is None:
        raise SandboxError("this process is not in /proc: is it mounted with hidepid?")
    return Owner(os.getpid(), start, pid_namespace(), os.getuid())


def owner_in(text: bytes) -> Owner | None:
    """The owner that the first label in some text names."""
    found = LABEL.search(text)
    return None if found is None else Owner(*map(int, found.groups()))


@cache
def label() -> str:
    """The label of the process that asks first, and of its forks: a keeper asks before it forks."""
    return f"prorl-init-{this_process()}"


@cache
def pid_namespace() -> int:
    """The number of this process's pid namespace, which no other has on this machine."""
    return Path("/proc/self/ns/pid").stat().st_ino


def start_time(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None when there is none of that pid. A zombie is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if stat[0] == "Z" else int(stat[19])
