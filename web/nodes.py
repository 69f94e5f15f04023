"""`/v1/nodes`: the machines that run workers; one that drains takes no new jobs."""

from __future__ import annotations

from collections.abc import Sequence

from flask import Blueprint, Response
from pydantic import BaseModel, ConfigDict, Field

from prorl_celery.jobs.models import Incoming
from web.contract import operation
from web.problems import Problem
from web.reading import read_model
from web.rendering import answer
from web.services import services

blueprint = Blueprint("nodes", __name__, url_prefix="/v1/nodes")


class RewardServerRecord(BaseModel):
    """A reward server, as one process sees it. `calls`: by what they came to; `seconds`: of the answered ones."""

    server: str
    calls: dict[str, int]
    seconds: float
    held_off: bool


class ProcessRecord(BaseModel):
    """A live stage process, as it told within the last 10 s."""

    model_config = ConfigDict(extra="allow")

    name: str
    stage: str = Field(description="init, rollout, eval; solo for one that runs a job of any stage by itself")
    connections: int = 0
    """To Redis, the broker's included."""
    reward_servers: list[RewardServerRecord] = Field(default_factory=list)


class NodeRecord(BaseModel):
    """A live node, as its upkeep and its stage processes told within the last 10 s. `handlers`: data sources."""

    model_config = ConfigDict(extra="allow")

    node: str
    boot: str
    slots: dict[str, int] = Field(default_factory=dict)
    busy: dict[str, int] = Field(default_factory=dict)
    processes: list[ProcessRecord] = Field(default_factory=list)
    handlers: list[str] = Field(default_factory=list)
    sandboxes: int = 0
    started_at: float = 0.0
    leaked: int = 0
    """Sandboxes that leaked since the node's directory was made."""
    stuck: int = 0
    """Of its sandboxes those that will not end."""
    draining: bool = False
    drained: bool = Field(False, description="it drains, and no job runs on it or waits for it")


class NodeList(BaseModel):
    """All live nodes."""

    nodes: list[NodeRecord]


class DrainRequest(Incoming):
    """Whether a node is to take no new jobs."""

    drain: bool = True


@blueprint.get("")
@operation(summary="The live nodes", scope="read", answers={200: ("the nodes", NodeList)}, errors=(503,))
def listed() -> Response:
    return answer(NodeList(nodes=live_nodes()))


@blueprint.post("/<node>/drain")
@operation(
    summary="Have a node take no new jobs and work off what it has, or take jobs again",
    scope="admin",
    body=(DrainRequest,),
    answers={200: ("the node's records; `drained` when nothing is left on it", NodeList)},
    errors=(400, 404, 413, 415, 422, 503),
)
def drain(node: str) -> Response:
    asked = read_model(DrainRequest)
    if not services().nodes.drain(node, asked.drain):
        raise Problem(404, "node-not-found", f"no node {node[:256]!r} is alive")
    return answer(NodeList(nodes=[record for record in live_nodes() if record.node == node]))


def live_nodes() -> list[NodeRecord]:
    """All of them, as of now. Raises `StoreUnavailable`."""
    return [NodeRecord.model_validate(record) for record in services().nodes.nodes()]


def latest(nodes: Sequence[NodeRecord]) -> list[NodeRecord]:
    """One record a node: of one that was just started again there may be two, and its leaks are one number."""
    return list({node.node: node for node in sorted(nodes, key=lambda node: node.started_at)}.values())
