"""The program: which one there is, and whether it is new enough.

Apptainer from 1.2 and SingularityCE or -PRO from 3.11 on: the first that need no set-uid part for a writable root on a
tmpfs, own their files inside a SIF, and can leave the site's own bind paths out. Everything was run on Apptainer 1.4;
SingularityCE takes the same options by its manual and was not to be had where this was written.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from prorl_celery.errors import SandboxUnavailable

OLDEST = {"apptainer": (1, 2), "singularity-ce": (3, 11), "singularity-pro": (3, 11)}
PRODUCT_FOLDER = {"apptainer": "app", "singularity-ce": "sing", "singularity-pro": "sing"}
"""What each calls its folder of records."""
VERSION_SECONDS = 20.0
_VERSION = re.compile(r"(apptainer|singularity(?:[- ]?(?:ce|pro))?)(?: version)? v?(\d+)\.(\d+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """An installed Apptainer or Singularity. `said` is what it says of itself."""

    path: str
    product: str
    version: tuple[int, int]
    said: str


def command() -> str | None:
    """Where it is: `singularity` (Apptainer provides that too), else `apptainer`; None where neither is."""
    return shutil.which("singularity") or shutil.which("apptainer")


def find() -> Program:
    """The installed program, asked for its version. Blocks for some 20 ms.

    Raises: `SandboxUnavailable` where there is none, where it does not run, and where it is too old or unknown.
    """
    path = command()
    if path is None:
        raise SandboxUnavailable("neither `singularity` nor `apptainer` is on the PATH")
    try:
        done = subprocess.run(
            [path, "--version"],
            env={"PATH": str(Path(path).parent) + ":/usr/bin:/bin", "HOME": "/"},
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=VERSION_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SandboxUnavailable(f"{path} could not be run: {error}") from error
    said = " ".join((done.stdout or done.stderr).decode("utf-8", "replace").split())[:200]
    if done.returncode != 0:
        raise SandboxUnavailable(f"{path} --version failed with {done.returncode}: {said}")
    product, version = read_version(said)
    return Program(path=path, product=product, version=version, said=said)


def read_version(said: str) -> tuple[str, tuple[int, int]]:
    """Product and version from what `--version` printed. Raises `SandboxUnavailable` where it is not one we can use."""
    found = _VERSION.search(said)
    if found is None:
        raise SandboxUnavailable(f"{said!r} tells no version of Apptainer or Singularity that is known")
    product = re.sub(r"singularity[- ]?(ce|pro)", r"singularity-\1", found[1].lower())
    version = int(found[2]), int(found[3])
    oldest = OLDEST.get(product)
    if oldest is None or version < oldest:
        raise SandboxUnavailable(f"{said!r} is too old: take Apptainer 1.2, SingularityCE 3.11 or newer")
    return product, version


def why_no_user_namespaces() -> str | None:
    """Why an ordinary user has no user namespaces on this machine; None where nothing speaks against it."""
    for name, value in (("user/max_user_namespaces", "0"), ("kernel/unprivileged_userns_clone", "0")):
        try:
            if Path("/proc/sys", name).read_text(encoding="ascii").strip() == value:
                return f"user namespaces are switched off ({name.replace('/', '.')}={value})"
        except OSError:
            continue
    return None
