"""`prorl api`, `worker`, `flower`, `scripted-backend`: the parts of a service, for a cluster."""

from __future__ import annotations

import sys
from typing import Any

import click

from prorl_celery.cli.common import log_to_stderr, renewable, settings_with
from prorl_celery.errors import SettingsError


@click.command()
@click.option("--host", help="Address to bind; beyond loopback only with PRORL_API_TOKENS.")
@click.option("--port", type=click.IntRange(0, 65535))
@click.option("--redis", "redis_url", metavar="URL")
def api(**flags: Any) -> None:
    """Run the HTTP API alone, until SIGTERM."""
    settings, _ = settings_with(**flags)
    from prorl_celery.cli.checks import check_api, check_handlers, check_redis_url
    from web.serve import main

    check_api(settings)
    check_redis_url(settings)
    check_handlers(settings)

    sys.exit(main(settings))


@click.command()
@click.option("--stages", default="init,rollout,eval", show_default=True, help="Which stages this node works on.")
@click.option("--init", "init_slots", type=click.IntRange(1), help="Slots of init.")
@click.option("--rollout", "rollout_slots", type=click.IntRange(1), help="Slots of rollout.")
@click.option("--eval", "eval_slots", type=click.IntRange(1), help="Slots of eval.")
@click.option("--redis", "redis_url", metavar="URL")
@click.option("--node", help="This node's name.")
@renewable
def worker(stages: str, adopt: int | None, rehearse: bool, **flags: Any) -> None:
    """Run this node's workers under one supervisor: keeper, stages, upkeep. SIGTERM drains and stops them, SIGUSR1
    restarts them one after the other (`prorl restart`).
    """
    from prorl_celery.cli.checks import check_handlers, check_redis_url, check_worker
    from prorl_celery.cli.supervising import Origin, raise_descriptor_limit, supervise
    from prorl_celery.jobs.models import STAGES
    from prorl_celery.node.places import locked, private_directory
    from prorl_celery.node.services import warm, worker_units

    asked = [name.strip() for name in stages.split(",") if name.strip()]
    if not asked or not set(asked) <= set(STAGES):
        raise SettingsError(f"--stages takes some of {', '.join(STAGES)}, not {stages!r}")
    settings, _ = settings_with(**flags)
    check_redis_url(settings)
    check_worker(settings)
    log_to_stderr()
    if rehearse:
        warm()
        check_handlers(settings)
        return
    origin = Origin.of(adopt)
    place = private_directory(private_directory(settings.run_dir) / settings.node)
    what = f"node name {settings.node} on this machine ({place})"
    with locked(place / "worker.lock", what, held=origin.descriptor("lock")) as lock:
        raise_descriptor_limit()
        warm()
        if origin.estate is None:
            check_handlers(settings)
        chosen = [stage for stage in STAGES if stage in asked]
        units = worker_units(settings, chosen, boot=origin.boot, line=origin.requests.line)
        code = supervise(units, settings, origin, descriptors={"lock": lock})
    sys.exit(code)


@click.command()
@click.option("--address", default="127.0.0.1", show_default=True, help="Elsewhere only with FLOWER_BASIC_AUTH.")
@click.option("--port", type=click.IntRange(1, 65535), default=5555, show_default=True)
@click.option("--redis", "redis_url", metavar="URL")
def flower(address: str, port: int, **flags: Any) -> None:
    """Run Flower on the service's Celery application; workers need PRORL_TASK_EVENTS=1 to show tasks."""
    settings, _ = settings_with(**flags)
    from prorl_celery.cli.checks import check_redis_url
    from prorl_celery.cli.ports import free_port
    from prorl_celery.node.flower import check, main

    check_redis_url(settings)
    check(address)
    free_port(address, port)
    main(settings, port, address)


@click.command(context_settings={"ignore_unknown_options": True}, add_help_option=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def scripted_backend(arguments: tuple[str, ...]) -> None:
    """Run the scripted backend, a test double of an inference server (no model). See its own --help."""
    from prorl_celery.testing.scripted.command import main

    sys.exit(main(arguments))
