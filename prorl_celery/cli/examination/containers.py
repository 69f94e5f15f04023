"""What the sandbox kind with images needs, and what it can do here."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from prorl_celery.cli.examination.finding import Finding, Verdict, code_as, whom
from prorl_celery.errors import SandboxUnavailable
from prorl_celery.sandbox.launch import User
from prorl_celery.sandbox.singularity import program, unpack
from prorl_celery.sandbox.singularity.program import Program
from prorl_celery.settings import Settings

ASK_SECONDS = 20.0
INSTALL = "only for sandboxes with an image: deploy/images/install_apptainer.sh as root on Debian 12, else your package"


def examine_containers(settings: Settings) -> Iterator[Finding]:
    """Apptainer or Singularity, and what it offers the sandbox user."""
    try:
        found = program.find()
    except SandboxUnavailable as error:
        yield Finding("apptainer", "lacking", str(error), INSTALL)
        return
    user = whom(settings)
    built = _built(found)
    yield _program(found, built)
    yield _disk(settings, built)
    yield _image_files(found, user)
    yield _fakeroot(settings, user)


def _program(found: Program, built: dict[str, str]) -> Finding:
    set_uid = any(name.endswith("_SUID_INSTALL") and value == "1" for name, value in built.items())
    how = "installed set-uid; user namespaces are used all the same" if set_uid else "without a set-uid part"
    seen = f"{found.path}: {found.said}, {how}"
    why = program.why_no_user_namespaces()
    if why is None:
        return Finding("apptainer", "ok", seen)
    remedy = "sysctl user.max_user_namespaces=15000 kernel.unprivileged_userns_clone=1"
    if not set_uid:
        return Finding("apptainer", "lacking", f"{seen}, and {why}: no instance can start", remedy)
    return Finding("apptainer", "lacking", f"{seen}, but {why}: instances run set-uid", remedy)


def _disk(settings: Settings, built: dict[str, str]) -> Finding:
    """The site's size matters only where an instance's disk cannot be given one from outside."""
    what, wanted = "sessiondir max size", settings.sandbox_disk_bytes >> 20
    size = _site_setting(built, what)
    seen = "not told" if size is None else f"{size} MiB"
    if program.why_no_user_namespaces() is None:
        return Finding(what, "ok", f"{seen}; an instance's disk gets its own size ({wanted} MiB)")
    if size is not None and size.isdigit() and int(size) >= wanted:
        return Finding(what, "ok", f"{seen}, for the root and each place of an instance")
    remedy = f"as root: apptainer config global --set '{what}' {wanted} (PRORL_SANDBOX_DISK)"
    return Finding(what, "lacking", f"{seen} bounds an instance's disk, and not {wanted} MiB", remedy)


def _image_files(found: Program, user: User | None) -> Finding:
    what = "image files (SIF)"
    if code_as(user, lambda: 0 if unpack.can_mount(found) else 1) == 0:
        return Finding(what, "ok", "mounted")
    open_to_all = unpack.FUSE.exists() and unpack.FUSE.stat().st_mode & 0o006 == 0o006
    cause = "no squashfuse that knows -o uid=" if open_to_all else f"{unpack.FUSE} is not open to the sandbox user"
    cure = "install Apptainer's own squashfuse" if open_to_all else f"chmod 666 {unpack.FUSE}"
    return Finding(what, "lacking", f"unpacked once by each keeper: {cause}", f"{cure}, or use image folders")


def _fakeroot(settings: Settings, user: User | None) -> Finding:
    name = pwd.getpwuid(os.getuid()).pw_name if user is None else user.name
    uid = os.getuid() if user is None else user.uid
    what = "more users inside (fakeroot)"
    lines = [_has_range(Path(path), name, uid) for path in ("/etc/subuid", "/etc/subgid")]
    if all(lines) and shutil.which("newuidmap"):
        verdict: Verdict = "lacking" if settings.sandbox_fakeroot else "ok"
        remedy = "the limit of processes is then one for each of them, and only a control group bounds their sum"
        return Finding(what, verdict, f"{name} has subordinate ids", remedy)
    cause = "no newuidmap" if all(lines) else f"{name} has no lines in /etc/subuid and /etc/subgid"
    remedy = (
        "only for PRORL_SANDBOX_FAKEROOT with more users than root, and for image builds: install uidmap; "
        f"usermod --add-subuids 100000-165535 --add-subgids 100000-165535 {name}"
    )
    return Finding(what, "lacking", cause, remedy)


def _has_range(path: Path, name: str, uid: int) -> bool:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return False
    return any(line.split(":")[0] in (name, str(uid)) for line in lines if line.count(":") == 2)


def _built(found: Program) -> dict[str, str]:
    """How the program was built; empty where it does not say."""
    try:
        done = subprocess.run(
            [found.path, "buildcfg"], stdin=subprocess.DEVNULL, capture_output=True, timeout=ASK_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return {}
    lines = done.stdout.decode("utf-8", "replace").splitlines()
    return {name: value for name, found, value in (line.partition("=") for line in lines) if found}


def _site_setting(built: dict[str, str], name: str) -> str | None:
    path = next((value for key, value in built.items() if key.endswith("_CONF_FILE")), None)
    try:
        lines = Path(path or "").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    values = [line.partition("=")[2].strip() for line in lines if line.partition("=")[0].strip() == name]
    return values[-1] if values else None
