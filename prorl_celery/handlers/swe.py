"""`swe`."""

from __future__ import annotations

from prorl_celery.handlers.base import Handler


class SweHandler(Handler):
    """Being written."""

    data_source = "swe"
    aliases = ("swebench", "swegym", "r2e")
