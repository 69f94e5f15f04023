"""`/v1/backends`: which inference servers the service may call."""

from __future__ import annotations

import logging
from typing import Literal

from flask import Blueprint, Response
from pydantic import BaseModel, Field

from prorl_celery.scheduling.backends import BackendSpec, BackendStatus
from web.caches import reset_caches
from web.contract import Query, operation
from web.policy import KNOWN_SECONDS
from web.probe import normal_url, probe
from web.problems import Problem
from web.reading import read_model, read_query
from web.rendering import answer
from web.services import services

log = logging.getLogger(__name__)

blueprint = Blueprint("backends", __name__, url_prefix="/v1/backends")


class BackendView(BackendStatus):
    """A backend as callers see it: its key is write-only."""

    api_key: str | None = Field(None, exclude=True, repr=False)


class BackendList(BaseModel):
    """All backends."""

    backends: list[BackendView]


class RemoveQuery(Query):
    """Which backend to take out, and how."""

    url: str = Field(min_length=1, max_length=2048)
    mode: Literal["drain", "now"] = Field(
        "drain", description="drain: live jobs finish; now: they move at their next turn"
    )


class Removed(BaseModel):
    """What was asked of a backend."""

    url: str
    mode: Literal["drain", "now"]


@blueprint.post("")
@operation(
    summary="Register a backend, or update the one of that url",
    scope="admin",
    body=(BackendSpec,),
    answers={201: ("registered; `down` when it did not answer", BackendView), 200: ("updated", BackendView)},
    errors=(400, 413, 415, 422, 503),
)
def register() -> Response:
    backend = probe(read_model(BackendSpec))
    registry = services().backends
    known = registry.get(backend.url)
    registry.put(backend)
    if known is None or backend.policy_version != known.policy_version:
        # Calls that are made once this is answered are made with these weights and must say so, also where the url was
        # known with others before it was taken out.
        for url in reset_caches([backend]):
            log.warning("%s has other weights now, and did not say that its prefix cache is empty", url)
        services().heeding.known(services().policy.renew(backend.url), KNOWN_SECONDS)
    stored = next((other for other in _all() if other.url == backend.url), None)
    if stored is None:
        raise Problem(503, "backend-removed", "somebody removed the backend at the same moment", retry_after=1)
    return answer(stored, 201 if known is None else 200)


@blueprint.get("")
@operation(
    summary="All backends, with the live jobs assigned to each",
    scope="read",
    answers={200: ("the backends", BackendList)},
    errors=(503,),
)
def listed() -> Response:
    return answer(BackendList(backends=_all()))


@blueprint.delete("")
@operation(
    summary="Take a backend out",
    scope="admin",
    query=RemoveQuery,
    answers={200: ("taken out, or draining", Removed)},
    errors=(404, 422, 503),
)
def remove() -> Response:
    query = read_query(RemoveQuery)
    url = normal_url(query.url)
    if not services().backends.remove(url, query.mode):
        raise Problem(404, "backend-not-found", f"no backend {url}")
    return answer(Removed(url=url, mode=query.mode))


def _all() -> list[BackendView]:
    return [BackendView.model_validate(backend.model_dump()) for backend in services().backends.list()]
