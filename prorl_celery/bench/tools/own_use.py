"""What this thread reads, and how its process's memory grows, over a block of code; told by the kernel.

Of reads the process's own sum would not do: it takes in those of children that it has waited for.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from prorl_celery.node.prctl import give_back_memory

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_IO = Path("/proc/thread-self/io")
_FORGET_PEAK = "5"
"""Written to `clear_refs`: the peak of resident memory counts from now on."""


@dataclass(slots=True)
class Use:
    """Set when the block has ended. `read_bytes`: by system calls, from whatever; `grown_bytes`: peak over start."""

    read_bytes: int = 0
    grown_bytes: int = 0


@contextmanager
def own_use() -> Iterator[Use]:
    """Watch. Raises `OSError` where the kernel does not tell."""
    use = Use()
    gc.collect()
    give_back_memory()  # what is taken again would else not be seen to grow
    _CLEAR.write_text(_FORGET_PEAK)
    peak, read = _number(_STATUS, "VmHWM"), _number(_IO, "rchar")
    yield use
    use.read_bytes = _number(_IO, "rchar") - read
    use.grown_bytes = (_number(_STATUS, "VmHWM") - peak) * 1024


def _number(path: Path, field: str) -> int:
    for line in path.read_text().splitlines():
        found, _, rest = line.partition(":")
        if found == field:
            return int(rest.split()[0])
    raise OSError(f"{path} tells no {field}")
