"""`/metrics`: what the status knows, as Prometheus reads it (its text format, 0.0.4)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from flask import Blueprint, Response

from prorl_celery.store.connections import open_connections
from web.contract import operation
from web.nodes import NodeRecord, latest
from web.operations import ServiceStatus, overview
from web.services import services

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
LIVE = ("queued", "running")
ENDED = ("completed", "failed", "cancelled", "timed_out")

blueprint = Blueprint("metrics", __name__)


@dataclass(frozen=True, slots=True)
class Metric:
    """One name: what it counts, and its samples by their labels."""

    name: str
    kind: Literal["counter", "gauge"]
    help: str
    samples: list[tuple[Mapping[str, str], int | float]] = field(default_factory=list)

    def lines(self) -> Iterator[str]:
        """As they are written."""
        yield f"# HELP {self.name} {self.help}"
        yield f"# TYPE {self.name} {self.kind}"
        for labels, value in self.samples:
            told = ",".join(f'{name}="{_escaped(text)}"' for name, text in labels.items())
            yield f"{self.name}{{{told}}} {value}"


@blueprint.get("/metrics")
@operation(
    summary="Metrics, for Prometheus",
    scope="read",
    media="text/plain",
    answers={200: ("Prometheus's text format",)},
    errors=(503,),
)
def metrics() -> Response:
    lines = (line for metric in metrics_of(overview()) for line in metric.lines())
    return Response("".join(f"{line}\n" for line in lines), content_type=MEDIA_TYPE)


def metrics_of(status: ServiceStatus) -> list[Metric]:
    """All metrics of the service."""
    nodes = latest(status.nodes)  # no sample twice
    return [
        Metric(
            "prorl_leaked_sandboxes",
            "counter",
            "Sandboxes that outlived their job by over 30 s, would not end, or were found without their keeper.",
            [({"node": node.node}, node.leaked) for node in nodes],
        ),
        Metric(
            "prorl_stuck_sandboxes",
            "gauge",
            "Sandboxes that were told to end and have not; they are tried on.",
            [({"node": node.node}, node.stuck) for node in nodes],
        ),
        Metric(
            "prorl_sandboxes", "gauge", "Live sandboxes.", [({"node": node.node}, node.sandboxes) for node in nodes]
        ),
        Metric(
            "prorl_slots",
            "gauge",
            "Slots for jobs.",
            [({"node": node.node, "stage": stage}, count) for node in nodes for stage, count in node.slots.items()],
        ),
        Metric(
            "prorl_slots_busy",
            "gauge",
            "Slots at work.",
            [({"node": node.node, "stage": stage}, node.busy.get(stage, 0)) for node in nodes for stage in node.slots],
        ),
        Metric(
            "prorl_redis_connections",
            "gauge",
            "Open connections to Redis of a stage process, or of the API process that answers.",
            [
                *(
                    ({"node": node.node, "process": name}, count)
                    for node in nodes
                    for name, count in _connections(node).items()
                ),
                ({"node": services().settings.node, "process": "api"}, open_connections()),
            ],
        ),
        *_reward_servers(nodes),
        Metric(
            "prorl_queued_jobs",
            "gauge",
            "Jobs whose message waits in a queue of the stage.",
            [({"stage": stage}, use.queued) for stage, use in status.stages.items()],
        ),
        Metric(
            "prorl_jobs",
            "gauge",
            "Jobs that are kept, by state.",
            [({"state": state}, status.jobs.get(state, 0)) for state in (*LIVE, *ENDED)],
        ),
        Metric("prorl_stalled_jobs", "gauge", "Running jobs that do not move.", [({}, status.stalled)]),
        Metric(
            "prorl_dead_jobs", "gauge", "Dead letters: jobs that failed after their last attempt.", [({}, status.dead)]
        ),
        *_counters(status.counts),
        Metric(
            "prorl_batches",
            "gauge",
            "Batches that are not over, by state.",
            [({"state": state}, count) for state, count in status.batches.items()],
        ),
        Metric(
            "prorl_backends",
            "gauge",
            "Inference backends, by state.",
            [({"state": state}, count) for state, count in status.backends],
        ),
    ]


COUNTERS = {
    "retries": ("prorl_retries", "Attempts, or evals, that failed and were followed by another.", ("kind", "stage")),
    "lost": ("prorl_lost_claims", "Claims whose process was lost.", ("stage",)),
    "failed": ("prorl_failed_jobs", "Jobs that failed or timed out, by the kind of their error.", ("kind",)),
    "went_on": ("prorl_rollouts_gone_on", "Rollouts that another process went on with.", ()),
    "batches": ("prorl_batches_ended", "Batches that ended, by how.", ("state",)),
    "groups": ("prorl_groups_closed", "Groups that closed: those that were won count.", ("state",)),
    "waste_ms": ("prorl_wasted_seconds", "Work of samples that were thrown away.", ("why",)),
    "waste_tokens": ("prorl_wasted_tokens", "Sampled tokens that were thrown away.", ("why",)),
    "started_over": ("prorl_attempts_started_over", "Attempts that went back to init from a later stage.", ()),
}
"""First part of a count's name in the store -> the counter's name, what it counts, the labels of the other parts."""


def _counters(counts: Mapping[str, int]) -> list[Metric]:
    found = {first: Metric(name, "counter", what) for first, (name, what, _) in COUNTERS.items()}
    for name, count in sorted(counts.items()):
        first, *parts = name.split(":")
        if first in COUNTERS:
            value = count / 1000 if first == "waste_ms" else count
            found[first].samples.append((dict(zip(COUNTERS[first][2], parts, strict=False)), value))
    for first, metric in found.items():
        if not COUNTERS[first][2] and not metric.samples:
            metric.samples.append(({}, 0))
    return list(found.values())


def _reward_servers(nodes: Sequence[NodeRecord]) -> list[Metric]:
    """As the processes tell; of those with one name, an older one and its successor, together."""
    calls: Counter[tuple[str, str, str, str]] = Counter()
    seconds: Counter[tuple[str, str, str]] = Counter()
    held: Counter[tuple[str, str, str]] = Counter()
    for node in nodes:
        for process in node.processes:
            for seen in process.reward_servers:
                place = (node.node, process.name, seen.server)
                calls.update({(*place, outcome): count for outcome, count in seen.calls.items()})
                seconds.update({place: seen.seconds})
                held.update({place: int(seen.held_off)})
    labels = ("node", "process", "server", "outcome")
    return [
        Metric(
            "prorl_reward_calls",
            "counter",
            "Calls of reward servers, by what they came to: scored, failed, busy, refused.",
            [(dict(zip(labels, key, strict=True)), count) for key, count in calls.items()],
        ),
        Metric(
            "prorl_reward_call_seconds",
            "counter",
            "What the answered ones of these calls took together.",
            [(dict(zip(labels, key, strict=False)), count) for key, count in seconds.items()],
        ),
        Metric(
            "prorl_reward_servers_held_off",
            "gauge",
            "Whether a process holds a reward server off because call after call of it failed.",
            [(dict(zip(labels, key, strict=False)), count) for key, count in held.items()],
        ),
    ]


def _connections(node: NodeRecord) -> Counter[str]:
    """By a process's name: one that was retired works on beside its successor."""
    found: Counter[str] = Counter()
    for process in node.processes:
        found[process.name] += process.connections
    return found


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
