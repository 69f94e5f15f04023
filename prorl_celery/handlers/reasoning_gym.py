"""`reasoning_gym/*`."""

from __future__ import annotations

from prorl_celery.handlers.base import Handler


class ReasoningGymHandler(Handler):
    """Being written."""

    data_source = "reasoning_gym/*"
