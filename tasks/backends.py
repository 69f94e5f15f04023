"""The job's backend: asked for, and waited for where there is none."""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast

from prorl_celery.errors import NoBackend
from prorl_celery.jobs.models import JobRequest
from prorl_celery.jobs.turns import Turn
from prorl_celery.llm.endpoint import Endpoint
from prorl_celery.scheduling.backends import Backend
from tasks.work import Work

LOOK_AGAIN_SECONDS = 5.0
"""A wake-up is lost while the listener's connection is down; looking again at this pace makes that harmless."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What backend a conversation wants; None for any."""

    model: str | None
    mode: Literal["tokens", "chat"] | None = None
    policy_version: int | None = None

    @classmethod
    def by_agent(cls, job: JobRequest, logged: Sequence[Turn]) -> Wanted:
        """What the job's agent wants. Turns that were logged bind it to their model and form."""
        if logged:
            mode = cast(Literal["tokens", "chat"] | None, logged[0].mode)
            return cls(model=logged[0].model, mode=mode, policy_version=job.policy_version)
        return cls(model=job.sampling_params.model, mode=job.llm.mode, policy_version=job.policy_version)


def acquire(
    work: Work,
    *,
    model: str | None,
    mode: Literal["tokens", "chat"] | None,
    policy_version: int | None,
    exclude: Sequence[str] = (),
) -> Backend | None:
    """The job's backend: assigned once, kept for all its turns while it will do. None when there is none now."""
    return work.process.backends.acquire(
        work.job.job_id,
        work.claim.fence,
        model=model,
        mode=mode,
        policy_version=policy_version,
        exclude=exclude,
    )


def endpoint_of(backend: Backend) -> Endpoint:
    """The backend as a conversation needs to know it."""
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


def wait_for_backend(
    work: Work, *, model: str | None, mode: Literal["tokens", "chat"] | None, policy_version: int | None
) -> Backend:
    """The job's backend, once there is one. The caller stops the stage's clock.

    Raises: `NoBackend` after `PRORL_BACKEND_WAIT`, what the job's signal raises.
    """
    limit = work.process.settings.backend_wait_seconds
    deadline = time.monotonic() + limit
    with work.process.backends_bell.ear() as rung:
        poll = select.poll()
        poll.register(rung, select.POLLIN)
        poll.register(work.signal.fileno(), select.POLLIN)
        while True:
            backend = acquire(work, model=model, mode=mode, policy_version=policy_version)
            if backend is not None:
                return backend
            left = deadline - time.monotonic()
            if left <= 0:
                wanted = model or "any model"
                if policy_version is not None:
                    wanted += f" with version {policy_version}"
                raise NoBackend(f"no backend for {wanted} within {limit:g} s", job_id=work.job.job_id)
            poll.poll(min(left, LOOK_AGAIN_SECONDS) * 1000)
            work.signal.raise_if_set()
            _drain(rung)


def _drain(fd: int) -> None:
    with contextlib.suppress(BlockingIOError):
        os.eventfd_read(fd)
