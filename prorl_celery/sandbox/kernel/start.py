"""How a sandbox is told to be ready to start a kernel: arguments of `init.sh`, and three sockets it inherits."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files

SHOWN_IMPORT = "from prorl_celery.sandbox.kernel.shown import LastCell, small\n"


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
    """The text of `inside`, and in it that of `shown`: there is nothing to import it from in a sandbox."""
    folder = files("prorl_celery.sandbox.kernel")
    inside, shown = (folder.joinpath(name).read_text(encoding="utf-8") for name in ("inside.py", "shown.py"))
    return inside.replace(SHOWN_IMPORT, shown.replace("from __future__ import annotations\n", ""))
