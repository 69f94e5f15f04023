"""Checks that a job's instance can be run, that the tools it names are there, and that its reward server may be asked,
before it is accepted.

A data source is known when this process has its handler or a live node's record names it. The handler then looks at
the instance itself; one that only a node has does so in init.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from prorl_celery.errors import BadInstance
from prorl_celery.handlers.base import Handler
from prorl_celery.jobs.models import JobRequest
from prorl_celery.rewards.urls import allowed
from prorl_celery.settings import Settings
from prorl_celery.tools.toolbox import TOOL_NAMES
from web.problems import FieldError, bad_fields
from web.services import services

log = logging.getLogger("prorl.web")


def check_instances(jobs: Sequence[JobRequest], *, many: bool) -> None:
    """Refuse jobs whose instance nobody can run. Raises `Problem` 422 that names each bad field of each job."""
    found: list[FieldError] = []
    elsewhere: set[str] | None = None
    for index, job in enumerate(jobs):
        job_prefix = f"jobs.{index}." if many else ""
        prefix = job_prefix + "instance"
        if unknown := [name for name in job.agent.tools or () if name not in TOOL_NAMES]:
            message = f"unknown tools: {', '.join(unknown)}; there are {', '.join(TOOL_NAMES)}"
            found.append(FieldError(field=f"{job_prefix}agent.tools", message=message))
        if job.reward_url is not None and (message := refusal_of(job.reward_url, services().settings)):
            found.append(FieldError(field=f"{job_prefix}reward_url", message=message))
        try:
            handler = services().handlers.find(job.instance.data_source)
        except BadInstance as error:
            if elsewhere is None:
                elsewhere = _sources_of_nodes()
            if not _matches(job.instance.data_source, elsewhere):
                found.append(FieldError(field=f"{prefix}.data_source", message=str(error)))
            continue
        if problem := _finding(handler, job, prefix):
            found.append(problem)
    if found:
        raise bad_fields(found)


def refusal_of(reward_url: str, settings: Settings) -> str:
    """Why a reward server may not be asked; empty where it may.

    Whoever submits a job has a worker send a request, and sees something of the answer. Where the API has no tokens it
    serves its own machine alone; where it has, an admin says which servers these may be.
    """
    if settings.reward_urls:
        return "" if allowed(reward_url, settings.reward_urls) else "PRORL_REWARD_URLS does not allow this url"
    return "no reward server may be asked here: PRORL_REWARD_URLS names none" if settings.api_tokens else ""


def _finding(handler: Handler, job: JobRequest, prefix: str) -> FieldError | None:
    instance = job.instance
    try:
        handler.validate(instance.data())
        if job.reward_url is not None:
            handler.ground_truth(instance.data())
    except BadInstance as error:
        return FieldError(field=f"{prefix}.{error.field}" if error.field else prefix, message=str(error))
    except Exception as error:
        # Handlers are users' code: one that stumbles over an odd instance has refused it, if clumsily.
        log.exception("the handler of %r could not look at an instance", instance.data_source)
        what = f"{type(error).__name__}: {error}"[:500]
        return FieldError(field=prefix, message=f"the handler could not read the instance ({what})")
    return None


def _sources_of_nodes() -> set[str]:
    return {source for node in services().nodes.nodes() for source in node.get("handlers", ())}


def _matches(data_source: str, known: set[str]) -> bool:
    family = data_source.split("/", 1)[0] + "/*"
    return data_source in known or ("/" in data_source and family in known)
