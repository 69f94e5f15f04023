"""`/v1/policy`: a trainer pauses model calls, loads its weights, and resumes with their version."""

from __future__ import annotations

from typing import Literal

from flask import Blueprint, Response
from pydantic import BaseModel, Field

from prorl_celery.jobs.models import Incoming, Name
from prorl_celery.scheduling.backends import BackendStatus
from prorl_celery.scheduling.policy import Pause
from web.caches import reset_caches
from web.contract import operation
from web.reading import read_model
from web.rendering import answer
from web.services import services

blueprint = Blueprint("policy", __name__, url_prefix="/v1/policy")

KNOWN_SECONDS = 2.0
"""How long a change is held back from its caller until every process knows of it."""
VERSIONS = 2**31


class PauseRequest(Incoming):
    """What to hold, and for how long."""

    mode: Literal["finish", "abort"] = Field(
        "finish", description="finish: calls in flight end by themselves; abort: they are given up and made again later"
    )
    model: Name | None = Field(None, description="default: all models")
    timeout: float = Field(60.0, ge=0.0, le=600.0, description="seconds to wait for calls in flight")
    ttl: float = Field(600.0, gt=0.0, le=86_400.0, description="seconds after which it is over by itself")


class PauseAnswer(BaseModel):
    """How far a pause came. `complete`: no process has a call in flight, and none will begin one while it stands."""

    complete: bool
    paused: bool = Field(description="false when it was ended, or has lapsed, meanwhile")
    mode: Literal["finish", "abort"]
    model: str | None
    epoch: int
    processes: int = Field(description="live processes that make model calls")
    acknowledged: int
    in_flight: int
    held: int = Field(description="jobs that wait before their next call")
    backends: int = Field(description="registered backends of the model")


class ResumeRequest(Incoming):
    """Which weights the backends have from now on."""

    version: int | None = Field(None, ge=0, lt=VERSIONS, description="default: the one that they had")
    model: Name | None = Field(None, description="default: the models that are paused; all where none or all are")


class ResumeAnswer(BaseModel):
    """What a resume came to. `complete`: every live process knows of it."""

    complete: bool
    version: int | None
    model: str | None
    epoch: int
    pauses_ended: int
    backends: int = Field(description="backends that have this version now")
    stale_caches: list[str] = Field(
        default_factory=list,
        description="backends that take no cache salt and did not forget their prefixes at POST /reset_prefix_cache",
    )


class PauseView(BaseModel):
    """A pause that stands."""

    mode: Literal["finish", "abort"]
    model: str | None
    epoch: int
    seconds_left: float
    released: list[str] = Field(description="models that were resumed one by one from a pause of all")


@blueprint.post("/pause")
@operation(
    summary="Hold jobs before their next model call, and wait until no call is in flight",
    scope="admin",
    body=(PauseRequest,),
    answers={200: ("paused; `complete` says whether calls are still in flight", PauseAnswer)},
    errors=(400, 413, 415, 422, 503),
)
def pause() -> Response:
    asked = read_model(PauseRequest)
    used = services()
    epoch = used.policy.pause(asked.model, asked.mode, asked.ttl)
    heed, stands = used.heeding.paused(epoch, asked.model, asked.timeout)
    return answer(
        PauseAnswer(
            complete=heed.complete and stands,
            paused=stands,
            mode=asked.mode,
            model=asked.model,
            epoch=epoch,
            processes=heed.processes,
            acknowledged=heed.acknowledged,
            in_flight=heed.in_flight,
            held=heed.held,
            backends=sum(asked.model in (None, backend.model) for backend in used.backends.list()),
        )
    )


@blueprint.post("/resume")
@operation(
    summary="Let held jobs go on; later tokens carry the version",
    scope="admin",
    body=(ResumeRequest,),
    answers={200: ("resumed", ResumeAnswer)},
    errors=(400, 413, 415, 422, 503),
)
def resume() -> Response:
    asked = read_model(ResumeRequest)
    used = services()
    # Before any job is let go: what is cached from then on was cached under the new weights.
    stale = [] if asked.version is None else reset_caches(_told(asked.model))
    resumed = used.policy.resume(asked.model, asked.version)
    heed = used.heeding.known(resumed.epoch, KNOWN_SECONDS)
    return answer(
        ResumeAnswer(
            complete=heed.acknowledged == heed.processes,
            version=asked.version,
            model=asked.model,
            epoch=resumed.epoch,
            pauses_ended=resumed.pauses_ended,
            backends=resumed.backends_told,
            stale_caches=stale,
        )
    )


def _told(model: str | None) -> list[BackendStatus]:
    """The backends that a version is told for: without a model those of the paused models, or all."""
    used = services()
    models = {model} if model is not None else {pause.model for pause in used.policy.look().pauses} or {None}
    return [backend for backend in used.backends.list() if None in models or backend.model in models]


def pause_view(pause: Pause) -> PauseView:
    """A pause as callers see it."""
    return PauseView(
        mode=pause.mode,
        model=pause.model,
        epoch=pause.epoch,
        seconds_left=pause.seconds_left,
        released=sorted(pause.released),
    )
