"""What every kind of sandbox is to the rest of the house.

A sandbox is started by the node's keeper and by nobody else. It has one shell on a pseudo-terminal for the agent and
one control channel for file operations; both live inside the sandbox. Other processes of the node get their
descriptors from the keeper (`prorl_celery.sandbox.client`).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from math import isfinite
from typing import Any, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSpec:
    """What a sandbox should be. JSON both ways."""

    job_id: str
    attempt: int
    fence: int = 0
    """The claim that asks for it."""
    purpose: str = "rollout"
    """`rollout` counts against the node's admission; `eval` does not."""
    kind: str = "auto"
    image: str | None = None
    network: str = "none"
    """`none`, `host` or `bridge`."""
    binds: tuple[str, ...] = ()
    """Folders of the host to see inside, `SOURCE:TARGET` or `SOURCE:TARGET:rw`; only what the node allows."""
    fakeroot: bool = False
    """Look like root inside (Singularity, where the site allows it)."""
    kernel: bool = False
    """An IPython kernel is wanted: it is started with the sandbox and up before the start is done."""
    env: dict[str, str] = field(default_factory=dict)
    memory_bytes: int = 2 << 30
    """Memory of all its processes together."""
    disk_bytes: int = 256 << 20
    processes: int = 256
    cpus: float = 0.0
    """CPU share in cores, where cgroups allow a limit; 0 is none."""
    lifetime_seconds: float = 6 * 3600.0
    """The keeper ends the sandbox after this long, whatever else happens."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> SandboxSpec:
        """Raises `TypeError`, `ValueError` for what is no specification."""
        spec = cls(**{**data, "binds": tuple(data.get("binds", ()))})
        check_wishes(spec)
        for name in ("job_id", "purpose", "kind"):
            _check(name, getattr(spec, name), str)
        for name in ("attempt", "fence", "memory_bytes", "disk_bytes", "processes"):
            _check(name, getattr(spec, name), int)
        for name in ("cpus", "lifetime_seconds"):
            _check(name, getattr(spec, name), int | float)
        _check("env", spec.env, dict)
        for value in spec.env.values():
            _check("a value of env", value, str)
        return spec


class Wishes(Protocol):
    """What a handler's request and the keeper's specification have in common."""

    @property
    def image(self) -> str | None: ...
    @property
    def network(self) -> str: ...
    @property
    def binds(self) -> tuple[str, ...]: ...
    @property
    def fakeroot(self) -> bool: ...
    @property
    def kernel(self) -> bool: ...


def check_wishes(wishes: Wishes) -> None:
    """Raises `ValueError`, which names the field, where a value is of another type than it says."""
    _check("image", wishes.image, str | None)
    _check("network", wishes.network, str)
    _check("binds", wishes.binds, tuple | list)
    for bind in wishes.binds:
        _check("each of binds", bind, str)
    _check("fakeroot", wishes.fakeroot, bool)
    _check("kernel", wishes.kernel, bool)


def _check(name: str, value: Any, kind: Any) -> None:
    if not isinstance(value, kind) or (isinstance(value, float) and not isfinite(value)):
        expected = getattr(kind, "__name__", str(kind))
        raise ValueError(f"{name} must be {expected}, not {str(value)[:80]!r} ({type(value).__name__})")


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxHandle:
    """Names a live sandbox between stages. JSON both ways; the only form in which a sandbox passes from init on."""

    sandbox_id: str
    kind: str
    node: str
    boot: str
    """The keeper's boot id: a handle of another boot names a sandbox that is gone."""
    workdir: str = "/workspace"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> SandboxHandle:
        return cls(**data)


class CancelSignal(Protocol):
    """What every wait of a stage watches beside its own event."""

    def fileno(self) -> int:
        """A descriptor that becomes readable, and stays so, when the job must stop."""
        ...

    def raise_if_set(self) -> None:
        """Raise `Cancelled`, `FenceLost` or `StageTimeout` if the job must stop."""
        ...

    @property
    def is_set(self) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """What a shell command came to.

    `exit_code` is None when the command was ended by its time-out. `output` is head and tail when it was cut;
    `omitted_bytes` says how much is missing between them.
    """

    output: str
    exit_code: int | None
    cwd: str
    duration_s: float
    timed_out: bool = False
    omitted_bytes: int = 0
    shell_restarted: bool = False
    """The shell ended (exit, kill) and a new one stands in its place: variables and functions are gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered(CommandResult):
    """What came of the command that the shell's last holder had sent since its last `Sandbox.mark`, when it died.

    Whoever takes over has waited for its end, so the shell is at its prompt. Not begun, it never will be.
    """

    begun: bool | None
    """None: that cannot be told. Then it must be treated as if it had."""
    ended: bool
    """It ended by itself, and `exit_code` says how. Else it was not begun, or was stopped (`timed_out`), or it is not
    known how it ended."""
    complete: bool
    """`output` is all that it printed, or as much of it as is ever kept."""


class Shell(Protocol):
    """A persistent shell on a pseudo-terminal inside a sandbox."""

    def run(self, command: str, *, timeout: float) -> CommandResult:
        """Run one command to its end or its time-out (interrupt, then kill; the session stays).

        Otherwise than at a terminal, a command's standard input is empty, `exec` redirects for the one command, and
        `set -e`, `-v` and `-x`, a prompt and a prompt command are undone after it.

        Raises: `SandboxError` when the sandbox is gone, `FenceLost` when another has taken it over, what
        `CancelSignal.raise_if_set` raises on cancel.
        """
        ...

    def recover(self, *, timeout: float) -> Recovered:
        """Take over from a holder that died: wait for the end of what it had sent, if it had, and run nothing.

        `timeout` (seconds) is that command's own, counted from when it was sent, without the time for which nobody
        held the shell. Where nothing is under way this returns at once, and says the same however often it is called.
        A `run` in a sandbox that was taken over does this by itself first. Raises as `run`.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CellResult:
    """What a cell of code came to.

    `output` holds what it printed and showed, an error with its trace, and what is no text by kind and size; head and
    tail when it was cut. `ok` says that it ran to its end without an error.
    """

    output: str
    ok: bool
    duration_s: float
    timed_out: bool = False
    omitted_bytes: int = 0
    kernel_ended: int | None = None
    """The kernel ended with this cell, or had to be ended: how, as a shell's exit code. Another stands in its place:
    variables and imports are gone."""
    kernel_lost: int | None = None
    """The kernel had ended before this cell, which ran in a fresh one: how, as a shell's exit code."""
    no_kernel: str | None = None
    """The cell was not run: the kernel is gone and no other starts, for this reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveredCell(CellResult):
    """What came of the cell that the kernel's last holder had sent since its last `Sandbox.mark`; see `Recovered`.

    `ok` is False unless it is known that it ended without an error.
    """

    begun: bool | None
    ended: bool
    complete: bool


class Kernel(Protocol):
    """A persistent IPython kernel inside a sandbox."""

    def run(self, code: str, *, timeout: float) -> CellResult:
        """Run one cell to its end or its time-out (interrupt, then kill and another kernel).

        Raises: `SandboxError` when the sandbox is gone, what `CancelSignal.raise_if_set` raises on cancel.
        """
        ...

    def restart(self) -> None:
        """A fresh kernel in place of this one. Raises as `run`, and `NoKernel`."""
        ...

    def recover(self, *, timeout: float) -> RecoveredCell:
        """Take over from a holder that died, as `Shell.recover`. Raises as `run`."""
        ...


class Files(Protocol):
    """File operations that happen inside the sandbox, so that a planted symlink reaches nothing of the host."""

    def read(self, path: str, *, limit_bytes: int = 1 << 20) -> bytes:
        """Raises `FileNotFoundError`, `IsADirectoryError`, `PermissionError`, `OSError`, `SandboxError`."""
        ...

    def write(self, path: str, data: bytes) -> None:
        """Write a whole file, making parent folders. Raises as `read`."""
        ...

    def listing(self, path: str) -> list[str] | None:
        """Names two levels deep, relative to `path`, folders with a trailing slash; None when it is not a folder."""
        ...

    def recover(self) -> bool:
        """Take over from a holder that died: whether a write took place since its last `Sandbox.mark`. One that was
        under way has been done in full or not at all, and will not be.

        Raises: `SandboxError`, `FenceLost`, what the cancel signal raises.
        """
        ...


class Sandbox(Protocol):
    """A live sandbox, as a stage holds it."""

    @property
    def handle(self) -> SandboxHandle: ...
    @property
    def shell(self) -> Shell: ...
    @property
    def files(self) -> Files: ...
    @property
    def kernel(self) -> Kernel:
        """Connected to at the first use. Raises: `NoKernel`; `SandboxError`, also when it was started without."""
        ...

    @property
    def marked(self) -> str:
        """What `mark` was given last, by whichever process held the sandbox then; empty at first."""
        ...

    def mark(self, name: str) -> None:
        """Say what the commands, cells and writes from now on belong to: one tool call. Whoever takes the sandbox over
        learns by it whether what it finds under way, or just ended, is what it asks about. At most 100 bytes.

        Raises: `FenceLost` when another has taken the sandbox over.
        """
        ...

    def close(self) -> None:
        """Close this process's descriptors. The sandbox lives on."""
        ...

    def stop(self) -> None:
        """End the sandbox and everything in it. Idempotent."""
        ...
