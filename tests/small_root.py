"""A root file system of a few programs, copied from this machine with their libraries: a tree that becomes an image."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

PROGRAMS = (
    "sh", "bash", "env", "cat", "id", "ls", "mkdir", "sleep", "touch", "setsid", "getopt", "cut", "sed", "kill",
    "head", "rm", "mv", "chmod", "readlink", "grep",
)  # fmt: skip
FOLDERS = ("usr/bin", "etc", "proc", "sys", "dev", "tmp", "root", "home", "run", "opt", "var/tmp")


def make_small_root(tree: Path) -> Path:
    """Make it at `tree`, a new folder."""
    for folder in FOLDERS:
        (tree / folder).mkdir(parents=True)
    (tree / "bin").symlink_to("usr/bin")
    for program in PROGRAMS:
        _copy(Path(os.path.realpath(shutil.which(program) or "")), tree, f"/usr/bin/{program}")
    (tree / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/bash\n")
    (tree / "etc/group").write_text("root:x:0:\n")
    for name in ("hosts", "resolv.conf", "localtime"):
        (tree / "etc" / name).touch()
    return tree


def make_borrowing_root(tree: Path) -> Path:
    """One without a /usr of its own: the machine's is bound there. Next to nothing, so that many are quick."""
    for folder in ("usr", *FOLDERS[1:]):
        (tree / folder).mkdir(parents=True, exist_ok=True)
    for name in ("bin", "lib", "lib64", "sbin"):
        (tree / name).symlink_to(f"usr/{name}")
    for name in ("hosts", "resolv.conf", "localtime", "passwd", "group"):
        (tree / "etc" / name).touch()
    return tree


def _copy(program: Path, tree: Path, name: str) -> None:
    """A program and the libraries it is linked to, each where it is looked for."""
    linked = subprocess.run(["ldd", program], capture_output=True, text=True, timeout=60, check=True).stdout
    for source in {name, *re.findall(r"(?<=\s)/\S+", linked)}:
        target = tree / source[1:]
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            shutil.copy(program if source == name else source, target)
