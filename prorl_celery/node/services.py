"""What runs on a node, as units for the supervisor: `prorl worker` is `worker_units`; `prorl up` adds the
others.

    redis --> api --------------------------------------------.
        '---> keeper --> init, rollout x N, eval, upkeep, solo   '--> whatever needs both (registering a
        backend)

`solo` runs when it is asked for, for jobs that may have killed their process. A rolling restart replaces all but
Redis and the keeper.

They stop in the other direction: stages hand back or finish what they hold, then upkeep, the keeper with its
sandboxes, the API, Redis last.
"""

from __future__ import annotations

import importlib
import os
import secrets
import signal
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from prorl_celery.errors import SandboxError
from prorl_celery.jobs.messages import Role
from prorl_celery.jobs.models import STAGES, Stage
from prorl_celery.node.children import Call, Command
from prorl_celery.node.pause import until
from prorl_celery.node.redis_server import RedisServer
from prorl_celery.node.requests import NO_SUPERVISOR, SOLO, SupervisorLine
from prorl_celery.node.units import Unit
from prorl_celery.settings import PREFIX, Settings, variable_of

STAGES_STOP, UPKEEP_STOPS, KEEPER_STOPS, API_STOPS, REDIS_STOPS = range(5)
"""Phases of a stop, in order."""

KEEPER_READY_S = 30.0
HAND_BACK_S = 5.0
"""What a stage gets beyond `drain_seconds` to give back what it could not finish."""

WARM = (
    "celery.app.amqp",
    "celery.app.control",
    "celery.app.events",
    "celery.app.log",
    "celery.apps.worker",
    "celery.backends.base",
    "celery.bin.celery",  # with all its commands and plugins, Flower too: `worker_main` imports them
    "celery.concurrency.thread",
    "celery.events.state",
    "celery.fixups.django",
    "celery.worker.autoscale",
    "celery.worker.components",
    "celery.worker.consumer.delayed_delivery",
    "celery.worker.strategy",
    "encodings.idna",
    "kombu.pidbox",
    "kombu.transport.redis",
    "prorl_celery.handlers.code",
    "prorl_celery.handlers.math",
    "prorl_celery.node.upkeep",
    "redis",
    "tasks.worker",
)
"""What the supervisor imports before it forks, for its children to share."""


@dataclass(slots=True)
class Boot:
    """The boot id of the node's keeper: a new one for every start of it."""

    id: str = ""

    def renew(self) -> str:
        """Another id."""
        self.id = secrets.token_hex(4)
        return self.id


def warm(modules: Iterable[str] = WARM) -> None:
    """Import what the children will need. Numpy's threads are forbidden: this process forks."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    for name in modules:
        importlib.import_module(name)


def worker_units(
    settings: Settings,
    stages: Sequence[Stage] = STAGES,
    *,
    after: tuple[str, ...] = (),
    logs: Path | None = None,
    boot: Boot | None = None,
    line: SupervisorLine = NO_SUPERVISOR,
) -> list[Unit]:
    """The keeper, the stages' processes and the upkeep of a node. `after`: units to be ready before the
    stages; `boot`: that of a keeper that runs already; `line`: the children's to their supervisor.
    """
    boot = boot or Boot()
    dependents = []
    for stage in stages:
        count = min(settings.rollout_processes, settings.rollout_slots) if stage == "rollout" else 1
        for index in range(count):
            dependents.append(_stage_unit(stage, index, boot, settings, line, after, logs))
    dependents.append(
        Unit(
            "upkeep",
            lambda: Call(_upkeep, (boot.id, settings, line)),
            after=("keeper", *after),
            replace_signal=signal.SIGINT,  # it would tell the fleet that the node leaves, at SIGTERM
            stop_phase=UPKEEP_STOPS,
            log=log_of("upkeep", logs),
        )
    )
    if "rollout" in stages:  # what a suspect did in init is of use only where its rollout can follow
        dependents.append(_stage_unit("solo", 0, boot, settings, line, after, logs))
    keeper = Unit(
        "keeper",
        lambda: _keeper_command(boot.renew(), settings),
        probe=lambda: _keeper_answers(boot.id, settings),
        kept=True,
        replaces=tuple(unit.name for unit in dependents),
        stop_phase=KEEPER_STOPS,
        grace_seconds=10.0,
        log=log_of("keeper", logs),
    )
    return [keeper, *dependents]


def api_unit(
    settings: Settings, *, listener: int | None = None, after: tuple[str, ...] = (), logs: Path | None = None
) -> Unit:
    """The HTTP API, on a bound socket of its supervisor's where there is one: callers then wait out its restarts."""
    return Unit(
        "api",
        lambda: Call(_api, (settings, listener)),
        after=after,
        probe=lambda: _api_answers(settings),
        stop_phase=API_STOPS,
        grace_seconds=10.0,
        log=log_of("api", logs),
    )


def redis_unit(server: RedisServer, *, logs: Path | None = None) -> Unit:
    """An embedded Redis. It is told when we die, not killed: it has a file to flush."""
    return Unit(
        "redis",
        server.command,
        kept=True,
        probe=server.wait_ready,
        death_signal=server.stop_signal,
        stop_phase=REDIS_STOPS,
        grace_seconds=20.0,
        log=log_of("redis", logs),
    )


def flower_unit(settings: Settings, port: int, *, after: tuple[str, ...], logs: Path | None = None) -> Unit:
    """Flower, for a look at the Celery side."""
    start = Call(_flower, (settings, port))
    return Unit("flower", lambda: start, kept=True, after=after, log=log_of("flower", logs))


def log_of(name: str, logs: Path | None) -> Path | None:
    """The log file of a unit, where logs go to files."""
    return None if logs is None else logs / f"{name}.log"


def environment(settings: Settings, *, secret: bool) -> dict[str, str]:
    """The environment of a program of ours; without `secret`, the settings that hold secrets are left out."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    hidden = set() if secret else {variable_of(f) for f in fields(settings) if f.metadata["secret"]}
    return kept | {name: value for name, value in settings.to_env().items() if name not in hidden}


def _stage_unit(
    stage: Role,
    index: int,
    boot: Boot,
    settings: Settings,
    line: SupervisorLine,
    after: tuple[str, ...],
    logs: Path | None,
) -> Unit:
    return Unit(
        f"{stage}-{index}",
        lambda: Call(_stage, (stage, index, boot.id, settings, line)),
        after=("keeper", *after),
        asked_by=SOLO if stage == "solo" else "",
        stop_phase=STAGES_STOP,
        grace_seconds=settings.drain_seconds + HAND_BACK_S,
        log=log_of(f"{stage}-{index}", logs),
    )


def _keeper_command(boot: str, settings: Settings) -> Command:
    argv = (sys.executable, "-P", "-m", "prorl_celery.node.keeper", "--boot", boot)
    return Command(argv, environment(settings, secret=False), holds_stdin=True)


def _keeper_answers(boot: str, settings: Settings) -> bool:
    from prorl_celery.sandbox.client import KeeperClient

    keeper = KeeperClient(settings)

    def answers() -> bool:
        try:
            return bool(keeper.status(timeout=2.0)["boot"] == boot)
        except (SandboxError, OSError):
            return False

    return until(answers, KEEPER_READY_S, every=0.02)


def _api_answers(settings: Settings) -> bool:
    from prorl_celery.node.readiness import API_READY_S, answers, local_url

    return until(lambda: answers(local_url(settings) + "/healthz"), API_READY_S, every=0.05)


def _stage(stage: Role, index: int, boot: str, settings: Settings, line: SupervisorLine) -> int:
    from tasks.worker import main

    return main(stage, index, boot, settings, line)


def _upkeep(boot: str, settings: Settings, line: SupervisorLine) -> int:
    from prorl_celery.node.upkeep import main

    return main(boot, settings, line)


def _api(settings: Settings, listener: int | None) -> int | None:
    from web.serve import main

    return main(settings, listener=listener)


def _flower(settings: Settings, port: int) -> None:
    from prorl_celery.node.flower import main

    main(settings, port)
