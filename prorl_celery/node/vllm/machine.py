"""Whether this machine can run vLLM's CPU build, and in which number type it is fast there.

Everything is read from the machine and nothing is changed, so that `prorl doctor` may call `check_machine` at
any time. The figures are those of SmolLM2-135M served with a key-value cache of 1 GiB.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

INSTALL_BYTES = 4 << 30
"""What must be free to install: environment and model take 2.5 GB, pip's downloads and its cache of them the rest."""
MEMORY_BYTES = 4 << 30
"""What must be free to serve: the server's three processes hold 3.7 GB in float32, 2.9 GB in bfloat16."""
OLDEST_GLIBC = (2, 28)
PYTHONS = ((3, 11), (3, 13))


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that stands in the way. `fatal`: it cannot work; else it may, and `remedy` says what to know."""

    what: str
    remedy: str
    fatal: bool = True

    def __str__(self) -> str:
        return f"{self.what}; {self.remedy}"


@dataclass(frozen=True, slots=True)
class Machine:
    """What matters of a machine. Sizes in bytes; `available_memory` is None where the kernel does not tell."""

    system: str
    architecture: str
    cpu_flags: frozenset[str]
    glibc: tuple[int, ...]
    python: tuple[int, int]
    can_make_environments: bool
    available_memory: int | None
    free_disk: int

    @classmethod
    def here(cls, directory: Path) -> Machine:
        """This machine, with the disk that `directory` is on (or would be)."""
        return cls(
            system=platform.system(),
            architecture=platform.machine(),
            cpu_flags=_cpu_flags(),
            glibc=_glibc(),
            python=sys.version_info[:2],
            can_make_environments=importlib.util.find_spec("ensurepip") is not None,
            available_memory=_available_memory(),
            free_disk=shutil.disk_usage(_existing(directory)).free,
        )


def check_machine(
    directory: Path, *, installed: bool = False, torch_index: str = "", machine: Machine | None = None
) -> list[Problem]:
    """What stands in the way of preparing a model in `directory` and serving it; empty when nothing is known to.

    `installed`: it is prepared already, so that only serving is asked about.
    """
    machine = Machine.here(directory) if machine is None else machine
    if machine.system != "Linux":
        return [Problem(f"vLLM's CPU build needs Linux, this is {machine.system}", "use a Linux machine")]
    problems = _processor(machine)
    if machine.glibc < OLDEST_GLIBC:
        seen = ".".join(map(str, machine.glibc)) or "none"
        problems.append(Problem(f"its wheels need glibc 2.28 or newer, here is {seen}", "use Debian 10 or newer"))
    if not PYTHONS[0] <= machine.python <= PYTHONS[1]:
        seen = ".".join(map(str, machine.python))
        problems.append(Problem(f"it is tested with Python 3.11 to 3.13, this is {seen}", "use one of those"))
    if machine.available_memory is not None and machine.available_memory < MEMORY_BYTES:
        problems.append(
            Problem(
                f"its server takes {_gib(MEMORY_BYTES)} of memory, {_gib(machine.available_memory)} are available",
                "end what else runs, or raise the container's limit",
            )
        )
    return problems if installed else problems + _installing(machine, directory, torch_index)


def fast_dtype(machine_flags: frozenset[str] | None = None) -> str:
    """`bfloat16` where the processor multiplies it, else `float32`.

    Without AVX-512, vLLM's bfloat16 falls back to a loop: 24 tokens a second at 32 streams where float32 gave 125.
    """
    flags = _cpu_flags() if machine_flags is None else machine_flags
    return "bfloat16" if flags & {"avx512f", "bf16"} else "float32"


def _processor(machine: Machine) -> list[Problem]:
    if machine.architecture == "aarch64":
        return [Problem("vLLM's CPU build was never tried on aarch64 here", "expect surprises", fatal=False)]
    if machine.architecture != "x86_64":
        return [Problem(f"there is no wheel of vLLM for {machine.architecture}", "use an x86_64 machine")]
    if "avx2" not in machine.cpu_flags:
        return [Problem("this processor has no AVX2", "use a processor of 2015 or later; a virtual one may hide it")]
    return []


def _installing(machine: Machine, directory: Path, torch_index: str) -> list[Problem]:
    problems = []
    if not machine.can_make_environments:
        problems.append(Problem("this Python cannot make environments (no ensurepip)", "apt-get install python3-venv"))
    if machine.free_disk < INSTALL_BYTES:
        problems.append(
            Problem(
                f"{_gib(INSTALL_BYTES)} of disk are wanted, {directory} has {_gib(machine.free_disk)}",
                "make room, or choose another --data-dir (PRORL_DATA_DIR)",
            )
        )
    if not torch_index:
        problems.append(Problem("PRORL_TORCH_INDEX is not set", TORCH_REMEDY, fatal=False))
    return problems


TORCH_REMEDY = (
    "vLLM's CPU build wants torch's CPU build (its version ends in +cpu), which the usual index does not have. Unless "
    "pip on this machine finds it anyway, set PRORL_TORCH_INDEX to an index that has it: PyTorch names its own on its "
    "page of installation instructions, under Pip and CPU"
)


def _cpu_flags() -> frozenset[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() in {"flags", "Features"}:
            return frozenset(value.split())
    return frozenset()


def _glibc() -> tuple[int, ...]:
    try:
        text = os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (ValueError, OSError):  # musl does not know the name
        return ()
    return tuple(int(part) for part in text.rpartition(" ")[2].split(".") if part.isdigit())


def _available_memory() -> int | None:
    """What the kernel would give, within the limits of our cgroups."""
    available = None
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                available = int(line.split()[1]) * 1024
    except OSError:
        return None
    rooms = [room for room in _cgroup_rooms() if room is not None]
    return min([*rooms, available]) if available is not None else None


def _cgroup_rooms() -> list[int | None]:
    root = Path("/sys/fs/cgroup")
    try:
        ours = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    v2 = next((line.split("::", 1)[1] for line in ours if line.startswith("0::")), None)
    if v2 is None or not (root / "cgroup.controllers").exists():
        return [_room(root / "memory/memory.limit_in_bytes", root / "memory/memory.usage_in_bytes")]
    here = root / v2.strip("/")
    return [_room(place / "memory.max", place / "memory.current") for place in (here, *here.parents) if _within(place)]


def _within(place: Path) -> bool:
    return place.is_relative_to("/sys/fs/cgroup")


def _room(limit: Path, usage: Path) -> int | None:
    try:
        return max(0, int(limit.read_text()) - int(usage.read_text()))
    except (OSError, ValueError):  # no such file, or "max"
        return None


def _existing(path: Path) -> Path:
    path = path.absolute()
    while not path.exists():
        path = path.parent
    return path


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.1f} GiB"
