"""Runs in an eval's sandbox: what a process that runs an agent's code may not do to the others of its user.

All processes of a sandbox have one user, so that a hostile one could write into the memory of the shell, or into the
files of whoever judges it. Landlock (Linux 5.13, no privileges needed) forbids that: a process in a domain reads only
what it is given, writes only below its own folder, and may look into or trace none outside of its domain; from Linux
6.12 on it cannot signal them either. The system calls' numbers are the same on every architecture.

Constants: include/uapi/linux/landlock.h of Linux.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
VERSION_FLAG, PATH_BENEATH = 1, 1
PR_SET_NO_NEW_PRIVS, PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 38, 4, 36

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1, 2, 4, 8
READING = EXECUTE | READ_FILE | READ_DIR
CHANGING = ((1 << 13) - 1) & ~READING
"""Writing, removing and making of all kinds, in the first version."""
REFER, TRUNCATE = 1 << 13, 1 << 14
"""Renames from folder to folder (version 2), and cutting a file short (version 3)."""
SCOPES = 3
"""Abstract Unix sockets and signals (version 6)."""
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
COMMON = ("/tmp", "/var/tmp", "/dev/shm")
"""Where tests may write too: nothing of ours is there."""
OF_A_FILE = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE


def _call(number: int, *arguments: object) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    done = libc.syscall(ctypes.c_long(number), *arguments)
    if done < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return int(done)


def version() -> int:
    """Landlock's version here; 0 where there is none."""
    try:
        return _call(CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(VERSION_FLAG))
    except OSError:
        return 0


def prctl(option: int, value: int) -> None:
    """Raises `OSError`."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def confine(own: str, readable: Iterable[str], hidden: Iterable[str]) -> bool:
    """Let this process and its children write below `own` and in `COMMON` alone, and read there, in `readable`, and in
    every folder of the root but those in `hidden`. False where this kernel has no Landlock.

    Raises: `OSError` when it has, and refuses.
    """
    have = version()
    if have < 1:
        return False
    changing = CHANGING | (REFER if have >= 2 else 0) | (TRUNCATE if have >= 3 else 0)
    handled = READING | changing
    fields = (handled,) if have < 4 else (handled, 0) if have < 6 else (handled, 0, SCOPES)
    attributes = struct.pack(f"={len(fields)}Q", *fields)
    ruleset = _call(CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint32(0))
    roots = ["/" + name for name in os.listdir("/")]
    for path in [path for path in roots if path not in set(hidden)] + list(readable):
        _allow(ruleset, path, READING)
    for path in DEVICES:
        _allow(ruleset, path, READ_FILE | WRITE_FILE | (changing & TRUNCATE))
    for path in (own, *COMMON):
        _allow(ruleset, path, handled)
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    _call(RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint32(0))
    os.close(ruleset)
    return True


def _allow(ruleset: int, path: str, rights: int) -> None:
    """Allow rights at a path and below it; a path that is not there is none."""
    try:
        at = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not os.path.isdir(path):
            rights &= OF_A_FILE
        _call(
            ADD_RULE,
            ctypes.c_int(ruleset),
            ctypes.c_int(PATH_BENEATH),
            struct.pack("=Qi", rights, at),
            ctypes.c_uint32(0),
        )
    finally:
        os.close(at)
