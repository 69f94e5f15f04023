"""`/v1/results`: finished jobs' results in order of finishing, each at least once."""

from __future__ import annotations

import time

from flask import Blueprint, Response

from prorl_celery.jobs.claims import ResultsPage
from web.contract import ResultPage, ResultsQuery, operation
from web.jobs import BUSY
from web.reading import read_query
from web.rendering import results_answer
from web.services import services

blueprint = Blueprint("results", __name__, url_prefix="/v1/results")

MAX_PAGE_BYTES = 32 << 20


@blueprint.get("")
@operation(
    summary="Results in order of finishing, from `after` on; with `wait`, when there is one or the wait is over",
    scope="read",
    query=ResultsQuery,
    answers={200: ("a page; give its `next` as `after` of the next call", ResultPage)},
    errors=(422, 503),
)
def results() -> Response:
    query = read_query(ResultsQuery)
    page, busy = _page(query)
    tail = {"next": page.next, "truncated": page.truncated}
    return results_answer(page.results, tail, headers=BUSY if busy else {})


def _page(query: ResultsQuery) -> tuple[ResultsPage, bool]:
    """The page, and whether there was no room to wait for one that is not empty."""
    deadline = time.monotonic() + query.seconds
    waiters = services().waiters
    page = _read(query, query.after)
    if page.results or page.truncated or query.seconds <= 0:
        return page, False
    watch = waiters.watch(None, within=query.seconds)
    if watch is None:
        return page, True
    with watch:
        while True:
            # Going on from where the last look ended: what a filter left out is not read again.
            page = _read(query, page.next or query.after)
            if page.results or waiters.closed or not watch.wait(deadline - time.monotonic()):
                return page, False


def _read(query: ResultsQuery, after: str | None) -> ResultsPage:
    return services().store.results(
        after, limit=query.limit, max_bytes=MAX_PAGE_BYTES, tag=query.wanted, batch_id=query.batch_id
    )
