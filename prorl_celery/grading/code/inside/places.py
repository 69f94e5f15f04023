"""What a case may write to, as it was before the case."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress

WRITABLE = ("/tmp", "/var/tmp", "/dev/shm")
SHARED = ("shm", "sem", "msg")
"""What System V keeps: memory, semaphores, queues. It outlives who made it."""
IPC_RMID = 0


class Places:
    """Remembers what is in the writable folders, and removes what has come to them."""

    def __init__(self, work: str, home: str) -> None:
        self._folder = os.path.join(work, "case")
        self._before: dict[str, set[str]] = {}
        for place in {work, home, *WRITABLE}:
            with suppress(OSError):
                self._before[place] = set(os.listdir(place))
        self._shared = {kind: _shared(kind) for kind in SHARED}

    def fresh(self, files: list[tuple[str, bytes]]) -> str:
        """An empty folder with these files in it. Raises `OSError`."""
        os.mkdir(self._folder, 0o700)
        for name, data in files:
            with open(os.path.join(self._folder, name), "wb") as file:
                file.write(data)
        return self._folder

    def clear(self) -> bool:
        """Remove what was not there at first; whether that went well."""
        clean = True
        for place, before in self._before.items():
            try:
                added = set(os.listdir(place)) - before
            except OSError:
                os.chmod(place, 0o777)  # its owner is us, as all that a solution can change is
                added = set(os.listdir(place)) - before
            for name in added:
                clean = _remove(os.path.join(place, name)) and clean
        for kind, known in self._shared.items():
            for number in _shared(kind) - known:
                clean = _forget(kind, number) and clean
        return clean


def _shared(kind: str) -> set[int]:
    """The numbers of what System V keeps of a kind; none where the kernel has no such thing."""
    try:
        with open(f"/proc/sysvipc/{kind}", "rb") as file:
            return {int(line.split()[1]) for line in file.readlines()[1:]}
    except OSError:
        return set()


def _forget(kind: str, number: int) -> bool:
    libc = ctypes.CDLL(None)
    if kind == "sem":
        return int(libc.semctl(number, 0, IPC_RMID)) == 0
    return int(getattr(libc, f"{kind}ctl")(number, IPC_RMID, None)) == 0


def _remove(path: str) -> bool:
    """Remove a file or a whole folder, whatever its modes are; whether it is gone."""
    if os.path.islink(path) or not os.path.isdir(path):
        with suppress(OSError):
            os.unlink(path)
        return not os.path.lexists(path)
    try:
        os.rmdir(path)  # empty, as after most cases
    except OSError:
        # Whatever the modes of the folders in it are, and however deep they go.
        os.spawnlp(os.P_WAIT, "chmod", "chmod", "-R", "u+rwx", "--", path)
        os.spawnlp(os.P_WAIT, "rm", "rm", "-rf", "--", path)
    return not os.path.lexists(path)
