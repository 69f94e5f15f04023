"""Which limits hold a sandbox on this machine, for both kinds alike, and which gaps are left."""

from __future__ import annotations

import os
from collections.abc import Iterator

from prorl_celery.cli.examination.finding import Finding
from prorl_celery.sandbox.cgroups import places
from prorl_celery.sandbox.cgroups.places import Nowhere, Places
from prorl_celery.sandbox.launch import processes_counted_per_namespace
from prorl_celery.sandbox.limits import NICE
from prorl_celery.sandbox.memory import can_walk
from prorl_celery.settings import Settings

DELEGATE = (
    "give the service a control group of its own: `systemd-run --user --scope -p Delegate=yes prorl worker`, "
    "Delegate=yes in its unit, or root where cgroup v1 is mounted"
)


def examine_limits(settings: Settings) -> Iterator[Finding]:
    """Of memory, CPU and processes, for a service that is started where this runs."""
    if settings.sandbox_cgroups == "off":
        found: Places | Nowhere = Nowhere("PRORL_SANDBOX_CGROUPS is off")
        cure = "PRORL_SANDBOX_CGROUPS=auto"
    else:
        found, cure = places.find(), DELEGATE
    yield _memory(found, cure)
    yield _cpu(found, cure)
    yield _processes(found)


def _memory(found: Places | Nowhere, cure: str) -> Finding:
    what = "memory limit"
    if isinstance(found, Places):
        return Finding(what, "ok", f"both kinds: a control group for each sandbox (cgroup v{found.version})")
    if not can_walk():
        remedy = f"a sandbox's processes together are not bounded: {cure}, or a kernel with CONFIG_PROC_CHILDREN"
        return Finding(what, "lacking", f"both kinds: each process by itself, strictly: {found.why}", remedy)
    remedy = (
        "short bursts pass the watchdog, and it does not see what lies in the buffers of pipes and sockets or in "
        f"System V segments that nobody is attached to: {cure}"
    )
    return Finding(what, "lacking", f"both kinds: a watchdog that looks once a second: {found.why}", remedy)


def _cpu(found: Places | Nowhere, cure: str) -> Finding:
    if isinstance(found, Places) and "cpu" in found.folders:
        return Finding("CPU limit", "ok", f"PRORL_SANDBOX_CPUS, by cgroup v{found.version}; sandboxes have nice {NICE}")
    why = found.why if isinstance(found, Nowhere) else "no cpu controller"
    remedy = f"a busy sandbox slows the others, of either kind, though it stands behind the service: {cure}"
    return Finding("CPU limit", "lacking", f"none, sandboxes have nice {NICE}: {why}", remedy)


def _processes(found: Places | Nowhere) -> Finding:
    what, kernel = "process limit", f"Linux {os.uname().release.partition('-')[0]}"
    group = f"cgroup v{found.version}" if isinstance(found, Places) and "pids" in found.folders else ""
    if processes_counted_per_namespace():
        return Finding(what, "ok", f"each sandbox's own count ({', '.join(filter(None, (kernel, group)))})")
    if group:
        return Finding(what, "ok", f"{group}; {kernel} counts all sandboxes of a user as one")
    remedy = (
        "bubblewrap sandboxes are bounded in sum only, and Singularity's not at all: a kernel from 5.14 on counts each "
        "sandbox by itself, a control group does on any"
    )
    return Finding(what, "lacking", f"{kernel} counts all sandboxes of a user as one", remedy)
