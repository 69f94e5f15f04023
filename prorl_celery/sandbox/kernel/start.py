"""How a sandbox is told to be ready to start a kernel: arguments of `init.sh`, and three sockets it inherits."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelStart:
    """The kernel of one sandbox. `packages` is a folder inside, of packages that its Python has not itself."""

    sockets: tuple[int, ...]
    """Descriptors of the listening sockets: shell, iopub, life."""
    output_bytes: int
    program: str = "python3"
    packages: str = ""

    def arguments(self) -> tuple[str, ...]:
        """The last arguments of `init.sh`."""
        sockets = " ".join(map(str, self.sockets))
        return sockets, self.program, self.packages, str(self.output_bytes), _inside()


@cache
def _inside() -> str:
    return files("prorl_celery.sandbox.kernel").joinpath("inside.py").read_text(encoding="utf-8")
