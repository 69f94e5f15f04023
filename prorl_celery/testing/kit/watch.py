"""Looks over a handler's shoulder: what each of its stages returned and raised, and what is to happen in them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from prorl_celery.handlers.base import Handler
from prorl_celery.jobs.models import Stage

Happening = Callable[[Any], None]
"""Is given a stage's context when the handler is called for it."""


@dataclass(slots=True)
class Visit:
    """One call of a stage's method."""

    stage: Stage
    value: Any = None
    error: BaseException | None = None
    seconds: float = 0.0


class Watch:
    """The visits of one job, in order."""

    def __init__(self) -> None:
        self.visits: list[Visit] = []
        self.happenings: dict[Stage, Happening] = {}

    def reset(self) -> None:
        self.visits, self.happenings = [], {}

    def values(self, stage: Stage) -> list[Any]:
        """What the calls of a stage returned that did return."""
        return [visit.value for visit in self.visits if visit.stage == stage and visit.error is None]

    def visit(self, stage: Stage, method: Callable[[Any], Any], ctx: Any) -> Any:
        visit = Visit(stage)
        self.visits.append(visit)
        happening = self.happenings.pop(stage, None)
        if happening is not None:
            happening(ctx)
        began = time.monotonic()
        try:
            visit.value = method(ctx)
            return visit.value
        except BaseException as error:
            visit.error = error
            raise
        finally:
            visit.seconds = time.monotonic() - began


def watched(handler: type[Handler], watch: Watch) -> type[Handler]:
    """The handler, with its stages told to `watch`."""

    class Watched(handler):  # type: ignore[misc, valid-type]
        def init(self, ctx: Any) -> Any:
            return watch.visit("init", super().init, ctx)

        def rollout(self, ctx: Any) -> Any:
            return watch.visit("rollout", super().rollout, ctx)

        def eval(self, ctx: Any) -> Any:
            return watch.visit("eval", super().eval, ctx)

    Watched.__name__, Watched.__qualname__ = handler.__name__, handler.__qualname__
    Watched.__module__ = handler.__module__
    return Watched
