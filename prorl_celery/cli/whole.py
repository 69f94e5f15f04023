"""The units of `prorl up`: a node with Redis and the API, and what runs beside them for tests and demonstrations."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from prorl_celery.cli.common import service_file
from prorl_celery.cli.ports import free_port
from prorl_celery.cli.supervising import Origin
from prorl_celery.errors import SettingsError
from prorl_celery.node import readiness, services
from prorl_celery.node.children import Call, Command
from prorl_celery.node.pause import until
from prorl_celery.node.redis_server import Program, RedisServer
from prorl_celery.node.units import Unit
from prorl_celery.node.vllm.server import READY_S as MODEL_READY_S
from prorl_celery.node.vllm.server import model_units
from prorl_celery.settings import Settings

READY_S = 120.0
SCRIPTED_PORTS = (20_000, 10_000)
"""The scripted backends' ports: the first, and how many; below those that the kernel gives away by itself."""


@dataclass(frozen=True, slots=True)
class Extras:
    """What `prorl up` runs besides the service: a test double, a real model, Flower."""

    scripted: str | None
    oracle: str | None
    latency: str
    model: str | None
    flower_port: int | None


@dataclass(frozen=True, slots=True)
class Choices:
    """What a start chooses, and a rolling restart keeps. All of it is JSON."""

    token: str | None
    """For the API where that wants tokens: one of our own, for registering what we run. It lives as long as we do."""
    scripted_port: int | None
    model_port: int | None

    @classmethod
    def made(cls, settings: Settings, extras: Extras) -> Choices:
        """Choose."""
        return cls(
            secrets.token_urlsafe(32) if settings.api_tokens else None,
            None if extras.scripted is None else _scripted_port(settings.data_dir),
            None if extras.model is None else free_port("127.0.0.1", 0),
        )

    def allow(self, settings: Settings) -> Settings:
        """The settings with the token among the API's."""
        if self.token is None:
            return settings
        entry = f"prorl-up:admin:{hashlib.sha256(self.token.encode()).hexdigest()}"
        return settings.with_(api_tokens=(*settings.api_tokens, entry))


def whole(
    settings: Settings, program: Program | None, extras: Extras, choices: Choices, origin: Origin, listener: int
) -> list[Unit]:
    """All units. `program`: the Redis to run, if any; `listener`: the API's socket, bound. Raises `SettingsError`,
    `ModelError`.
    """
    logs = settings.data_dir / "logs"
    units: list[Unit] = []
    after_redis: tuple[str, ...] = ()
    if program is not None:
        data, at = settings.data_dir / "redis", settings.run_dir / "redis.sock"
        server = RedisServer(program, data, at, settings.redis_fsync, settings.redis_memory_bytes)
        units.append(services.redis_unit(server, logs=logs))
        after_redis = ("redis",)
    units.append(services.api_unit(settings, listener=listener, after=after_redis, logs=logs))
    units += services.worker_units(settings, after=after_redis, logs=logs, boot=origin.boot, line=origin.requests.line)
    if extras.flower_port is not None:
        # Behind the workers: it asks them for what it lists when it starts, and not again by itself.
        units.append(services.flower_unit(settings, extras.flower_port, after=("ready",), logs=logs))
    backend = extras.scripted is not None or extras.model is not None
    if choices.scripted_port is not None:
        units += _scripted_units(settings, extras, choices.scripted_port, choices.token, logs)
    if extras.model is not None and choices.model_port is not None:
        units += model_units(extras.model, settings, port=choices.model_port, token=choices.token, logs=logs)
    redis = "the one given" if program is None else f"{program.path} ({program})"
    patience = READY_S if extras.model is None else READY_S + MODEL_READY_S
    ready = Call(_tell_when_ready, (settings, redis, backend, patience))
    units.append(Unit("ready", lambda: ready, once=True, vital=True))
    return units


def _scripted_units(settings: Settings, extras: Extras, port: int, token: str | None, logs: Path) -> list[Unit]:
    from prorl_celery.testing.scripted.command import MODEL_ID
    from prorl_celery.testing.scripted.tokens import TOKENIZER_DIR

    url = f"http://127.0.0.1:{port}"
    argv = [sys.executable, "-P", "-m", "prorl_celery.testing.scripted", "--port", str(port)]
    argv += ["--policy", extras.scripted or "solve", "--latency", extras.latency]
    argv += ["--oracle", extras.oracle] if extras.oracle else []
    backend = {"url": url, "model": MODEL_ID, "kind": "vllm", "tokenizer": str(TOKENIZER_DIR)}
    return [
        Unit(
            "scripted-backend",
            lambda: Command(tuple(argv), services.environment(settings, secret=False)),
            kept=True,
            probe=lambda: until(lambda: readiness.answers(url + "/health"), READY_S, every=0.05),
            stop_phase=services.KEEPER_STOPS,
            log=services.log_of("scripted-backend", logs),
        ),
        Unit(
            "registration",
            lambda: Call(_register, (readiness.local_url(settings), backend, token)),
            after=("api", "scripted-backend"),
            once=True,
            vital=True,
            log=services.log_of("registration", logs),
        ),
    ]


def _scripted_port(data_dir: Path) -> int:
    """The same for the same data, where it is free: what an earlier run registered is then this one's, and
    no job is given a backend that is gone.
    """
    first, count = SCRIPTED_PORTS
    wanted = first + int.from_bytes(hashlib.sha256(bytes(data_dir.resolve())).digest()[:4]) % count
    try:
        return free_port("127.0.0.1", wanted)
    except SettingsError:
        return free_port("127.0.0.1", 0)


def _register(url: str, backend: dict[str, Any], token: str | None) -> int:
    return readiness.register_backend(url, backend, token=token)


def _tell_when_ready(settings: Settings, redis: str, backend: bool, patience: float) -> int:
    """Runs as a child: prints the ready line once it is true; else what is missing, and fails."""
    url = readiness.local_url(settings)
    lacking: list[str] = []

    def ready() -> bool:
        lacking[:] = readiness.missing(url)
        return not [item for item in lacking if backend or not readiness.is_about_backends(item)]

    began = time.monotonic()
    if not until(ready, patience, every=0.1):
        click.echo(f"prorl: not ready after {patience:.0f} s: {'; '.join(lacking)}", err=True)
        click.echo(f"prorl: the logs are in {settings.data_dir / 'logs'}", err=True)
        return 1
    noted = service_file(settings)
    temporary = noted.with_suffix(".new")
    temporary.write_text(json.dumps({"url": url, "pid": os.getppid()}) + "\n")
    temporary.replace(noted)
    slots = f"{settings.init_slots} init, {settings.rollout_slots} rollout and {settings.eval_slots} eval slots"
    click.echo(f"prorl is ready: {url} ({time.monotonic() - began:.1f} s; {slots})")
    click.echo(f"  data and logs: {settings.data_dir}\n  redis: {redis}")
    if lacking:
        click.echo("  no backend yet, jobs will wait: prorl backends add URL --model NAME --tokenizer DIRECTORY")
    return 0
