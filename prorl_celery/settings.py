"""The service's settings: one frozen, typed object, read from `PRORL_*` variables.

A variable is `PRORL_` and the field's name in capitals, unless the field names another. Unknown `PRORL_*`
variables are refused, so that a misspelt one is an error and not a silent default. This module imports only the
standard library: the keeper, which must stay small, reads it too.
"""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from prorl_celery.errors import SettingsError

PREFIX = "PRORL_"


def _default_node() -> str:
    """Slurm's node name before the host's: several Slurm nodes can share one machine and its host name."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname().split(".")[0] or "node"


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


def setting(
    default: Any = None,
    *,
    default_factory: Callable[[], Any] | None = None,
    help: str,
    env: str | None = None,
    minimum: float | None = None,
    maximum: float | None = None,
    choices: tuple[str, ...] = (),
    secret: bool = False,
) -> Any:
    """A field of `Settings`: its default, a sentence of help, its variable, its bounds."""
    metadata = {"help": help, "env": env, "minimum": minimum, "maximum": maximum, "choices": choices, "secret": secret}
    if default_factory is not None:
        return field(default_factory=default_factory, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All knobs. Durations are in seconds, sizes in bytes, unless the name says otherwise."""

    # Redis
    redis_url: str = setting(
        "redis://127.0.0.1:6379/0",
        help="Redis for jobs, heap, counters and broker; or sentinel://HOST,HOST/SERVICE for one with a standby.",
        secret=True,
    )
    key_prefix: str = setting("prorl:", help="First part of every Redis key of ours.")
    redis_fsync: str = setting(
        "everysec",
        help="When the Redis of `prorl up` brings its file to the disk: everysec; always, before it answers.",
        choices=("everysec", "always"),
    )
    redis_memory_bytes: int = setting(
        0,
        help="Memory of the Redis that `prorl up` starts; 0 is half of the machine's. New jobs are refused near it.",
        env="PRORL_REDIS_MEMORY",
        minimum=0,
    )

    # The node
    node: str = setting(default_factory=_default_node, help="This node's name; unique in the fleet.")
    data_dir: Path = setting(
        default_factory=lambda: Path.cwd() / ".prorl", help="Redis's append-only file, logs, images, models."
    )
    run_dir: Path = setting(
        default_factory=lambda: Path(tempfile.gettempdir()) / f"prorl-{os.getuid()}",
        help="Sockets and process state; on a local disk, with a short path.",
    )
    init_slots: int = setting(8, help="Jobs in init at once on this node.", minimum=1)
    rollout_slots: int = setting(64, help="Jobs in rollout at once on this node.", minimum=1)
    eval_slots: int = setting(4, help="Jobs in eval at once on this node.", minimum=1)
    rollout_processes: int = setting(
        default_factory=lambda: max(1, min(_cores(), 8)),
        help="Processes the rollout slots are spread over; one fills at about 15 rollouts a second.",
        minimum=1,
    )
    init_ahead: int = setting(8, help="Sandboxes that init may make ahead of free rollout slots.", minimum=0)
    log_level: str = setting(
        "warning", help="debug, info, warning or error.", choices=("debug", "info", "warning", "error")
    )
    drain_seconds: float = setting(
        10.0, help="How long a stopping stage may finish what it holds.", minimum=0.0, env="PRORL_DRAIN"
    )
    silence_seconds: float = setting(
        60.0, help="A process of a node that has not beaten for so long is killed.", minimum=1.0, env="PRORL_SILENCE"
    )
    wedge_grace_seconds: float = setting(
        10.0,
        help="How long a stage that was told to stop may take before its process gives its slot up.",
        env="PRORL_WEDGE_GRACE",
        minimum=0.2,
    )
    stall_seconds: float = setting(
        300.0,
        help="How long a job may be at one thing before it is reported as stalled.",
        env="PRORL_STALL",
        minimum=0.5,
    )

    task_events: bool = setting(False, help="Workers send task events, which Flower shows.")

    # Jobs
    lease_seconds: float = setting(
        15.0, help="How long a claim lives without a heartbeat.", env="PRORL_LEASE", minimum=0.5
    )
    heartbeat_seconds: float = setting(5.0, help="Time between heartbeats.", env="PRORL_HEARTBEAT", minimum=0.1)
    sweep_seconds: float = setting(2.0, help="Time between sweeps for lapsed leases.", env="PRORL_SWEEP", minimum=0.1)
    republish_after_seconds: float = setting(
        10.0,
        help="How long a queue must have passed a queued job by before its message counts as lost.",
        env="PRORL_REPUBLISH_AFTER",
        minimum=0.1,
    )
    result_ttl_seconds: float = setting(
        6 * 3600.0, help="How long results are kept.", env="PRORL_RESULT_TTL", minimum=1.0
    )
    id_ttl_seconds: float = setting(
        7 * 86400.0, help="How long a job id is remembered.", env="PRORL_ID_TTL", minimum=1.0
    )
    max_queued: int = setting(100_000, help="Jobs not yet past init before new ones get 429.", minimum=1)
    max_blob_bytes: int = setting(
        64 << 20, help="Largest instance, turn or result, packed.", env="PRORL_MAX_BLOB", minimum=1024
    )
    backend_wait_seconds: float = setting(
        600.0, help="How long a job waits for a backend of its model.", env="PRORL_BACKEND_WAIT", minimum=0.0
    )

    # The API
    host: str = setting("127.0.0.1", help="Address the API binds; other than loopback only with tokens.")
    port: int = setting(8006, help="Port of the API.", minimum=0, maximum=65535)
    api_threads: int = setting(64, help="Threads of one API process.", minimum=1)
    api_processes: int = setting(1, help="API processes.", minimum=1)
    api_tokens: tuple[str, ...] = setting((), help="name:scopes:sha256 entries, separated by commas.", secret=True)
    max_body_bytes: int = setting(64 << 20, help="Largest request body.", env="PRORL_MAX_BODY", minimum=1024)
    max_waiters: int = setting(512, help="Long-polls at once, in one API process.", minimum=0)

    # Sandboxes and tools
    sandbox: str = setting(
        "auto",
        help="auto, bubblewrap, singularity or local.",
        choices=("auto", "bubblewrap", "singularity", "local"),
    )
    sandbox_user: str = setting("nobody", help="Whom sandboxes run as when the service is started as root.")
    allow_unsafe_local: bool = setting(False, help="Allow the sandbox kind without isolation.")
    sandbox_memory_bytes: int = setting(
        2 << 30,
        help="Memory of one sandbox, all its processes together.",
        env="PRORL_SANDBOX_MEMORY",
        minimum=1 << 20,
    )
    sandbox_disk_bytes: int = setting(
        256 << 20, help="Size of a sandbox's workspace.", env="PRORL_SANDBOX_DISK", minimum=1 << 20
    )
    sandbox_processes: int = setting(256, help="Processes in one sandbox.", minimum=8)
    sandbox_cpus: float = setting(
        0.0, help="CPU share of one sandbox in cores, where cgroups allow a limit; 0 is none.", minimum=0.0
    )
    sandbox_cgroups: str = setting(
        "auto",
        help="auto: a control group for each sandbox where this node allows it; off: none.",
        choices=("auto", "off"),
    )
    spare_sandboxes: int = setting(
        4,
        help="Most sandboxes kept ready, of kinds asked for lately; each costs 1 MB of memory, with a kernel 30.",
        minimum=0,
        maximum=256,
    )
    sandbox_networks: tuple[str, ...] = setting(
        ("none",), help="Networks that handlers may give a sandbox: none, host, bridge, separated by commas."
    )
    sandbox_binds: tuple[str, ...] = setting(
        (), help="Folders that handlers may bind into a sandbox, DIR (read-only) or DIR:rw, separated by commas."
    )
    sandbox_fakeroot: bool = setting(False, help="Let handlers ask for a sandbox in which they look like root.")
    images_dir: str = setting(
        "", help="Where images are kept; nodes may share it. Default: the folder images of the data directory."
    )
    datasets: tuple[str, ...] = setting(
        (),
        help="Folders below which instances may name files of a node, separated by commas. Default: the folder "
        "datasets of the data directory.",
    )
    image_names: tuple[str, ...] = setting(
        (
            "xingyaoww/sweb.eval.x86_64.{s}",
            "godcherry/sweb.eval.x86_64.{s}",
            "swebench/sweb.eval.x86_64.{1776}",
        ),
        help="Tried in turn for a SWE instance that names no image; {s}, {1776}: its id with __ as _s_, as _1776_.",
    )
    kernel_packages: tuple[str, ...] = setting(
        ("ipykernel", "numpy", "scipy", "sympy"),
        help="Packages of this installation that kernels have where no image brings its own, separated by commas.",
    )
    tool_output_bytes: int = setting(
        64 << 10,
        help="Most output of one tool call kept: head and tail.",
        env="PRORL_TOOL_OUTPUT",
        minimum=256,
    )
    tool_timeout_seconds: float = setting(
        120.0,
        help="Time-out of one shell command without one of its own.",
        env="PRORL_TOOL_TIMEOUT",
        minimum=0.1,
    )

    # Software-engineering instances
    swe_apply_seconds: float = setting(
        120.0, help="Longest step of an eval that prepares or applies a patch, and of taking one out.", minimum=1.0
    )
    swe_test_seconds: float = setting(1800.0, help="Longest run of an instance's tests.", minimum=1.0)
    swe_eval_seconds: float = setting(2400.0, help="Longest eval of a patch, all in all.", minimum=1.0)
    swe_patch_bytes: int = setting(4 << 20, help="Longest patch that is taken out.", minimum=1024)

    # Handlers and models
    handlers: tuple[str, ...] = setting((), help="More handlers: module:Class or file.py:Class, separated by commas.")
    judge_model: str = setting("", help="The model that judges free answers, served by a backend of its own.")
    judge_prompt: str = setting("", help="A file with the judge's prompt; default: our own.")
    judge_tokens: int = setting(1024, help="Most tokens of one verdict, thinking included.", minimum=1)
    judge_timeout_seconds: float = setting(
        120.0, help="How long one verdict may take.", env="PRORL_JUDGE_TIMEOUT", minimum=0.1
    )
    search_url: str = setting("", help="Where the tool `search` posts its queries, as Tavily takes them; empty: off.")
    search_key: str = setting("", help="The key that is sent along.", secret=True)
    search_index: str = setting("", help="A JSON-lines file of documents that `search` looks through instead.")
    search_timeout_seconds: float = setting(
        20.0, help="How long one search may take, all tries together.", env="PRORL_SEARCH_TIMEOUT", minimum=0.1
    )
    reward_urls: tuple[str, ...] = setting(
        (),
        help="What a job's reward_url may begin with, separated by commas; empty: anything, with tokens nothing.",
    )
    reward_timeout_seconds: float = setting(
        120.0, help="How long a reward server may take for one score.", env="PRORL_REWARD_TIMEOUT", minimum=0.1
    )
    reward_wait_seconds: float = setting(
        600.0,
        help="How long a job goes on asking a reward server that is down or busy.",
        env="PRORL_REWARD_WAIT",
        minimum=0.0,
    )
    torch_index: str = setting("", help="A package index that has torch's CPU build, for the real-model demo.")

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Settings:
        """Read the settings; raise `SettingsError` that names every unknown or ill-typed variable."""
        return cls.with_sources(environ)[0]

    @classmethod
    def with_sources(cls, environ: Mapping[str, str] | None = None) -> tuple[Settings, dict[str, str]]:
        """The settings, and for each field where its value came from: the variable, or `default`."""
        environ = os.environ if environ is None else environ
        values: dict[str, Any] = {}
        sources: dict[str, str] = {}
        problems: list[str] = []
        by_variable = {variable_of(f): f for f in fields(cls)}
        for name in sorted(environ):
            if not name.startswith(PREFIX):
                continue
            f = by_variable.get(name)
            if f is None:
                problems.append(f"{name}: no such setting")
                continue
            try:
                values[f.name] = _parse(str(f.type), environ[name], f.metadata)
                sources[f.name] = name
            except ValueError as error:
                problems.append(f"{name}: {error}")
        if problems:
            raise SettingsError("; ".join(problems))
        for f in fields(cls):
            sources.setdefault(f.name, "default")
        return cls(**values), sources

    def with_(self, **changes: Any) -> Settings:
        """A copy with some fields changed."""
        return replace(self, **changes)

    def to_env(self) -> dict[str, str]:
        """The variables that make `from_env` give this object again, for child processes."""
        return {variable_of(f): _render(getattr(self, f.name)) for f in fields(self)}


def variable_of(f: Any) -> str:
    """The environment variable of a field of `Settings`."""
    return str(f.metadata["env"] or PREFIX + f.name.upper())


def _parse(kind: str, text: str, bounds: Mapping[str, Any]) -> Any:
    value: Any
    if kind == "bool":
        if text.lower() not in {"0", "1", "true", "false", "yes", "no"}:
            raise ValueError(f"{text!r} is not a yes or a no (1, 0)")
        return text.lower() in {"1", "true", "yes"}
    if kind == "int":
        value = _number(int, text, "a whole number")
    elif kind == "float":
        value = _number(float, text, "a number")
        if value != value or value in (float("inf"), float("-inf")):
            raise ValueError(f"{text!r} is not a finite number")
    elif kind == "Path":
        if not text:
            raise ValueError("an empty path")
        return Path(text)
    elif kind.startswith("tuple"):
        return tuple(part.strip() for part in text.split(",") if part.strip())
    else:
        return _chosen(text, bounds["choices"])
    minimum, maximum = bounds["minimum"], bounds["maximum"]
    if minimum is not None and value < minimum:
        raise ValueError(f"{text} is below the least allowed, {minimum:g}")
    if maximum is not None and value > maximum:
        raise ValueError(f"{text} is above the most allowed, {maximum:g}")
    return value


def _number(kind: Callable[[str], Any], text: str, what: str) -> Any:
    try:
        return kind(text)
    except ValueError:
        raise ValueError(f"{text!r} is not {what}") from None


def _chosen(text: str, choices: tuple[str, ...]) -> str:
    """The text itself, or that of the choices that it is but for the case of its letters."""
    if not choices:
        return text
    if text.lower() not in choices:
        raise ValueError(f"{text!r} is none of {', '.join(choices)}")
    return text.lower()


def _render(value: Any) -> str:
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value)
