"""Runs eval alone, in a child process that was forked before any stage was run."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from prorl_celery.sandbox.client import KeeperClient
from prorl_celery.scheduling.backends import Backend
from prorl_celery.settings import Settings
from prorl_celery.testing.local.process import LocalProcess
from prorl_celery.testing.local.store import LocalStore
from tasks.nursery import Nursery
from tasks.stages import run_stage


def score_apart(told: Mapping[str, Any]) -> dict[str, Any]:
    """Reward, resolved and the error's text of a job whose eval has its turn."""
    module, qualname = told["handler"]
    handler: Any = importlib.import_module(module)
    for part in qualname.split("."):
        handler = getattr(handler, part)
    settings = Settings.from_env(told["settings"])
    process = LocalProcess(handler, settings, Nursery(), KeeperClient(settings))
    process.local_backends.serve_only(*map(Backend.model_validate, told["backends"]))
    process.start()
    try:
        store = LocalStore.restored(told["store"], limit_bytes=settings.max_blob_bytes)
        process.begin(store)
        process.next_stage()
        message = store.message()
        if message is not None:
            run_stage(process, message.stage, message.job_id, message.fence)
        store.lose("eval did not say what became of it")
        result = store.result(store.job.job_id)
    finally:
        process.stop()
    error = None if result.error is None else result.error.message
    return {"reward": result.reward, "resolved": result.resolved, "error": error}
