"""The few calls to the C library that Python does not offer: mostly `prctl`, which keeps processes from outliving
their owner.

Linux only. The library is loaded at import, so that a freshly forked child calls it without loading anything.
"""

from __future__ import annotations

import ctypes
import os
import signal

_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_M_ARENA_MAX = -8


def die_with_parent(parent_pid: int, signum: signal.Signals = signal.SIGKILL) -> None:
    """Have the kernel send this process `signum` when the thread that forked it ends. Call it in the child.

    Raises `OSError`; exits at once where the parent, `parent_pid`, was gone before the call.
    """
    _call(_PR_SET_PDEATHSIG, int(signum))
    if os.getppid() != parent_pid:
        os._exit(1)


def adopt_orphans(adopt: bool = True) -> None:
    """Make orphaned descendants ours, so that nothing of a dead child can escape a clean stop; or no more. Raises
    `OSError`.
    """
    _call(_PR_SET_CHILD_SUBREAPER, int(adopt))


def name_process(name: str) -> None:
    """Name this process for `ps` and `top` (15 bytes are kept). Raises `OSError`."""
    buffer = ctypes.create_string_buffer(name.encode()[:15])
    _call(_PR_SET_NAME, ctypes.addressof(buffer))


def share_malloc_arenas(count: int = 2) -> None:
    """Have the C library's threads share that many heaps. No effect where it is not glibc.

    By default each of up to 8 threads a core gets one, which in a process of many Python threads costs memory and gains
    nothing: one of them runs at a time.
    """
    mallopt = getattr(_LIBC, "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, count)


def give_back_memory() -> None:
    """Have the C library return what it keeps of freed memory to the kernel. No effect where it is not glibc."""
    malloc_trim = getattr(_LIBC, "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)


def _call(option: int, argument: int) -> None:
    if _LIBC.prctl(option, ctypes.c_ulong(argument), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0)) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
