"""`stem`."""

from __future__ import annotations

from prorl_celery.handlers.base import Handler


class StemHandler(Handler):
    """Being written."""

    data_source = "stem"
