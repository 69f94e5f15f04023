"""Control groups of keepers that were killed. What is still in one can only be what its sandboxes left."""

from __future__ import annotations

import os
import re
from collections import deque
from pathlib import Path

from prorl_celery.sandbox import owner
from prorl_celery.sandbox.cgroups.groups import end_with_subgroups, subgroups
from prorl_celery.sandbox.cgroups.places import trees

MOST_FOLDERS = 20_000
"""Groups looked at: some hundreds are usual."""
_NAME = re.compile(r"prorl-keeper-[\d-]+")


def remove_left_behind() -> int:
    """Kill what is left in the groups of this user's dead keepers and remove them. Returns how many are still there:
    those whose processes are on their way out.
    """
    return sum(not end_with_subgroups(folder) for folder in left_behind())


def left_behind() -> list[Path]:
    """The groups of this user's keepers that no longer live, and whose pids are of this pid namespace."""
    found: list[Path] = []
    waiting = deque(trees())
    looked_at = 0
    while waiting and looked_at < MOST_FOLDERS:
        looked_at += 1
        for folder in subgroups(waiting.popleft()):
            if not _NAME.fullmatch(folder.name):
                waiting.append(folder)
                continue
            whose = owner.owner_in(os.fsencode(folder.name))
            if whose is not None and whose.uid == os.getuid() and whose.fate == "dead":
                found.append(folder)
    return found
