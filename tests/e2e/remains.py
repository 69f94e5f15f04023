"""What of a service is on this machine: by its processes' environment, by labels, by places."""

from __future__ import annotations

import secrets
from contextlib import suppress
from pathlib import Path

from e2e_service import Service

from prorl_celery.node.janitor.thing import Thing
from prorl_celery.node.janitor.things import inventory
from prorl_celery.node.places import run_dir_for
from prorl_celery.sandbox.client import KeeperClient
from prorl_celery.settings import Settings

MARK = "LEAK_TEST_MARK"


def new_mark() -> str:
    """A number that no other process has among its arguments, to sleep for."""
    return str(10**8 + secrets.randbelow(10**8))


def keeper_of(service: Service) -> KeeperClient:
    """Of a service that runs on this machine."""
    return KeeperClient(Settings(run_dir=run_dir_for(service.data_dir)))


class Remains:
    """Of a service that was started with `MARK` in its environment. To be made while it runs; looked at ever after."""

    def __init__(self, service: Service, mark: str) -> None:
        self._mark = mark
        self._settings = Settings(run_dir=run_dir_for(service.data_dir))
        self.keepers = {keeper_of(service).status()["pid"]}
        self._shares = {str(path) for pid in self.keepers for path in _shares(pid)}

    def processes(self) -> list[tuple[int, str]]:
        """Of the service itself and of what runs in its sandboxes."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with suppress(OSError):
                    if f"{MARK}={self._mark}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                        found.append((int(entry.name), (entry / "comm").read_text().strip()))
                    elif self._mark.encode() in (entry / "cmdline").read_bytes().split(b"\0"):
                        found.append((int(entry.name), "in a sandbox"))
        return found

    def things(self) -> list[Thing]:
        """Its sandboxes' processes, groups, mounts, sockets and folders."""
        return [thing for thing in inventory(self._settings) if self._is_its(thing)]

    def all(self) -> list[object]:
        """Everything."""
        return [*self.processes(), *self.things()]

    def _is_its(self, thing: Thing) -> bool:
        if thing.owner is not None:
            return thing.owner.pid in self.keepers
        places = [*self._shares, str(self._settings.run_dir)]
        # The directory of sockets itself is used again by the service's next start; a janitor lets it be for a minute.
        return any(thing.name.startswith(place) for place in places) and thing.name != places[-1]


def _shares(keeper: int) -> list[Path]:
    links = []
    for entry in Path(f"/proc/{keeper}/fd").iterdir():
        with suppress(OSError):
            links.append(entry.readlink())
    return [link for link in links if link.name.startswith("prorl-share-")]
