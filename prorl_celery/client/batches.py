"""A batch as a trainer's loop takes it.

    for group in client.batch({"target_groups": 32, "samples_per_group": 8}, prompts):
        train(group.results)

Prompts are drawn from the iterator only when the service asks for more. When the loop is left, by `break` or by an
exception, what was not taken is cancelled.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Protocol
from urllib.parse import quote

from pydantic import BaseModel

from prorl_celery.client.transport import Reply
from prorl_celery.errors import ApiError
from prorl_celery.jobs.batch_models import BatchRequest, BatchState, BatchStatus, GroupView

POLL_SECONDS = 30.0
PAGE_GROUPS = 8
"""Groups in one answer: each holds the trajectories of all its samples."""
PAGE_PROMPTS = 64
"""Prompts that are sent ahead at least; as many more as fill `max_inflight_jobs`."""
PAGE_BYTES = 8 << 20
"""A page of prompts ends with the one that passes this: the service takes bodies of 64 MiB (`PRORL_MAX_BODY`)."""
LOOP_SECONDS = 86_400.0
"""How long a loop over a batch may take, where it is not told."""


class Calls(Protocol):
    """What is needed of the client's transport (`client.transport.Transport`)."""

    def call(
        self, method: str, path: str, *, query: dict[str, Any] | None = None, body: Any = None, wait: float = 0.0
    ) -> Reply: ...

    def pause(self, seconds: float) -> bool: ...


class GroupPage(BaseModel):
    """Groups in order of completion. Go on with `after=page.next` until `done`."""

    groups: list[GroupView]
    next: int
    state: BatchState
    done: bool


class _Added(BaseModel):
    added: int
    batch: BatchStatus


class Batches:
    """The calls of `/v1/batches`."""

    def __init__(self, http: Calls) -> None:
        self._http = http

    def create(self, request: BatchRequest | Mapping[str, Any]) -> BatchStatus:
        """Make a batch; the same again is the same batch. One without an id is given one here."""
        return BatchStatus.model_validate_json(self._http.call("POST", "/v1/batches", body=_body(request)).body)

    def add(self, batch_id: str, prompts: Iterable[Mapping[str, Any]], *, more: bool = True) -> BatchStatus:
        """Add prompts, each `{"prompt_id", "instance"}`. Not `more`: these are the last."""
        body = {"prompts": list(prompts), "more_prompts": more}
        return _Added.model_validate_json(self._http.call("POST", _path(batch_id) + "/prompts", body=body).body).batch

    def status(self, batch_id: str, *, wait: float = 0.0) -> BatchStatus:
        """Where a batch stands; with `wait` (seconds), when it waits for prompts, has ended, or the wait is over."""
        reply = self._http.call("GET", _path(batch_id), query={"wait": wait}, wait=wait)
        return BatchStatus.model_validate_json(reply.body)

    def groups(
        self, batch_id: str, after: int = 0, *, wait: float = 0.0, limit: int = PAGE_GROUPS, feed: bool = False
    ) -> GroupPage:
        """The groups behind the first `after`; waits for one, with `feed` also until the batch asks for prompts."""
        query = {"after": after, "wait": wait, "limit": limit, "feed": "true" if feed else "false"}
        reply = self._http.call("GET", _path(batch_id) + "/groups", query=query, wait=wait)
        page = GroupPage.model_validate_json(reply.body)
        if not page.groups and not page.done and reply.retry_after is not None:
            self._http.pause(reply.retry_after)
        return page

    def cancel(self, batch_id: str) -> BatchStatus:
        """Cancel all of a batch."""
        return BatchStatus.model_validate_json(self._http.call("DELETE", _path(batch_id)).body)

    def run(
        self,
        request: BatchRequest | Mapping[str, Any],
        prompts: Iterable[Mapping[str, Any]] | None,
        timeout: float = LOOP_SECONDS,
    ) -> Iterator[GroupView]:
        """Make a batch, feed it, and give its groups as they complete. `prompts` go behind those of the request.

        Raises TimeoutError when `timeout` seconds after its begin it has not ended and there is no group to give.
        """
        body = _body(request)
        source = iter(()) if prompts is None else iter(prompts)
        feeding = prompts is not None
        if feeding:
            body["more_prompts"] = True
        deadline = time.monotonic() + timeout
        batch = self.create(body)
        page_prompts = max(PAGE_PROMPTS, body.get("max_inflight_jobs", 512) // batch.samples_per_group)
        at = given = 0
        ended = False
        try:
            while not ended:
                left = deadline - time.monotonic()
                page = self.groups(batch.batch_id, at, wait=round(min(POLL_SECONDS, max(0.0, left)), 3), feed=feeding)
                if left <= 0 and not page.groups and not page.done:
                    so_far = f"{at} of {batch.target_groups} groups"
                    raise TimeoutError(f"batch {batch.batch_id} is {page.state} after {timeout:g} s: {so_far}")
                # Before the groups are given: what is done with them may take long, and the batch would stand idle.
                if feeding and page.state == "waiting_for_prompts":
                    feeding = self._feed(batch.batch_id, list(_page(source, page_prompts)))
                for group in page.groups:
                    given += 1
                    yield group
                at, ended = page.next, page.done
        finally:
            # With its last group it has ended, and keeps what the next one may adopt.
            if not ended and given < batch.target_groups:
                self.cancel(batch.batch_id)

    def _feed(self, batch_id: str, page: list[Mapping[str, Any]]) -> bool:
        """Send a page of prompts, an empty one as the last; whether more may follow."""
        try:
            self.add(batch_id, page, more=bool(page))
        except ApiError as error:
            # It reached its target, or was cancelled, while the page was made.
            if not str(error.problem.get("type", "")).endswith(":batch-ended"):
                raise
            return False
        return bool(page)


def _body(request: BatchRequest | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(request, BatchRequest):
        return request.model_dump(mode="json", exclude_unset=True)
    body = dict(request)
    # So that a call that is repeated after a lost answer makes no second batch.
    body.setdefault("batch_id", "batch-" + secrets.token_hex(8))
    return body


def _page(source: Iterator[Mapping[str, Any]], most: int) -> Iterator[Mapping[str, Any]]:
    """So many prompts, or fewer: those with which `PAGE_BYTES` is passed are the last."""
    size = 0
    for prompt in islice(source, most):
        yield prompt
        size += len(json.dumps(prompt))
        if size > PAGE_BYTES:
            return


def _path(batch_id: str) -> str:
    return "/v1/batches/" + quote(batch_id, safe="")
