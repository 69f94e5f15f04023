"""Whether a sandbox can start from an image, told before one is started: by a header and a few names, in well under a
millisecond, so that every start can afford it.

An image is a folder, or a file in the Singularity image format (SIF). Given here: its path, and whom the sandbox runs
as. Raised: `BadImage`, which says what is wrong and what helps. What only a start can show (a broken library, a
file cut short whose length is right) `prorl images check` finds by starting it.
"""

from __future__ import annotations

import os
import stat
import struct
from pathlib import Path

from prorl_celery.errors import BadImage
from prorl_celery.sandbox.launch import User
from prorl_celery.sandbox.share import reachable

START = ".singularity.d/actions/start"
"""An instance begins with it; `singularity build` adds it to every image."""
SHELLS = ("usr/bin/bash", "bin/bash", "usr/local/bin/bash")
ENV = "usr/bin/env"
"""The shell and the program that our sandboxes begin with, inside."""
START_SHELL = "bin/sh"
"""What the image's own start script is for."""
LINKS_AT_MOST = 40

ELF_MACHINE = {"x86_64": 62, "aarch64": 183, "ppc64le": 21, "s390x": 22, "riscv64": 243}
SIF_MACHINE = {"x86_64": "02", "aarch64": "04", "ppc64le": "06", "s390x": "11", "riscv64": "12"}

SIF_MAGIC = b"SIF_MAGIC\0"
SIF_HEADER = struct.Struct("<32s10s3s3s16s8q")
"""Launch line, magic, version, machine, id; then times, descriptors free and in all, where they and the data are."""
SIF_DESCRIPTOR = struct.Struct("<i?IIIqqqqqqq128sii")
"""Type, used, id, group, link, offset, size, padded size, times, owner, name; of a partition: file system, role."""
SIF_DESCRIPTOR_BYTES = 585
PARTITION, SYSTEM = 0x4004, 2


def check_image(path: Path, user: User | None = None) -> None:
    """See that a sandbox of `user` (None: of this process's user) can start from the image at `path`.

    Raises: `BadImage`.
    """
    try:
        found = path.stat()
        whole = found.st_size if stat.S_ISREG(found.st_mode) else None
    except FileNotFoundError:
        raise BadImage(
            f"there is no image {path}: make it by `prorl images build` or `prorl images pull`, or copy it there"
        ) from None
    except OSError as error:
        raise BadImage(f"the image {path} cannot be read: {error.strerror}") from error
    if os.path.samestat(found, os.stat("/")):  # noqa: PTH116
        raise BadImage("the machine's own / is no image")
    if not _readable(path, user):
        who = user.name if user else "this user"
        raise BadImage(f"{who} cannot read the image {path}: open its folders and files to it, or move it")
    try:
        if whole is not None:
            _check_file(path, whole)
        elif stat.S_ISDIR(found.st_mode):
            _check_folder(path)
        else:
            raise BadImage(f"{path} is neither an image file nor a folder")
    except OSError as error:
        raise BadImage(f"the image {path} cannot be read: {error.strerror or error}") from error


def _readable(path: Path, user: User | None) -> bool:
    if user is not None:
        return reachable(path, user)
    return os.access(path, os.R_OK | os.X_OK if path.is_dir() else os.R_OK)


def borrows_usr(path: Path) -> bool:
    """Whether the image is a folder whose /usr is empty: then the machine's is bound there, read-only."""
    try:
        with os.scandir(path / "usr") as entries:
            return next(entries, None) is None
    except OSError:
        return False


def _check_folder(path: Path) -> None:
    root = str(path)
    if _inside(root, START) is None:
        raise BadImage(f"{path} is a folder but no image: `prorl images build {path}` makes one of it")
    if borrows_usr(path):
        return
    shell = next((found for name in SHELLS if (found := _inside(root, name)) is not None), None)
    for what, found in (("bash", shell), *((f"/{name}", _inside(root, name)) for name in (ENV, START_SHELL))):
        if found is None:
            raise BadImage(f"the image {path} has no {what}, with which every sandbox begins: add it and build it anew")
    machine = os.uname().machine
    if shell is not None and _elf_machine(shell) not in (None, ELF_MACHINE.get(machine)) and machine in ELF_MACHINE:
        raise BadImage(f"the image {path} is for another kind of processor than this machine's, {machine}")


def _inside(root: str, name: str) -> str | None:
    """Where a name of the image is on the host, links followed as inside the image; None when there is none."""
    todo = name.split("/")[::-1]
    at = root
    links = 0
    while todo:
        part = todo.pop()
        if part == "..":
            at = at if at == root else os.path.dirname(at)  # noqa: PTH120
            continue
        step = f"{at}/{part}"
        try:
            if stat.S_ISLNK(os.lstat(step).st_mode):
                links += 1
                target = os.readlink(step)  # noqa: PTH115
                todo += [piece for piece in target.split("/") if piece not in ("", ".")][::-1]
                at = root if target.startswith("/") else at
            else:
                at = step
        except (FileNotFoundError, NotADirectoryError):
            return None
        if links > LINKS_AT_MOST:
            return None
    return at


def _elf_machine(program: str) -> int | None:
    """The processor that a program is for; None when it is no ELF file."""
    with open(program, "rb") as file:  # noqa: PTH123
        head = file.read(20)
    if len(head) < 20 or head[:4] != b"\x7fELF":
        return None
    return int.from_bytes(head[18:20], "little" if head[5] == 1 else "big")


def _check_file(path: Path, size: int) -> None:
    with path.open("rb") as file:
        head = file.read(SIF_HEADER.size)
        if len(head) < SIF_HEADER.size or head[32:42] != SIF_MAGIC:
            raise BadImage(f"{path} is no image: neither a folder nor a file in the Singularity image format")
        _, _, _, machine, _, _, _, free, total, table, table_size, data, data_size = SIF_HEADER.unpack(head)
        least, end = min(table, table_size, data, data_size, total - free), max(table + table_size, data + data_size)
        if least < 0 or end > size:
            raise BadImage(f"the image {path} is cut short: it has {size} bytes of {end}; make it anew")
        file.seek(table)
        descriptors = file.read(min(table_size, total * SIF_DESCRIPTOR_BYTES))
    here = os.uname().machine
    if here in SIF_MACHINE and machine[:2].decode("latin-1") not in ("00", SIF_MACHINE[here]):
        raise BadImage(f"the image {path} is for another kind of processor than this machine's, {here}")
    for at in range(0, len(descriptors) - SIF_DESCRIPTOR_BYTES + 1, SIF_DESCRIPTOR_BYTES):
        kind, used, _, _, _, offset, length, *_, part = SIF_DESCRIPTOR.unpack_from(descriptors, at)
        if used and kind == PARTITION and part == SYSTEM and 0 <= offset <= offset + length <= size:
            return
    raise BadImage(f"the image {path} holds no complete file system: make it anew")
