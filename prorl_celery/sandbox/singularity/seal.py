"""What is done to an instance from outside, once it stands and before anything of an agent's runs in it.

The program mounts one tmpfs for all that is writable in an instance, of a size that the site sets and we cannot. The
owner of an instance's user namespace may enter it with all its capabilities: so we do, for a moment, and

- give that tmpfs the sandbox's size, in bytes and in files: a non-empty file takes a page at least;
- see that every writable place is on it, and make /dev read-only;
- forbid further user namespaces, in which an agent could mount a tmpfs of any size;
- cover what tells of the host: the first process's environment, and name servers that cannot be reached.

Where the program is set-uid and does not use user namespaces this cannot be done; `NotSealed` says so. Then the size is
the site's `sessiondir max size`, for the writable root and each other place together.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from prorl_celery.errors import SandboxError
from prorl_celery.sandbox.launch import User

WORKDIR = "/workspace"
HOME = "/home/agent"
SCRATCH = (WORKDIR, HOME, "/dev/shm")
"""Places that the program is asked to make on its tmpfs."""
PLACES = (*SCRATCH, "/tmp", "/var/tmp")
"""All that must be on it."""
LEAST_BYTES = 128 << 10
"""Some of it is taken from the start."""
LEAST_FILES = 1024
PAGE_BYTES = 4096

_LIBC = ctypes.CDLL(None, use_errno=True)
_RDONLY, _NOSUID, _NODEV, _REMOUNT, _BIND = 1, 2, 4, 32, 4096


class NotSealed(SandboxError):
    """The instance's namespaces are not its owner's: the program is set-uid."""


def seal(pid: int, disk_bytes: int, user: User | None, *, online: bool) -> None:
    """Seal the instance whose first process is `pid`; `online`: it has a network. Blocks for a millisecond or two.

    Raises: `NotSealed`, `SandboxError`.
    """
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        _run(lambda: _seal(pid, disk_bytes, user, online), write)
    os.close(write)
    with open(read, "rb") as pipe:  # noqa: PTH123
        said = pipe.read().decode("utf-8", "replace")
    _, status = os.waitpid(child, 0)
    if status == 0:
        return
    if os.WEXITSTATUS(status) == 2:
        raise NotSealed(said)
    raise SandboxError(f"the instance could not be given its limits: {said or status}")


def _run(function: Callable[[], None], write: int) -> None:
    """The child's whole life: its namespaces are others from here on."""
    code = 1
    try:
        function()
        code = 0
    except NotSealed as error:
        os.write(write, str(error).encode())
        code = 2
    except (SandboxError, OSError) as error:
        os.write(write, str(error).encode())
    finally:
        os._exit(code)


def _seal(pid: int, disk_bytes: int, user: User | None, online: bool) -> None:
    if user is not None:
        user.become()
    namespaces = [os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC) for kind in ("user", "mnt")]
    if os.path.samestat(os.fstat(namespaces[0]), Path("/proc/self/ns/user").stat()):
        raise NotSealed("the program runs instances without user namespaces")
    for namespace in namespaces:
        if _LIBC.setns(namespace, 0) != 0:
            raise NotSealed(f"its namespaces cannot be entered: {os.strerror(ctypes.get_errno())}")
    os.chdir("/")
    size = max(disk_bytes, LEAST_BYTES)
    files = max(size // PAGE_BYTES, LEAST_FILES)
    _mount(None, WORKDIR, _REMOUNT | _NOSUID | _NODEV, f"size={size},nr_inodes={files}")
    _mount(None, "/dev", _REMOUNT | _BIND | _RDONLY | _NOSUID, None)
    _check_places(size)
    os.chmod("/dev/shm", 0o1777)  # noqa: PTH101
    # Read where it is opened: of the namespace that opens it, whichever /proc that is.
    Path("/proc/sys/user/max_user_namespaces").write_text("0", encoding="ascii")
    for told in ("/proc/1/environ", *(() if online else ("/etc/resolv.conf",))):
        with suppress(OSError):  # not on every kernel or in every image, and no way out of anything
            _mount("/dev/null", told, _BIND, None)


def _check_places(size: int) -> None:
    device = os.stat(WORKDIR).st_dev  # noqa: PTH116
    for place in PLACES:
        if os.stat(place).st_dev != device:  # noqa: PTH116
            raise SandboxError(f"{place} is outside the sandbox's {size} bytes of disk")
    for place in ("/", WORKDIR):
        found = os.statvfs(place)
        if os.access(place, os.W_OK) and found.f_blocks * found.f_frsize > size + PAGE_BYTES:
            raise SandboxError(f"{place} has more room than the sandbox's {size} bytes of disk")


def _mount(source: str | None, target: str, flags: int, options: str | None) -> None:
    done = _LIBC.mount(
        None if source is None else os.fsencode(source),
        os.fsencode(target),
        None,
        ctypes.c_ulong(flags),
        None if options is None else options.encode("ascii"),
    )
    if done != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), target)
