"""Control groups of keepers that were killed. What is still in one can only be what its sandboxes left."""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Iterator
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
    return sum(not end_with_subgroups(folder) for folder, whose in of_keepers() if whose.fate == "dead")


def of_keepers() -> Iterator[tuple[Path, owner.Owner]]:
    """The groups of all keepers of this user, and whose each is."""
    waiting = deque(trees())
    looked_at = 0
    while waiting and looked_at < MOST_FOLDERS:
        looked_at += 1
        for folder in subgroups(waiting.popleft()):
            if not _NAME.fullmatch(folder.name):
                waiting.append(folder)
                continue
            whose = owner.owner_in(os.fsencode(folder.name))
            if whose is not None and whose.uid == os.getuid():
                yield folder, whose
