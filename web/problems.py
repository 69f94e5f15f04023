"""Problem documents (RFC 9457): the one form in which the API says that something went wrong.

Given an exception of any kind, gives an `application/problem+json` answer with `type`, `title`, `status`, `detail` and,
for bad input, `errors: [{"field", "message"}]`. An exception that nobody foresaw is logged with its trace and told as
a bare 500: what it says may be secret.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from http import HTTPStatus
from typing import Any

from flask import Flask, Response, request
from pydantic import BaseModel, Field, ValidationError
from pydantic_core import to_json
from werkzeug.exceptions import HTTPException

from prorl_celery import errors

log = logging.getLogger("prorl.web")

MAX_FIELD_ERRORS = 100
"""Most `errors` one document names: a list of 1,000 bad jobs must not answer with megabytes."""


BATCH_SLUGS: dict[type[errors.BatchError], str] = {
    errors.BatchConflict: "batch-conflict",
    errors.BatchEnded: "batch-ended",
    errors.BatchNotLeft: "batch-not-left",
}


class FieldError(BaseModel):
    """One bad field: its dotted path in the body (or the parameter's name) and what is wrong with it."""

    field: str
    message: str


class ProblemDocument(BaseModel):
    """RFC 9457. `errors` is there for bad input, `job_id` where the problem is about one job."""

    type: str = Field(description="a stable name: urn:prorl:problem:SLUG")
    title: str
    status: int
    detail: str
    errors: list[FieldError] | None = None
    job_id: str | None = None


class Problem(Exception):
    """Raise it anywhere below a view: the answer is its document. `extra` adds members to it."""

    def __init__(
        self,
        status: int,
        slug: str,
        detail: str,
        *,
        fields: Iterable[FieldError] = (),
        retry_after: int | None = None,
        extra: dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.slug = slug
        self.detail = detail
        self.fields = list(fields)
        self.extra = extra or {}
        self.headers = dict(headers or {})
        if retry_after is not None:
            self.headers["Retry-After"] = str(retry_after)

    def response(self) -> Response:
        """The answer to send."""
        document: dict[str, Any] = {
            "type": f"urn:prorl:problem:{self.slug}",
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": self.detail,
        }
        if self.fields:
            document["errors"] = [error.model_dump() for error in self.fields[:MAX_FIELD_ERRORS]]
            if len(self.fields) > MAX_FIELD_ERRORS:
                document["errors_left_out"] = len(self.fields) - MAX_FIELD_ERRORS
        document.update(self.extra)
        return Response(
            to_json(document) + b"\n", status=self.status, mimetype="application/problem+json", headers=self.headers
        )


def bad_fields(fields: Sequence[FieldError]) -> Problem:
    """422 that names every bad field."""
    named = ", ".join(error.field or "the body" for error in fields[:5]) + (", ..." if len(fields) > 5 else "")
    return Problem(422, "invalid", f"{len(fields)} bad field{'s' * (len(fields) != 1)}: {named}", fields=fields)


def bad_field(field: str, message: str) -> Problem:
    """422 for one field."""
    return bad_fields([FieldError(field=field, message=message)])


def fields_of(error: ValidationError, prefix: str = "") -> list[FieldError]:
    """Pydantic's findings as dotted paths, such as `jobs.3.sampling_params.temperature`."""
    found = []
    for item in error.errors(include_url=False, include_context=False, include_input=False):
        path = ".".join([prefix, *map(str, item["loc"])] if prefix else list(map(str, item["loc"])))
        found.append(FieldError(field=path, message=_in_plain_words(item["type"], item["msg"])))
    return found


def _in_plain_words(kind: str, message: str) -> str:
    """Pydantic's message, without the words of Python."""
    if kind == "extra_forbidden":
        return "there is no such field"
    return message.removeprefix("Value error, ").replace("Tuple should", "List should").replace(" after validation", "")


def problem_of(error: errors.ProrlError) -> Problem | None:
    """The problem that an error of the library stands for; None for one that no caller should ever see."""
    extra = {"job_id": job_id} if (job_id := getattr(error, "job_id", None)) else None
    match error:
        case errors.JobNotFound():
            return Problem(404, "job-not-found", str(error), extra=extra)
        case errors.JobConflict():
            return Problem(409, "job-conflict", str(error), extra=extra)
        case errors.NotFinished():
            return Problem(409, "job-not-finished", str(error), extra=extra)
        case errors.NotFailed():
            return Problem(409, "job-not-failed", str(error), extra=extra)
        case errors.ResultExpired():
            return Problem(410, "result-expired", str(error), extra=extra)
        case errors.StoreFull():
            return Problem(429, "store-full", str(error), retry_after=5)
        case errors.QueueFull():
            return Problem(429, "queue-full", str(error), retry_after=5)
        case errors.BatchNotFound():
            return Problem(404, "batch-not-found", str(error), extra={"batch_id": error.batch_id})
        case errors.BatchError():
            return Problem(409, BATCH_SLUGS[type(error)], str(error), extra={"batch_id": error.batch_id})
        case errors.TooLarge():
            return Problem(413, "too-large", str(error), extra=extra)
        case errors.StoreUnavailable():
            return Problem(503, "store-unavailable", str(error), retry_after=2)
        case errors.BadInstance():
            field = "instance." + error.field if error.field else "instance"
            return bad_field(field, str(error))
        case _:
            return None


def install(app: Flask) -> None:
    """Answer every error of the application with a problem document."""

    @app.errorhandler(Problem)
    def of_problem(problem: Problem) -> Response:
        return problem.response()

    @app.errorhandler(HTTPException)
    def of_http(error: HTTPException) -> Response:
        status = error.code or 500
        if status < 400:  # a redirect of the router
            return Response(status=status, headers=dict(error.get_headers()))
        if status == 413:
            limit = app.config["MAX_CONTENT_LENGTH"]
            error.description = f"the body is over {limit} bytes, the most that PRORL_MAX_BODY allows here"
        slug = HTTPStatus(status).phrase.lower().replace(" ", "-")
        kept = {name: value for name, value in error.get_headers() if name in {"Allow", "Retry-After"}}
        return Problem(status, slug, error.description or HTTPStatus(status).phrase, headers=kept).response()

    @app.errorhandler(errors.ProrlError)
    def of_ours(error: errors.ProrlError) -> Response:
        problem = problem_of(error)
        return problem.response() if problem else of_unforeseen(error)

    @app.errorhandler(Exception)
    def of_unforeseen(error: Exception) -> Response:
        log.error("%s %s failed", request.method, request.path, exc_info=error)
        return Problem(500, "internal", "the service failed at this request; its log has the trace").response()
