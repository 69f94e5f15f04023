"""One soak, from the start of its service to the account."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from prorl_celery import folders
from prorl_celery.bench.service import BenchService, bench_service
from prorl_celery.bench.soak.account import Account, Run
from prorl_celery.bench.soak.jobs import OBEYER, SOLVER, soak_jobs
from prorl_celery.bench.soak.kills import Killer
from prorl_celery.bench.soak.plan import Plan
from prorl_celery.bench.soak.recovery import Jobs, Watcher
from prorl_celery.bench.soak.trainer import Trainer
from prorl_celery.scheduling.nodes import NodeRegistry
from prorl_celery.settings import Settings
from prorl_celery.store.clients import script_client
from prorl_celery.store.keys import Keys
from prorl_celery.testing import ScriptedBackend


def soak(plan: Plan, tell: Callable[[str], None] = lambda _: None, logs: Path | None = None) -> Account:
    """Run the plan. Progress goes to `tell`; the service's logs and the times of the kills to the folder `logs`.

    Raises `DemoFailed` where the service does not start or stop.
    """
    with ExitStack() as stack:
        folder = stack.enter_context(folders.temporary("soak")).path
        backends, journals = _backends(plan, folder, stack)
        service = stack.enter_context(bench_service())
        for backend in backends:
            service.register(backend)
        return _soak(plan, service, backends, journals, tell, logs)


def _backends(plan: Plan, folder: Path, stack: ExitStack) -> tuple[list[ScriptedBackend], list[Path]]:
    backends, journals = [], []
    for model, policy in ((SOLVER, "solve"), (OBEYER, "obey")):
        for index in range(plan.backends):
            journals.append(folder / f"{model}-{index}.calls")
            journals[-1].touch()
            backend = ScriptedBackend(
                policy,
                oracle="human-eval" if policy == "solve" else None,
                latency=f"lognormal:{plan.model_s},0.5",
                seed=plan.seed,
                model_id=model,
                journal=journals[-1],
            )
            backends.append(stack.enter_context(backend))
    return backends, journals


def _soak(
    plan: Plan,
    service: BenchService,
    backends: list[ScriptedBackend],
    journals: list[Path],
    tell: Callable[[str], None],
    logs: Path | None,
) -> Account:
    node = service.client.nodes()[0]["node"]
    settings = Settings(redis_url=service.redis_url, node=node)
    client = script_client(settings)
    jobs = Jobs(client, Keys(settings.key_prefix))
    trainer = Trainer(service.url, soak_jobs(plan.jobs, plan.seed), plan.window, time.monotonic() + plan.limit_s)
    killer = Killer(plan, service, node, jobs, NodeRegistry(client, settings), backends)
    run = Run(plan, service, settings, client, trainer, killer, Watcher(jobs), journals)
    try:
        run.hurt(tell)
    finally:
        if logs is not None:
            shutil.copytree(service.logs, logs, dirs_exist_ok=True)
            (logs / "kills").write_text("\n".join([*killer.log, ""]))
    tell("counting")
    account = run.account()
    client.close()
    return account
