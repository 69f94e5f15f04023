"""What scripts are told and what they answer, as the store's operations need it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from prorl_celery.errors import FenceLost
from prorl_celery.jobs.claims import Claim
from prorl_celery.jobs.messages import Message


def milliseconds(seconds: float) -> int:
    """Seconds as scripts want them."""
    return max(0, round(seconds * 1000))


def message_of(parts: Any) -> Message:
    """The message that a script's reply describes."""
    stage, queue, job_id, fence, priority = parts
    return Message(stage.decode(), queue.decode(), job_id.decode(), fence, priority)


def publisher_of(publish: Callable[[Sequence[Message]], None] | None) -> Callable[[list[Any]], None] | None:
    """`Scripts`' way to tell of jobs that a script has made, as messages."""
    if publish is None:
        return None
    return lambda replies: publish([message_of(parts) for parts in replies])


def fenced(claim: Claim, step: str) -> FenceLost:
    """The error of a claim that is gone."""
    return FenceLost(
        f"claim {claim.fence} of {claim.job_id} may not {step}: it has ended or lapsed", job_id=claim.job_id
    )


def message_or_fenced(reply: Any, claim: Claim, step: str) -> Message:
    """The message of a step that ends a claim. Raises `FenceLost`."""
    if reply == b"fenced":
        raise fenced(claim, step)
    if reply == b"cancelled":
        raise FenceLost(f"{claim.job_id} was cancelled before it could {step}", job_id=claim.job_id)
    return message_of(reply)
