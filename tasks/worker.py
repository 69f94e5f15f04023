"""Runs one Celery worker process of one stage, from its first fork to its clean end."""

from __future__ import annotations

import logging
import sys
from typing import Any

from celery.signals import task_unknown, worker_init, worker_ready, worker_shutting_down

from prorl_celery.handlers.registry import load_handlers
from prorl_celery.jobs.messages import Role
from prorl_celery.node.requests import NO_SUPERVISOR, SupervisorLine
from prorl_celery.settings import Settings
from tasks.nursery import Nursery
from tasks.process import StageProcess
from tasks.stages import on_unknown_task, register


def main(stage: Role, index: int, boot: str, settings: Settings, line: SupervisorLine = NO_SUPERVISOR) -> int:
    """Run one worker process until it is told to stop; return its exit code. Call it while there is one thread.

    `line` is its line to the supervisor that started it.
    """
    logging.basicConfig(
        stream=sys.stderr,
        level=settings.log_level.upper(),
        format=f"%(asctime)s %(levelname)s {stage}-{index} %(name)s: %(message)s",
    )
    handlers = load_handlers(settings)
    process = StageProcess(stage, index, boot, settings, Nursery(), handlers, line)
    register(process.app, process)

    def on_init(**_: Any) -> None:
        process.start()

    def on_ready(sender: Any, **_: Any) -> None:
        process.ready(sender)

    def on_stopping(**_: Any) -> None:
        process.drain()

    def on_unknown(name: str, id: str, **_: Any) -> None:
        on_unknown_task(process, name, id)

    worker_init.connect(on_init)
    worker_ready.connect(on_ready)
    worker_shutting_down.connect(on_stopping)
    task_unknown.connect(on_unknown)
    try:
        process.app.worker_main(_worker_arguments(process))
    except SystemExit as stopped:
        return int(stopped.code or 0)
    finally:
        process.stop()
    return 0


def _worker_arguments(process: StageProcess) -> list[str]:
    arguments = [
        "worker",
        "--pool=threads",
        f"--concurrency={process.slots}",
        f"--queues={','.join(process.queues)}",
        # Unlike the one of a process that was retired and is still at work.
        f"--hostname={process.name}.{process.id.rpartition(' ')[2]}@{process.settings.node}",
        f"--loglevel={process.settings.log_level.upper()}",
        # Gossip and mingle cost a square of the workers in messages and give us nothing.
        "--without-gossip",
        "--without-mingle",
    ]
    if not process.settings.task_events:
        arguments.append("--without-heartbeat")
    return arguments
