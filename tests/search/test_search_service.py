"""A search over HTTP: what is sent, when it is sent again, and what may not be told."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
from search_service import results

from prorl_celery.errors import Cancelled, SettingsError
from prorl_celery.llm.loop import ModelLoop
from prorl_celery.sandbox.waiting import NeverCancelled
from prorl_celery.search import tavily
from prorl_celery.search.base import Found, QueryRefused, SearchError
from prorl_celery.search.tavily import TavilySearch
from prorl_celery.settings import Settings
from tasks.signals import JobSignal

KEY = "tvly-very-secret"
Start = Callable[..., AbstractContextManager[Any]]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tavily, "FIRST_WAIT_SECONDS", 0.01)


@pytest.fixture
def look(loop: ModelLoop, never: NeverCancelled) -> Callable[..., list[Found]]:
    def search(url: str, query: str = "tides", *, most: int = 3, timeout: float = 10.0) -> list[Found]:
        return TavilySearch(url, KEY, loop).search(query, most=most, cancel=never, timeout=timeout)

    return search


def test_query_number_and_key_are_sent_and_results_read(service: Start, look: Callable[..., list[Found]]) -> None:
    row = {"title": " The\nmoon ", "url": "http://x/1", "content": "It pulls.", "score": 0.9, "raw_content": None}
    with service(lambda _: results(row, row, row, row)) as told:
        found = look(told.url, "why are there tides")
    assert found == [Found("The moon", "http://x/1", "It pulls.")] * 3
    [(headers, body)] = told.asked
    assert body == {"query": "why are there tides", "max_results": 3}
    assert headers["Authorization"] == f"Bearer {KEY}"


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_busy_or_ill_service_is_asked_again(service: Start, look: Callable[..., list[Found]], status: int) -> None:
    answers = iter([(status, {"Retry-After": "0"}, b""), (status, {}, b""), results({"title": "t"})])
    with service(lambda _: next(answers)) as told:
        assert look(told.url) == [Found("t", "", "")]
        assert len(told.asked) == 3


def test_one_that_says_when_is_not_asked_before(service: Start, look: Callable[..., list[Found]]) -> None:
    at: list[float] = []

    def says(_: Any) -> Any:
        at.append(time.monotonic())
        return results() if len(at) > 1 else (429, {"Retry-After": "0.4"}, b"")

    with service(says) as told:
        assert look(told.url) == []
    assert at[1] - at[0] >= 0.4


def test_one_that_wants_more_time_than_there_is_is_given_up_at_once(
    service: Start, look: Callable[..., list[Found]]
) -> None:
    with service(lambda _: (429, {"Retry-After": "3600"}, b"")) as told:
        began = time.monotonic()
        with pytest.raises(SearchError, match="it answered 429"):
            look(told.url)
        assert (time.monotonic() - began, len(told.asked)) < (5.0, 2)


def test_one_that_stays_ill_fails_after_some_tries(service: Start, look: Callable[..., list[Found]]) -> None:
    with service(lambda _: (503, {}, b"")) as told:
        with pytest.raises(SearchError, match="it answered 503") as caught:
            look(told.url)
        assert len(told.asked) == tavily.TRIES
    assert caught.value.kind == "tool"


def test_nobody_there_is_an_error_that_names_the_place(look: Callable[..., list[Found]]) -> None:
    with pytest.raises(SearchError, match=r"search service at http://127.0.0.1:1 failed: no answer"):
        look("http://127.0.0.1:1/search?api_key=abc")


def test_a_service_that_hangs_is_given_up_in_time(service: Start, look: Callable[..., list[Found]]) -> None:
    done = threading.Event()
    with service(lambda _: (200, {}, b"") if done.wait(30) else (500, {}, b"")) as told:
        began = time.monotonic()
        with pytest.raises(SearchError, match=r"0.3 s were over"):
            look(told.url, timeout=0.3)
        assert time.monotonic() - began < 2.5
        done.set()


def test_a_cancel_ends_the_search_and_leaves_no_thread(service: Start, loop: ModelLoop) -> None:
    done, came = threading.Event(), threading.Event()

    def says(_: Any) -> Any:
        came.set()
        done.wait(30)
        return results()

    def cancel() -> None:
        assert came.wait(30)
        signal.set(Cancelled("by test"))

    signal = JobSignal()
    with service(says) as told:
        canceller = threading.Thread(target=cancel)
        canceller.start()
        began = time.monotonic()
        with pytest.raises(Cancelled):
            TavilySearch(told.url, KEY, loop).search("x", most=1, cancel=signal, timeout=20.0)
        assert time.monotonic() - began < 5.0
        canceller.join()
        done.set()
    signal.close()
    loop.stop()
    assert not [thread for thread in threading.enumerate() if thread.name == "model-loop"]


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        ((200, {}, b"<html>"), "not JSON"),
        ((200, {}, b"[" * 100_000), "not JSON"),
        ((200, {}, b"[]"), "without a list"),
        ((200, {}, b'{"results": {}}'), "without a list"),
        ((200, {}, b'{"results": [1]}'), "without a list"),
        ((200, {}, b" " * (tavily.REPLY_BYTES + 1)), "more than"),
        ((302, {"Location": "http://127.0.0.1:1/"}, b""), "302"),
        ((404, {}, b""), "404"),
        ((401, {}, f"bad key {KEY}".encode()), "401: see PRORL_SEARCH_KEY"),
        ((432, {}, b""), "432: see PRORL_SEARCH_KEY"),
    ],
)
def test_nonsense_is_an_error_at_once(
    service: Start, look: Callable[..., list[Found]], reply: Any, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    with service(lambda _: reply) as told:
        with pytest.raises(SearchError, match=says) as caught:
            look(told.url)
        assert len(told.asked) == 1
    assert KEY not in f"{caught.value}{caplog.text}"


def test_a_refused_query_is_for_the_model_to_read_without_the_key(
    service: Start, look: Callable[..., list[Found]]
) -> None:
    with service(lambda _: (422, {}, json.dumps({"detail": f"too odd for {KEY}"}).encode())) as told:
        with pytest.raises(QueryRefused, match="too odd for") as caught:
            look(told.url)
    assert KEY not in str(caught.value)


def test_fields_of_other_kinds_and_lone_surrogates_do_no_harm(service: Start, look: Callable[..., list[Found]]) -> None:
    odd = b'{"results": [{"title": 5, "url": null, "content": "a\\ud800b"}, {}]}'
    with service(lambda _: (200, {}, odd)) as told:
        assert look(told.url) == [Found("", "", "a?b"), Found("", "", "")]


@pytest.mark.parametrize("url", ["ftp://x", "x", "http://", "http://[", "http://user:word@x/", "http://x:port/"])
def test_what_is_no_url_is_refused_by_its_setting(loop: ModelLoop, url: str) -> None:
    with pytest.raises(SettingsError, match="PRORL_SEARCH_URL"):
        TavilySearch(url, KEY, loop)


def test_the_key_is_a_secret_of_the_settings() -> None:
    [field] = [one for one in Settings.__dataclass_fields__.values() if one.name == "search_key"]
    assert field.metadata["secret"]
