"""The network `bridge`: an instance that was started without a network gets an interface on the site's bridge.

An ordinary user's program cannot do this, and a keeper that root runs starts instances as another user. So the keeper's
child asks the CNI plugins itself, which are what the program would ask: by the site's own configuration of a network
named `bridge` (`/etc/apptainer/network/00_bridge.conflist`), with the instance's network namespace.

What the plugins change on the machine (an address in use, rules of a firewall) is undone when the sandbox is gone, for
which its network namespace is kept until then. Their answer is noted as the program notes it, under the instance's name
and so its keeper's label: of keepers that were killed the next that uses a bridge undoes all but a rule of masquerading
each, for which a plugin would have to look into the namespace. The interface of the bridge stays, as ever.
"""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prorl_celery.errors import SandboxError, SandboxUnavailable
from prorl_celery.sandbox.owner import owner_in

NETWORK = "bridge"
CONFIGURATIONS = tuple(Path(f"{etc}/{product}/network") for etc in ("/etc", "/usr/local/etc")
                       for product in ("apptainer", "singularity"))  # fmt: skip
PLUGINS = tuple(
    Path(place)
    for place in (
        "/usr/lib/cni", "/usr/libexec/cni", "/opt/cni/bin", "/usr/libexec/apptainer/cni",
        "/usr/libexec/singularity/cni", "/usr/local/libexec/apptainer/cni", "/usr/local/libexec/singularity/cni",
    )
)  # fmt: skip
NOTES = Path("/var/lib/cni/results")
"""Where users of the plugins keep what these answered."""
INTERFACE = "eth0"
PLUGIN_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Bridge:
    """The site's network of that name, and where its plugins are."""

    name: str
    version: str
    plugins: tuple[dict[str, Any], ...]
    path: str

    def connect(self, instance: str, pid: int) -> None:
        """Give the instance whose first process is `pid` an interface. Raises `SandboxError`; then nothing is left."""
        namespace = f"/proc/{pid}/ns/net"
        answer: dict[str, Any] | None = None
        try:
            for plugin in self.plugins:
                answer = self._run(plugin, "ADD", instance, namespace, answer)
            note = _note(instance)
            note.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            note.write_text(json.dumps(answer), encoding="utf-8")
        except (SandboxError, OSError) as error:
            self.disconnect(instance, namespace)
            raise SandboxError(f"{error}") from error

    def disconnect(self, instance: str, namespace: str = "") -> None:
        """Undo all that is left of `connect`; `namespace` is the path of the instance's where there still is one.

        Raises `SandboxError` for the last that failed.
        """
        note = _note(instance)
        try:
            answer = json.loads(note.read_bytes())
        except (OSError, ValueError):
            answer = None
        failed: SandboxError | None = None
        for plugin in reversed(self.plugins):
            try:
                self._run(plugin, "DEL", instance, namespace, answer)
            except SandboxError as error:
                failed = error
        note.unlink(missing_ok=True)
        if failed is not None:
            raise failed

    def disconnect_left_behind(self) -> int:
        """Undo what there is of keepers that are gone; how many sandboxes that were. Raises `SandboxError`."""
        left = [name for name in noted() if (owner := owner_in(name.encode())) is not None and owner.fate == "dead"]
        for instance in left:
            self.disconnect(instance)
        return len(left)

    def _run(
        self, plugin: dict[str, Any], command: str, instance: str, namespace: str, before: dict[str, Any] | None
    ) -> dict[str, Any] | None:
        asked = {"cniVersion": self.version, "name": self.name, **plugin}
        if before is not None:
            asked["prevResult"] = before
        what = f"the network {self.name!r}: {plugin['type']} {command}"
        try:
            done = subprocess.run(
                [str(plugin["type"])],
                executable=str(_plugin(str(plugin["type"]))),
                input=json.dumps(asked).encode(),
                capture_output=True,
                timeout=PLUGIN_SECONDS,
                check=False,
                env={
                    "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
                    "CNI_COMMAND": command,
                    "CNI_CONTAINERID": instance,
                    "CNI_NETNS": namespace,
                    "CNI_IFNAME": INTERFACE,
                    "CNI_PATH": self.path,
                },
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise SandboxError(f"{what}: {error}") from error
        if done.returncode != 0:
            said = " ".join((done.stdout + done.stderr).decode("utf-8", "replace").split())[:500]
            raise SandboxError(f"{what} failed: {said}")
        answer = json.loads(done.stdout) if done.stdout.strip() else None
        return answer if isinstance(answer, dict) else before


def noted() -> list[str]:
    """The instances that the plugins' answers were noted for."""
    found = [path.name.removeprefix(_note("").name[: -len(INTERFACE) - 1]) for path in NOTES.glob(_note("*").name)]
    return [name.removesuffix(f"-{INTERFACE}") for name in found]


def find() -> Bridge:
    """The site's bridge. Raises `SandboxError` where this process cannot use one, saying why."""
    if os.geteuid() != 0:
        raise SandboxUnavailable("the network 'bridge' needs a service that root runs; without there are none and host")
    for path in sorted(found for folder in CONFIGURATIONS for found in folder.glob("*.conflist")):
        try:
            read = json.loads(path.read_bytes())
            if read["name"] == NETWORK:
                plugins = tuple(read["plugins"])
                for plugin in plugins:
                    _plugin(plugin["type"])
                return Bridge(NETWORK, str(read["cniVersion"]), plugins, os.pathsep.join(map(str, PLUGINS)))
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise SandboxError(f"the network 'bridge': {path} is not understood: {error}") from error
    places = ", ".join(map(str, CONFIGURATIONS))
    raise SandboxUnavailable(f"there is no network 'bridge' on this machine: no conflist in {places} has that name")


def _note(instance: str) -> Path:
    return NOTES / f"{NETWORK}-{instance}-{INTERFACE}"


def _plugin(name: str) -> Path:
    for place in PLUGINS:
        if (place / name).is_file() and "/" not in name:
            return place / name
    raise SandboxUnavailable(
        f"the network 'bridge' needs the CNI plugin {name!r} (Debian: containernetworking-plugins)"
    )
