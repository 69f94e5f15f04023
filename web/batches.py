"""`/v1/batches`: ask for so many groups that count, feed it prompts, watch it fill, take the groups."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from flask import Blueprint, Response
from pydantic import BaseModel, Field

from prorl_celery.errors import BatchNotFound, JobNotFound, NotFinished, ResultExpired
from prorl_celery.jobs.batch_models import (
    LIVE,
    BatchRequest,
    BatchState,
    BatchStatus,
    GroupView,
    MorePrompts,
    Prompt,
)
from prorl_celery.jobs.models import JobRequest, Result
from web.contract import WaitQuery, operation
from web.instances import check_instances
from web.jobs import BUSY
from web.problems import FieldError, Problem, bad_fields
from web.reading import read_model, read_query
from web.rendering import answer, as_json, result_pieces
from web.services import Services, services

blueprint = Blueprint("batches", __name__, url_prefix="/v1/batches")
Seen = TypeVar("Seen")

LISTED = 100
GROUPS = 100
"""Most groups of one page: each holds the results of all its samples."""
MAX_PAGE_BYTES = 32 << 20
"""A page ends with the group that passes this."""

_ID = re.compile(r"[A-Za-z0-9._:-]{1,100}")


class BatchList(BaseModel):
    """Batches, newest first."""

    batches: list[BatchStatus]


class GroupsQuery(WaitQuery):
    """Which groups to read: those behind the first `after`."""

    after: int = Field(0, ge=0, le=1_000_000, description="`next` of the page before")
    limit: int = Field(16, ge=1, le=GROUPS)
    tokens: bool = Field(True, description="false leaves the token arrays out")
    feed: bool = Field(False, description="with `wait`: answer also when the batch waits for prompts")


class GroupPage(BaseModel):
    """Groups in order of completion. `done`: there are no more, and none will come."""

    groups: list[GroupView]
    next: int
    state: BatchState
    done: bool


class Added(BaseModel):
    """What became of prompts that were sent."""

    added: int = Field(description="those that were not there already")
    batch: BatchStatus


@blueprint.post("")
@operation(
    summary="Ask for so many groups; those that do not count are replaced",
    scope="submit",
    body=(BatchRequest,),
    answers={
        201: ("accepted; it is being filled", BatchStatus),
        200: ("accepted before, with the same body", BatchStatus),
    },
    errors=(400, 404, 409, 413, 415, 422, 429, 503),
)
def create() -> Response:
    request = read_model(BatchRequest)
    _check(request, request.prompts)
    model = request.defaults.sampling_params.model
    serving = [b for b in services().backends.list() if model is None or b.model == model]
    versions = [b.policy_version for b in serving if b.policy_version is not None]
    made = services().batches.create(request, version=max(versions, default=None))
    return answer(services().batches.status(request.batch_id), 201 if made else 200)


@blueprint.get("")
@operation(
    summary=f"The last {LISTED} batches", scope="read", answers={200: ("newest first", BatchList)}, errors=(503,)
)
def listed() -> Response:
    found = []
    for batch_id in services().batches.ids(LISTED):
        try:
            found.append(services().batches.status(batch_id))
        except BatchNotFound:
            continue  # it has expired since
    return answer(BatchList(batches=found))


@blueprint.post("/<batch_id>/prompts")
@operation(
    summary="Add prompts",
    scope="submit",
    body=(MorePrompts,),
    answers={200: ("added, or there already", Added)},
    errors=(400, 404, 409, 413, 415, 422, 429, 503),
)
def add(batch_id: str) -> Response:
    more = read_model(MorePrompts)
    registry = services().batches
    _check(registry.request(_known(batch_id)), more.prompts)
    added = registry.add(batch_id, more)
    return answer(Added(added=added, batch=registry.status(batch_id)))


class WithdrawQuery(BaseModel):
    """Which prompt is not wanted any more."""

    prompt_id: str = Field(min_length=1, max_length=256)


@blueprint.delete("/<batch_id>/prompts")
@operation(
    summary="Withdraw a prompt: it does not start, or its group ends",
    scope="submit",
    query=WithdrawQuery,
    answers={200: ("withdrawn, or its group had ended", BatchStatus)},
    errors=(404, 422, 503),
)
def withdraw(batch_id: str) -> Response:
    prompt_id = read_query(WithdrawQuery).prompt_id
    try:
        services().batches.withdraw(_known(batch_id), prompt_id)
    except KeyError as error:
        raise Problem(404, "prompt-not-found", f"{batch_id} has no prompt {prompt_id}") from error
    return answer(services().batches.status(batch_id))


@blueprint.get("/<batch_id>")
@operation(
    summary="Where a batch stands; with `wait`, when it waits for prompts, has ended, or the wait is over",
    scope="read",
    query=WaitQuery,
    answers={200: ("the status; Retry-After where too many wait already", BatchStatus)},
    errors=(404, 422, 503),
)
def status(batch_id: str) -> Response:
    wait = read_query(WaitQuery).seconds
    registry = services().batches
    _known(batch_id)
    _, busy = _await(batch_id, lambda: registry.state(batch_id), lambda state: state != "filling", wait)
    return answer(registry.status(batch_id), headers=BUSY if busy else None)


@blueprint.get("/<batch_id>/groups")
@operation(
    summary="The groups that count, in order of completion, each with its results; with `wait`, when there is one",
    scope="read",
    query=GroupsQuery,
    answers={200: ("a page; give its `next` as `after` of the next call", GroupPage)},
    errors=(404, 422, 503),
)
def groups(batch_id: str) -> Response:
    query = read_query(GroupsQuery)
    registry = services().batches
    _known(batch_id)

    def look() -> tuple[BatchState, list[GroupView]]:
        # The state first: what is won after it was read does not make it the last page.
        state = registry.state(batch_id)
        return state, registry.groups(batch_id, query.after, query.limit)

    def done_waiting(seen: tuple[BatchState, list[GroupView]]) -> bool:
        state, found = seen
        return bool(found) or state not in LIVE or (query.feed and state == "waiting_for_prompts")

    (state, found), busy = _await(batch_id, look, done_waiting, query.seconds)
    whole = state not in LIVE and len(found) < query.limit
    pieces = _page(services(), found, query, state, whole=whole)
    return Response(pieces, mimetype="application/json", headers=BUSY if busy and not found else None)


@blueprint.delete("/<batch_id>")
@operation(
    summary="Cancel a batch: nothing of it starts any more, what runs is cancelled, what it keeps is given up",
    scope="submit",
    answers={202: ("the cancel was accepted", BatchStatus), 200: ("it had ended", BatchStatus)},
    errors=(404, 503),
)
def cancel(batch_id: str) -> Response:
    cancelled = services().batches.cancel(_known(batch_id))
    return answer(services().batches.status(batch_id), 202 if cancelled else 200)


def _known(batch_id: str) -> str:
    if _ID.fullmatch(batch_id) is None:
        raise BatchNotFound("no batch has such an id", batch_id=batch_id)
    return batch_id


def _check(request: BatchRequest, prompts: Sequence[Prompt]) -> None:
    """Refuse prompts that nobody can run. Raises `Problem` 422 that names each by its place in the list."""
    defaults = request.defaults.model_dump(mode="json")
    jobs = [
        JobRequest.model_validate({**defaults, "job_id": "sample", "instance": prompt.instance.data()})
        for prompt in prompts
    ]
    try:
        check_instances(jobs, many=True)
    except Problem as problem:
        raise bad_fields(
            [FieldError(field=_renamed(error.field), message=error.message) for error in problem.fields]
        ) from problem


def _renamed(field: str) -> str:
    """A job's field as it is called in a batch."""
    path = field.split(".")
    return ".".join(["defaults", *path[2:]] if path[2:3] in (["agent"], ["reward_url"]) else ["prompts", *path[1:]])


def _page(
    used: Services, found: Sequence[GroupView], query: GroupsQuery, state: BatchState, *, whole: bool
) -> Iterator[bytes]:
    """A `GroupPage` as JSON, in pieces: the results of one sample are in memory at a time. It is cut behind the group
    with which it passes `MAX_PAGE_BYTES`; `whole`: no group comes behind `found`.
    """
    size = given = 0
    yield b'{"groups":['
    for group in found:
        yield (b"," if given else b"") + as_json(group.model_dump(exclude={"results"}))[:-1] + b',"results":['
        between = b""
        for result in _results(used, group, tokens=query.tokens):
            yield between
            for piece in result_pieces(result):
                size += len(piece)
                yield piece
            between = b","
        yield b"]}"
        given += 1
        if size > MAX_PAGE_BYTES:
            break
    tail = {"next": query.after + given, "state": state, "done": whole and given == len(found)}
    yield b"]," + as_json(tail)[1:] + b"\n"


def _results(used: Services, group: GroupView, *, tokens: bool) -> Iterator[Result]:
    for job_id in used.batches.jobs_of(group):
        try:
            yield used.store.result(job_id, tokens=tokens)
        except (JobNotFound, NotFinished, ResultExpired):
            continue  # it has expired, or is another job's by now


def _await(batch_id: str, look: Callable[[], Seen], done: Callable[[Seen], bool], wait: float) -> tuple[Seen, bool]:
    """Look until it is done or the wait is over, again at each news of the batch. Gives what was seen, and whether it
    was not waited for want of room.
    """
    seen = look()
    if wait <= 0 or done(seen):
        return seen, False
    deadline = time.monotonic() + wait
    waiters, following = services().waiters, services().following
    watch = waiters.watch(f"batch {batch_id}", within=wait)
    if watch is None:
        return seen, True
    with watch:
        try:
            following.follow(watch, deadline - time.monotonic())
            while True:
                seen = look()
                if done(seen) or waiters.closed or not watch.wait(deadline - time.monotonic()):
                    return seen, False
        finally:
            following.leave(watch)
