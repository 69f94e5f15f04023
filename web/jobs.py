"""`/v1/jobs`: submit, look, wait, cancel, retry, and take one job's result."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from typing import TypeVar

from flask import Blueprint, Response

from prorl_celery.errors import JobNotFound, NotFinished, StoreUnavailable
from prorl_celery.jobs.messages import Message
from prorl_celery.jobs.models import TERMINAL, JobList, JobRequest, JobStatus, Result
from web.contract import JobPage, JobsQuery, JobStatuses, ResultQuery, WaitQuery, operation
from web.instances import check_instances
from web.problems import Problem, bad_field
from web.reading import parse_model, read_json, read_query
from web.rendering import answer, result_answer
from web.services import services

log = logging.getLogger("prorl.web")
blueprint = Blueprint("jobs", __name__, url_prefix="/v1/jobs")
Seen = TypeVar("Seen")

BUSY = {"Retry-After": "1"}
"""Said instead of waiting when `PRORL_MAX_WAITERS` others wait already."""

_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


@blueprint.post("")
@operation(
    summary="Submit one job, or a list that is accepted or refused as a whole",
    scope="submit",
    body=(JobRequest, JobList),
    answers={
        201: ("accepted", JobStatus, JobStatuses),
        200: ("accepted before, with the same body", JobStatus, JobStatuses),
    },
    errors=(400, 409, 413, 415, 422, 429, 503),
)
def submit() -> Response:
    body, value = read_json()
    many = isinstance(value, dict) and "jobs" in value
    jobs = parse_model(JobList, body).jobs if many else (parse_model(JobRequest, body),)
    check_instances(jobs, many=many)
    created = services().store.create(jobs)
    messages = [one.message for one in created if one.message is not None]
    if messages:
        publish(messages)
    statuses = services().store.statuses([one.job_id for one in created])
    status = 201 if any(one.fresh for one in created) else 200
    return answer(JobStatuses(jobs=list(statuses)) if many else statuses[0], status)


@blueprint.get("")
@operation(
    summary="List jobs, newest first; or the dead letters: jobs that failed for good, though another try might help",
    scope="read",
    query=JobsQuery,
    answers={200: ("a page", JobPage)},
    errors=(422, 503),
)
def listed() -> Response:
    query = read_query(JobsQuery)
    store = services().store
    if query.dead and (query.state or query.wanted or query.batch_id):
        raise bad_field("dead", "the dead letters are listed without another filter")
    try:
        if query.dead:
            page = store.dead(query.limit, query.cursor)
        else:
            page = store.list(query.state, query.wanted, query.batch_id, query.limit, query.cursor)
    except ValueError as error:
        raise bad_field("cursor", str(error)) from error
    return answer(JobPage(jobs=list(page.statuses), next=page.next))


@blueprint.get("/<job_id>")
@operation(
    summary="A job's status; with `wait`, when it ends or the wait is over",
    scope="read",
    query=WaitQuery,
    answers={200: ("the status; Retry-After where too many wait already", JobStatus)},
    errors=(404, 422, 503),
)
def status(job_id: str) -> Response:
    wait = read_query(WaitQuery).seconds
    store = services().store
    seen, busy = _await_end(known_id(job_id), lambda: store.status(job_id), _has_ended, wait)
    return answer(seen, headers=BUSY if busy and not _has_ended(seen) else None)


@blueprint.get("/<job_id>/result")
@operation(
    summary="A finished job's result; with `wait`, when it ends or the wait is over",
    scope="read",
    query=ResultQuery,
    answers={200: ("the result", Result)},
    errors=(404, 409, 410, 422, 503),
)
def result(job_id: str) -> Response:
    query = read_query(ResultQuery)
    store = services().store

    def look() -> Result | NotFinished:
        try:
            return store.result(job_id, tokens=query.tokens)
        except NotFinished as error:
            return error

    seen, busy = _await_end(known_id(job_id), look, lambda seen: isinstance(seen, Result), query.seconds)
    if isinstance(seen, Result):
        return result_answer(seen)
    raise Problem(409, "job-not-finished", str(seen), extra={"job_id": job_id}, headers=BUSY if busy else None)


@blueprint.delete("/<job_id>")
@operation(
    summary="Cancel a job",
    scope="submit",
    answers={202: ("the cancel was accepted", JobStatus), 200: ("the job had ended", JobStatus)},
    errors=(404, 503),
)
def cancel(job_id: str) -> Response:
    outcome = services().store.cancel(known_id(job_id))
    return answer(services().store.status(job_id), 200 if outcome == "already_ended" else 202)


@blueprint.post("/<job_id>/retry")
@operation(
    summary="Give a job that failed or timed out a new life: from init, with all its attempts",
    scope="submit",
    answers={202: ("it is queued anew; its result is withdrawn", JobStatus)},
    errors=(404, 409, 410, 503),
)
def retry(job_id: str) -> Response:
    publish([services().store.retry(known_id(job_id))])
    return answer(services().store.status(job_id), 202)


def publish(messages: list[Message]) -> None:
    """Publish messages of jobs that are written, hence accepted: where the broker takes none, the sweep finds out."""
    try:
        services().publisher.publish_all(messages)
    except StoreUnavailable as error:
        log.warning("%d jobs await the sweep, their messages were not taken: %s", len(messages), error)


def known_id(job_id: str) -> str:
    """The id, if any job could have it: no job was ever accepted under another."""
    if _ID.fullmatch(job_id) is None:
        raise JobNotFound("no job has such an id")
    return job_id


def _has_ended(status: JobStatus) -> bool:
    return status.state in TERMINAL


def _await_end(job_id: str, look: Callable[[], Seen], ended: Callable[[Seen], bool], wait: float) -> tuple[Seen, bool]:
    """Look until the job has ended or the wait is over. Gives what was seen, and whether there was no room to wait."""
    if wait <= 0:
        return look(), False
    deadline = time.monotonic() + wait
    waiters = services().waiters
    watch = waiters.watch(job_id, within=wait)
    if watch is None:
        return look(), True
    with watch:
        while True:
            seen = look()
            if ended(seen) or waiters.closed or not watch.wait(deadline - time.monotonic()):
                return seen, False
