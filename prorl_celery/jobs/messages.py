"""What travels through the broker: a job's id and the fence under which it was published. Nothing else.

A message can be claimed once: the claim raises the job's fence, so that a second delivery names a fence of the past.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from prorl_celery.jobs.models import Stage

Role = Stage | Literal["solo"]
"""What a queue, or a process, is for: the jobs of a stage; or, in any stage, those that have lost their process so
often that they run alone in one.
"""


@dataclass(frozen=True, slots=True)
class Message:
    """One message to publish: task `prorl.<stage>` with the arguments `[job_id, fence]` on `queue`.

    `priority` is the job's, 0 to 9, 9 first; `level` is what Redis's broker makes of it.
    """

    stage: Stage
    queue: str
    job_id: str
    fence: int
    priority: int

    @property
    def level(self) -> int:
        """The priority as Celery on Redis counts it: 0 (first), 3, 6 or 9 (last)."""
        return level_of(self.priority)


class NodeQueue(NamedTuple):
    """The parts of a node's own queue, `<stage>.<node>.<boot>`."""

    stage: str
    node: str
    boot: str


def level_of(priority: int) -> int:
    """A job's priority (9 first) as the broker's level: 0 first, in steps of 3."""
    return (9 - priority) // 3 * 3


def node_queue(stage: Role, node: str, boot: str) -> str:
    """The queue that only the workers of this node and this start of its keeper read."""
    return f"{stage}.{node}.{boot}"


def parse_queue(queue: str) -> NodeQueue | None:
    """The parts of a node's queue; None for a queue that all nodes share. A node's name may hold dots, a boot none."""
    stage, dot, rest = queue.partition(".")
    node, second_dot, boot = rest.rpartition(".")
    return NodeQueue(stage, node, boot) if dot and second_dot else None


def broker_list(queue: str, level: int) -> str:
    """The Redis list in which kombu keeps the waiting messages of a queue at a level."""
    return queue if level == 0 else f"{queue}\x06\x16{level}"
