"""Waits for a backend of the job's model, with the stage's clock standing still."""

from __future__ import annotations

import contextlib
import os
import select
import time

from prorl_celery.errors import NoBackend
from prorl_celery.llm.endpoint import Endpoint
from prorl_celery.scheduling.backends import Backend
from tasks.work import Work

LOOK_AGAIN_SECONDS = 5.0
"""A wake-up is lost while the listener's connection is down; looking again at this pace makes that harmless."""


def acquire_endpoint(work: Work) -> Endpoint:
    """The job's backend: assigned once, kept for all its turns.

    Raises: `NoBackend` after `PRORL_BACKEND_WAIT`, what the job's signal raises.
    """
    backend = _acquire(work)
    if backend is None:
        with work.clock.paused():
            backend = _wait(work)
    return Endpoint(
        url=backend.url,
        model=backend.model,
        kind=backend.kind,
        tokenizer=backend.tokenizer,
        api_key=backend.api_key,
        policy_version=backend.policy_version,
        max_model_len=backend.max_model_len,
        gives_ids=backend.gives_ids,
    )


def _acquire(work: Work) -> Backend | None:
    return work.process.backends.acquire(
        work.job.job_id,
        work.claim.fence,
        model=work.job.sampling_params.model,
        mode=work.job.llm.mode,
        policy_version=work.job.policy_version,
    )


def _wait(work: Work) -> Backend:
    limit = work.process.settings.backend_wait_seconds
    deadline = time.monotonic() + limit
    with work.process.backends_bell.ear() as rung:
        poll = select.poll()
        poll.register(rung, select.POLLIN)
        poll.register(work.signal.fileno(), select.POLLIN)
        while True:
            backend = _acquire(work)
            if backend is not None:
                return backend
            left = deadline - time.monotonic()
            if left <= 0:
                model = work.job.sampling_params.model or "any model"
                raise NoBackend(f"no backend for {model} within {limit:g} s", job_id=work.job.job_id)
            poll.poll(min(left, LOOK_AGAIN_SECONDS) * 1000)
            work.signal.raise_if_set()
            _drain(rung)


def _drain(fd: int) -> None:
    with contextlib.suppress(BlockingIOError):
        os.eventfd_read(fd)
