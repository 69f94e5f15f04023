"""What each route promises, said once: the scope it needs, its parameters, its body, its answers.

`@operation(...)` on a view is read by `auth` (the scope), by `openapi` (all of it) and by nothing else. Bodies and
parameters are validated against the same models that the document shows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from prorl_celery.jobs.models import Id, Incoming, JobStatus, Result, State

Scope = Literal["submit", "read", "admin"]
View = TypeVar("View", bound=Callable[..., Any])

MAX_WAIT_SECONDS = 60.0
"""Longer waits are cut to this: proxies and clients give up on a silent connection about then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One route and method. `scope` None: open to all. `answers`: HTTP status -> what it means, the models it may have;
    `errors`: the statuses of problem documents; `media`: what it answers in."""

    summary: str
    scope: Scope | None
    query: type[BaseModel] | None = None
    body: tuple[type[BaseModel], ...] = ()
    answers: Mapping[int, tuple[str, *tuple[type[BaseModel], ...]]] = field(default_factory=dict)
    errors: tuple[int, ...] = ()
    media: str = "application/json"


def operation(**promise: Any) -> Callable[[View], View]:
    """Attach an `Operation` (see its fields) to a view."""

    def attach(view: View) -> View:
        view.operation = Operation(**promise)  # type: ignore[attr-defined]
        return view

    return attach


def operation_of(view: Callable[..., Any] | None) -> Operation | None:
    """The promise of a view, where it made one."""
    found = getattr(view, "operation", None)
    return found if isinstance(found, Operation) else None


class Query(Incoming):
    """Parameters of a query string: unknown ones are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class WaitQuery(Query):
    """How long to hold the answer back."""

    wait: float = Field(0.0, ge=0.0, description="seconds; more than 60 counts as 60")

    @property
    def seconds(self) -> float:
        """The wait, clamped."""
        return min(self.wait, MAX_WAIT_SECONDS)


class ResultQuery(WaitQuery):
    """What of a result to send."""

    tokens: bool = Field(True, description="false leaves the token arrays out")


class TagQuery(Query):
    """A filter by one tag."""

    tag: str | None = Field(
        None, max_length=513, pattern=r"^[^\x00-\x1f\x7f=]+=[^\x00-\x1f\x7f]+$", description="NAME=VALUE"
    )

    @property
    def wanted(self) -> tuple[str, str] | None:
        """The tag's name and value."""
        if self.tag is None:
            return None
        name, _, value = self.tag.partition("=")
        return name, value


class JobsQuery(TagQuery):
    """Which jobs to list."""

    state: State | None = None
    batch_id: Id | None = None
    limit: int = Field(100, ge=1, le=1000)
    cursor: str | None = Field(None, pattern=r"^[0-9]{1,15}(-[0-9]{1,9})?$", description="`next` of the page before")
    dead: bool = Field(False, description="the dead letters alone, the latest first")


class ResultsQuery(WaitQuery, TagQuery):
    """Which finished jobs' results to read."""

    after: str | None = Field(None, pattern=r"^[0-9]{1,18}-[0-9]{1,18}$", description="`next` of the page before")
    limit: int = Field(100, ge=1, le=1000)
    batch_id: Id | None = None


class JobStatuses(BaseModel):
    """The statuses of a list that was accepted, in its order."""

    jobs: list[JobStatus]


class JobPage(BaseModel):
    """A page of statuses, newest first; `next` is None at the end."""

    jobs: list[JobStatus]
    next: str | None


class ResultPage(BaseModel):
    """Results in order of finishing. `truncated`: some before this page are no longer kept."""

    results: list[Result]
    next: str | None
    truncated: bool
