"""What operators look at: status, health, readiness, the schema."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal

from flask import Blueprint, Response, current_app
from pydantic import BaseModel, Field

import prorl_celery
from prorl_celery.errors import StoreUnavailable
from prorl_celery.jobs.messages import node_queue
from prorl_celery.jobs.models import STAGES, JobStatus, Stage
from web import openapi
from web.contract import operation
from web.nodes import NodeRecord, latest, live_nodes
from web.policy import PauseView, pause_view
from web.problems import Problem
from web.rendering import answer
from web.services import services

blueprint = Blueprint("operations", __name__)

STALLED_SHOWN = 20


class StageUse(BaseModel):
    """One stage over all nodes: `queued` waits in its queues, `busy` of `slots` are at work."""

    queued: int = 0
    slots: int = 0
    busy: int = 0


class BackendCounts(BaseModel):
    """How many backends there are, by state."""

    up: int = 0
    draining: int = 0
    down: int = 0


class ServiceStatus(BaseModel):
    """The service at a glance. `missing` names what jobs wait for, in words."""

    version: str
    stages: dict[Stage, StageUse]
    jobs: dict[str, int]
    queues: dict[str, int]
    nodes: list[NodeRecord]
    backends: BackendCounts
    pauses: list[PauseView]
    sandboxes: int
    leaked_sandboxes: int
    dead: int = Field(description="dead letters: see GET /v1/jobs?dead=true")
    stalled: int = Field(description="running jobs that do not move")
    stalled_jobs: list[JobStatus] = Field(description="the first of them, the longest first")
    counts: dict[str, int] = Field(
        description="since the store is there: retries:KIND:STAGE, lost:STAGE, went_on, started_over, failed:KIND;"
        " batches:STATE that ended so, groups:STATE that closed so, waste_ms:WHY, waste_tokens:WHY"
    )
    batches: dict[str, int] = Field(description="batches that are not over, by state")
    long_polls: int
    missing: list[str]


class Alive(BaseModel):
    """The process answers."""

    status: Literal["ok"] = "ok"


class Ready(BaseModel):
    """Jobs that are submitted now will run."""

    ready: bool
    missing: list[str]


class Front(BaseModel):
    """Where to go from here."""

    service: str
    version: str
    openapi: str
    jobs: str
    status: str


@blueprint.get("/v1/status")
@operation(
    summary="Queues, slots, jobs, nodes, backends, pauses and leaks",
    scope="read",
    answers={200: ("the status", ServiceStatus)},
    errors=(503,),
)
def status() -> Response:
    return answer(overview())


@blueprint.get("/healthz")
@operation(summary="Whether this process answers; asks nobody else", scope=None, answers={200: ("it does", Alive)})
def healthz() -> Response:
    return answer(Alive())


@blueprint.get("/readyz")
@operation(
    summary="Whether jobs will run: Redis, a worker of each stage, a backend",
    scope=None,
    answers={200: ("ready", Ready)},
    errors=(503,),
)
def readyz() -> Response:
    try:
        up = sum(backend.state == "up" for backend in services().backends.list())
        missing = _missing(live_nodes(), up)
    except StoreUnavailable:
        missing = ["Redis does not answer"]
    if missing:
        raise Problem(503, "not-ready", "; ".join(missing), retry_after=2, extra={"ready": False, "missing": missing})
    return answer(Ready(ready=True, missing=[]))


@blueprint.get("/openapi.json")
@operation(summary="This document", scope="read", answers={200: ("OpenAPI 3.1",)})
def schema() -> Response:
    return answer(openapi.document(current_app))


@blueprint.get("/")
@operation(summary="Where to go from here", scope="read", answers={200: ("links", Front)})
def front() -> Response:
    return answer(
        Front(
            service="ProRL on Celery",
            version=prorl_celery.__version__,
            openapi="/openapi.json",
            jobs="/v1/jobs",
            status="/v1/status",
        )
    )


def overview() -> ServiceStatus:
    """The service at a glance, as of now. Raises `StoreUnavailable`."""
    nodes = live_nodes()
    backends = Counter(backend.state for backend in services().backends.list())
    depths = services().store.queue_depths(_queues(nodes))
    stages = {
        stage: StageUse(
            queued=sum(depth for queue, depth in depths.items() if queue.split(".", 1)[0] == stage),
            slots=sum(node.slots.get(stage, 0) for node in nodes),
            busy=sum(node.busy.get(stage, 0) for node in nodes),
        )
        for stage in STAGES
    }
    counts = services().store.counters()
    return ServiceStatus(
        version=prorl_celery.__version__,
        stages=stages,
        jobs={str(name): count for name, count in services().store.counts().items()},
        queues=depths,
        nodes=nodes,
        backends=BackendCounts(up=backends["up"], draining=backends["draining"], down=backends["down"]),
        pauses=[pause_view(pause) for pause in services().policy.look().pauses],
        sandboxes=sum(node.sandboxes for node in nodes),
        leaked_sandboxes=sum(node.leaked for node in latest(nodes)),
        dead=counts.pop("dead"),
        stalled=counts.pop("stalled"),
        stalled_jobs=services().store.statuses(services().store.stalled(STALLED_SHOWN)),
        counts=counts,
        batches=services().batches.live(),
        long_polls=len(services().waiters),
        missing=_missing(nodes, backends["up"]),
    )


def _queues(nodes: Sequence[NodeRecord]) -> list[str]:
    """The shared queues and those of live nodes; solo: of jobs that run in a process of their own."""
    bound: tuple[Stage | Literal["solo"], ...] = ("rollout", "eval", "solo")
    return [*STAGES, "solo", *(node_queue(stage, node.node, node.boot) for node in nodes for stage in bound)]


def _missing(nodes: Sequence[NodeRecord], backends_up: int) -> list[str]:
    """What jobs would wait for."""
    served = {process.stage for node in nodes for process in node.processes}
    lacking = [f"no worker of stage {stage}" for stage in STAGES if stage not in served]
    return lacking if backends_up else [*lacking, "no backend is up (register one with POST /v1/backends)"]
