"""What a conversation is opened for: whose, about what, under which limits. Where it is held is the endpoint's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prorl_celery.jobs.models import SamplingParams
from prorl_celery.llm.gate import OPEN, Gate
from prorl_celery.llm.loop import ModelLoop
from prorl_celery.llm.template import Message
from prorl_celery.sandbox.base import CancelSignal


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationRequest:
    """A conversation that is asked for. `messages` are the first ones, in OpenAI's form."""

    job_id: str
    messages: Sequence[Message]
    sampling: SamplingParams
    model_loop: ModelLoop
    cancel: CancelSignal
    deadline: Callable[[], float]
    """How many seconds the stage has left."""
    tools: Sequence[Mapping[str, Any]] = ()
    """OpenAI function schemas."""
    max_context_tokens: int | None = None
    """Prompt and reply together; None for the backend's own limit."""
    gate: Gate = OPEN
