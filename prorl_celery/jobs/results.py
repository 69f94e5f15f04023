"""A job's result, assembled from its turn log when it is read; nothing of it is stored twice.

A segment is one training row. Sampled tokens have mask 1, their own log-probability and their weights' version. What
came between them (tool results, the template's tokens) has mask 0, log-probability 0.0 and version -1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from prorl_celery.jobs.models import Segment, TurnSummary
from prorl_celery.jobs.turns import Turn

BETWEEN_VERSION = -1
"""The policy version of tokens that no policy sampled."""

TOKEN_BYTES = 30
"""About what one token of a result weighs in JSON: id, mask, log-probability, version."""


def segments(turns: Iterable[Turn]) -> list[Segment]:
    """The training rows of a turn log, ids and log-probabilities exactly as they were logged."""
    rows: list[Segment] = []
    for turn in turns:
        if not turn.sampled_ids and not turn.delta_ids:
            continue
        if turn.new_segment or not rows:
            rows.append(
                Segment.model_construct(
                    prompt_ids=turn.delta_ids.tolist(),
                    response_ids=[],
                    loss_mask=[],
                    logprobs=[],
                    policy_versions=[],
                    split_reason=turn.split_reason,
                )
            )
            row = rows[-1]
        else:
            row = rows[-1]
            between = len(turn.delta_ids)
            row.response_ids.extend(turn.delta_ids)
            row.loss_mask.extend([0] * between)
            row.logprobs.extend([0.0] * between)
            row.policy_versions.extend([BETWEEN_VERSION] * between)
        row.response_ids.extend(turn.sampled_ids)
        row.loss_mask.extend([1] * len(turn.sampled_ids))
        row.logprobs.extend(turn.logprobs)
        row.policy_versions.extend(turn.versions)
    return rows


def messages(turns: Iterable[Turn]) -> list[dict[str, Any]]:
    """The conversation, OpenAI chat form."""
    return [message for turn in turns for message in turn.messages]


def summaries(turns: Iterable[Turn]) -> list[TurnSummary]:
    """One line per turn."""
    return [
        TurnSummary.model_construct(
            llm_s=turn.llm_s,
            tool_s=turn.tool_s,
            total_s=turn.total_s,
            prompt_tokens=turn.prompt_tokens,
            completion_tokens=turn.completion_tokens,
            backend=turn.backend,
            policy_version=turn.policy_version,
            finish_reason=turn.finish_reason,
            cached_tokens=turn.cached_tokens,
            malformed_calls=turn.malformed_calls,
        )
        for turn in turns
    ]


def weight_bytes(turns: Sequence[Turn], summary: bytes) -> int:
    """About how many bytes a result of these turns takes as JSON."""
    tokens = sum(len(turn.delta_ids) + len(turn.sampled_ids) for turn in turns)
    texts = sum(
        len(value)
        for turn in turns
        for message in turn.messages
        for value in message.values()
        if isinstance(value, str)
    )
    return TOKEN_BYTES * tokens + texts + len(summary) + 512
