"""A keeper's own registry of instances: what the program writes down about each, apart from all others on the machine.

    SHARE/instances-BOOT/                                            0700, the sandbox user's
        owner                                                        the keeper's label (`sandbox.owner`)
        instances/{app,sing}/HOST/USER/NAME/NAME.json                one for each instance that runs: name, pid
        instances/logs/...                                           removed with the instance, by us
        bin/singularity                                              what spython runs

So whoever looks after a keeper that is gone finds its instances here, without the program: by `records`, and by the
label that is the first part of every instance's name and so stands in the arguments of the process that holds it. The
folder is in the keeper's share, which is locked while the keeper lives (`prorl_celery.folders`).
"""

from __future__ import annotations

import json
import os
import pwd
import re
import shlex
import shutil
import signal
from dataclasses import dataclass
from pathlib import Path

from prorl_celery.sandbox import owner
from prorl_celery.sandbox.launch import User
from prorl_celery.sandbox.singularity.inotify import await_file
from prorl_celery.sandbox.singularity.program import PRODUCT_FOLDER, Program

INIT_NAMES = ("appinit", "sinit")
"""What an instance's first process is called: Apptainer's, Singularity's."""
NAME_PART_BYTES = 32
SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"


@dataclass(frozen=True, slots=True)
class Record:
    """What the program has written down about an instance. `pid` is its first process's, as seen on the host."""

    name: str
    pid: int

    @property
    def lives(self) -> bool:
        return is_first_process(self.pid)


class Registry:
    """Made by the keeper in `share`, a folder that the sandbox user can reach. Raises `OSError`."""

    def __init__(self, share: Path, boot: str, user: User | None, program: Program) -> None:
        self.path = share / f"instances-{boot}"
        self._user = user
        self._program = program
        name = pwd.getpwuid(os.getuid() if user is None else user.uid).pw_name
        product = PRODUCT_FOLDER[program.product]
        self._records = self.path / "instances" / product / os.uname().nodename / name
        self._records.mkdir(parents=True, exist_ok=True)
        self._write(self.path / "owner", f"{owner.label()}\n", 0o644)
        (self.path / "bin").mkdir(exist_ok=True)
        self._write(self.path / "bin" / "singularity", _stand_in(program), 0o755)
        for folder in (self.path, *(path for path in self.path.rglob("*") if path.is_dir())):
            folder.chmod(0o700)
            if user is not None:
                os.chown(folder, user.uid, user.gid)

    def environment(self) -> dict[str, str]:
        """All that the program gets: it passes some of it on to where an agent can read it."""
        return {
            owner.VARIABLE: owner.label(),
            "PATH": f"{Path(self._program.path).parent}:{SYSTEM_PATH}",
            "HOME": str(self.path),
            "APPTAINER_CONFIGDIR": str(self.path),
            "SINGULARITY_CONFIGDIR": str(self.path),
            "APPTAINER_CACHEDIR": str(self.path / "cache"),
            "SINGULARITY_CACHEDIR": str(self.path / "cache"),
        }

    def spython_environment(self) -> dict[str, str]:
        """The same for spython, which knows the program by one name alone."""
        inherited = self.environment()
        return {**inherited, "PATH": f"{self.path / 'bin'}:{inherited['PATH']}"}

    def await_record(self, name: str, *, until: int, timeout: float) -> Record | None:
        """An instance's record as soon as it is there and the instance with it; None when the descriptor `until`
        became readable first, or after `timeout` seconds. Raises `OSError`.
        """
        return await_file(self._records / name / f"{name}.json", read_record, until=until, timeout=timeout)

    def records(self) -> list[Record]:
        """Of all instances that run or did when last seen."""
        return records_in(self.path)

    def forget(self, name: str) -> None:
        """Remove the logs of an instance that has ended, which nobody else does, and its record, which it does itself
        unless it was killed as a whole.
        """
        shutil.rmtree(self._records / name, ignore_errors=True)
        for log in self.path.glob(f"instances/logs/*/*/{name}.*"):
            log.unlink(missing_ok=True)

    @staticmethod
    def _write(path: Path, text: str, mode: int) -> None:
        path.write_text(text, encoding="utf-8")
        path.chmod(mode)


def instance_name(node: str, job_id: str, attempt: int, sandbox_id: str) -> str:
    """Who started it, then where and for what: `prorl-init-PID-START-NAMESPACE-UID.NODE.JOB.ATTEMPT.SANDBOX`.

    The label comes first, so that no job's name can pass for one. Unique by the last part; the others are cut short.
    """
    parts = [re.sub(r"[^a-zA-Z0-9_-]", "_", part)[:NAME_PART_BYTES] for part in (node, job_id)]
    return ".".join([owner.label(), *parts, str(attempt), sandbox_id])


def records_in(registry: Path) -> list[Record]:
    """The records in a registry's folder, also one of another keeper's."""
    found = (read_record(path, living=False) for path in sorted(registry.glob("instances/*/*/*/*/*.json")))
    return [record for record in found if record is not None]


def read_record(path: Path, *, living: bool = True) -> Record | None:
    """The record in a file; None when there is none, or it is half written, or (`living`) its instance does not run."""
    try:
        entry = json.loads(path.read_bytes())
        record = Record(str(entry["name"]), int(entry["pid"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return record if record.lives or not living else None


def is_first_process(pid: int) -> bool:
    """Whether a pid is an instance's first process; a recorded one may by now be anybody's."""
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip() in INIT_NAMES
    except OSError:
        return False


def kill_recorded(registry: Path, name: str | None = None) -> int:
    """Kill the instances in a registry, or the one of a name; how many there were."""
    found = [record for record in records_in(registry) if name in (None, record.name) and record.lives]
    for record in found:
        try:
            os.kill(record.pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    return len(found)


def _stand_in(program: Program) -> str:
    """spython calls `singularity`, which need not be the program's name, and asks for its version before every call."""
    return (
        "#!/bin/sh\n"
        f'[ "$*" != --version ] || {{ echo {shlex.quote(program.said)}; exit; }}\n'
        f'exec {shlex.quote(program.path)} "$@"\n'
    )
