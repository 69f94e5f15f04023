"""The `search` tool: what the model reads, and where there is none."""

from __future__ import annotations

from typing import Any

import pytest

from prorl_celery.errors import Cancelled
from prorl_celery.sandbox.waiting import NeverCancelled
from prorl_celery.search.base import Found, QueryRefused, SearchError
from prorl_celery.search.index import LocalIndex
from prorl_celery.settings import Settings
from prorl_celery.tools.search import render
from prorl_celery.tools.toolbox import Toolbox

INDEX = LocalIndex({"title": f"T{n}", "url": f"http://x/{n}", "text": "all about moons"} for n in range(20))


class Fails:
    """A search that raises."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def search(self, query: str, **_: Any) -> list[Found]:
        raise self.error


def box(search: Any = INDEX, **fields: Any) -> Toolbox:
    with NeverCancelled() as never:
        return Toolbox(["search", "finish"], sandbox=None, settings=Settings(**fields), cancel=never, search=search)


def call(toolbox: Toolbox, **arguments: Any) -> str:
    return toolbox.call("search", arguments).content


def test_results_are_numbered_with_title_address_and_text() -> None:
    assert call(box(), query="moons", max_results=2) == (
        "[1] T0\nhttp://x/0\nall about moons\n\n[2] T1\nhttp://x/1\nall about moons"
    )
    assert call(box(), query="zebra") == "Nothing was found."


@pytest.mark.parametrize(("wanted", "given"), [(None, 5), (0, 1), (-3, 1), (10**400, 10)])
def test_so_many_as_asked_for_within_what_makes_sense(wanted: int | None, given: int) -> None:
    arguments = {} if wanted is None else {"max_results": wanted}
    assert call(box(), query="moons", **arguments).count("http://x/") == given


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({}, "'query' is missing"),
        ({"query": 5}, "'query' must be of type string"),
        ({"query": "x", "max_results": "many"}, "'max_results' must be of type integer"),
        ({"query": " \n "}, "The query is empty."),
        ({"query": "x" * 1001}, "1001 characters; at most 1000"),
    ],
)
def test_a_wrong_call_is_told_to_the_model(arguments: dict[str, Any], says: str) -> None:
    assert says in call(box(), **arguments)


def test_a_query_of_lone_surrogates_is_sent_as_something_that_can_be() -> None:
    seen: list[str] = []

    class Notes:
        def search(self, query: str, **_: Any) -> list[Found]:
            seen.append(query)
            return []

    call(box(Notes()), query="a\ud800b")
    assert seen == ["a?b"]


def test_a_long_answer_is_cut_so_that_every_result_has_its_share() -> None:
    long = [Found(f"T{n}", "http://x", "ö" * 3000) for n in range(4)]
    text = render(long, 1024)
    assert len(text.encode()) < 1024 + 4 * len(" ...\n\n")
    assert all(f"[{n}] T{n - 1}" in text for n in range(1, 5))
    assert "\N{REPLACEMENT CHARACTER}" not in text


def test_a_search_that_fails_is_an_error_and_a_refusal_is_read() -> None:
    assert call(box(Fails(QueryRefused("The search was refused: too odd"))), query="x").endswith("too odd")
    with pytest.raises(SearchError):
        call(box(Fails(SearchError("it is away"))), query="x")


def test_where_it_is_off_the_setting_is_named() -> None:
    with pytest.raises(ValueError, match="the tool search is off on this node: PRORL_SEARCH_URL"):
        box(None)


def test_a_search_takes_time_so_its_call_is_logged_before_it_is_made() -> None:
    assert not box().at_once("search", {"query": "x"})
    assert box().at_once("search", {})
    assert box().at_once("finish", {})


def test_one_whose_process_was_lost_is_made_again() -> None:
    assert "T0" in box().recover("search", {"query": "moons"}, mark="0.0.0").content


def test_it_is_given_the_cancel_and_the_time() -> None:
    seen: dict[str, Any] = {}

    class Set(NeverCancelled):
        def raise_if_set(self) -> None:
            if seen:
                raise Cancelled("by test")

    class Waits:
        def search(self, query: str, **how: Any) -> list[Found]:
            seen.update(how)
            how["cancel"].raise_if_set()
            return []

    settings = Settings(search_timeout_seconds=7.0)
    with Set() as cancel, pytest.raises(Cancelled):
        Toolbox(["search"], sandbox=None, settings=settings, cancel=cancel, search=Waits()).call(
            "search", {"query": "x"}
        )
    assert (seen["cancel"], seen["timeout"], seen["most"]) == (cancel, 7.0, 5)
