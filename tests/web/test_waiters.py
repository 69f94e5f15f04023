"""Long-polls: woken by Redis, at no cost while they wait, and by nothing lost while Redis is away."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import redis
from flask import Flask
from web_helpers import RedisProcess, a_job, run_to_its_end, until

from prorl_celery.jobs.store import JobStore


@contextmanager
def asking(app: Flask, path: str) -> Iterator[Callable[[], tuple[int, dict[str, object], float]]]:
    """Ask in a thread; what is yielded gives the status, the answer, and when it came."""
    got: list[tuple[int, dict[str, object], float]] = []

    def ask() -> None:
        answer = app.test_client().get(path)
        got.append((answer.status_code, answer.get_json(), time.monotonic()))

    thread = threading.Thread(target=ask)
    thread.start()

    def join() -> tuple[int, dict[str, object], float]:
        thread.join(70)
        return got[0]

    yield join
    thread.join(70)


def waiting(app: Flask, count: int = 1) -> None:
    waiters = app.extensions["prorl"].waiters
    until(lambda: len(waiters) == count and waiters._placed.is_set(), 10)


@pytest.mark.parametrize("path", ["/v1/jobs/a?wait=60", "/v1/jobs/a/result?wait=60", "/v1/results?wait=60"])
def test_a_long_poll_answers_when_the_job_ends(app: Flask, store: JobStore, path: str) -> None:
    app.test_client().post("/v1/jobs", json=a_job("a"))
    with asking(app, path) as answer:
        waiting(app)
        run_to_its_end(store, "a")
        ended = time.monotonic()
        status, body, at = answer()
    assert status == 200
    assert "completed" in str(body)
    assert at - ended < 5
    assert len(app.extensions["prorl"].waiters) == 0


def test_a_long_poll_answers_when_the_job_is_cancelled(app: Flask, store: JobStore) -> None:
    app.test_client().post("/v1/jobs", json=a_job("a"))
    with asking(app, "/v1/jobs/a?wait=60") as answer:
        waiting(app)
        store.cancel("a")
        assert answer()[1]["state"] == "cancelled"


def test_a_long_poll_ends_when_its_wait_is_over(app: Flask) -> None:
    api = app.test_client()
    api.post("/v1/jobs", json=a_job("a"))
    began = time.monotonic()
    assert api.get("/v1/jobs/a?wait=0.3").get_json()["state"] == "queued"
    assert api.get("/v1/results?wait=0.3").get_json()["results"] == []
    assert 0.6 <= time.monotonic() - began < 20


def test_waiting_costs_no_redis_commands(app: Flask, redis_process: RedisProcess, store: JobStore) -> None:
    app.test_client().post("/v1/jobs", json={"jobs": [a_job(f"j{i}") for i in range(20)]})
    with redis.Redis.from_url(redis_process.url) as client:

        def commands() -> int:
            return int(client.info("stats")["total_commands_processed"])  # type: ignore[index]

        threads = [threading.Thread(target=app.test_client().get, args=(f"/v1/jobs/j{i}?wait=3",)) for i in range(20)]
        for thread in threads:
            thread.start()
        waiting(app, 20)
        # Each looks once more after it has registered; that is over when the count stands still.
        threading.Event().wait(0.7)
        before = commands()
        threading.Event().wait(1.0)
        # Ours are the two INFOs alone.
        assert commands() - before <= 2
        for thread in threads:
            thread.join(20)


def test_a_job_that_ends_between_the_look_and_the_wait_is_not_missed(app: Flask, store: JobStore) -> None:
    """Many jobs end at about the moment at which somebody begins to wait for them."""
    app.test_client().post("/v1/jobs", json={"jobs": [a_job(f"j{i}") for i in range(40)]})
    began = time.monotonic()
    for i in range(40):
        with asking(app, f"/v1/jobs/j{i}?wait=60") as answer:
            run_to_its_end(store, f"j{i}")
            assert answer()[1]["state"] == "completed"
    assert time.monotonic() - began < 30


def test_a_filtered_long_poll_is_not_ended_by_what_it_leaves_out(app: Flask, store: JobStore) -> None:
    jobs = [a_job("other"), a_job("mine", tags={"run": "mine"})]
    app.test_client().post("/v1/jobs", json={"jobs": jobs})
    with asking(app, "/v1/results?tag=run=mine&wait=60") as answer:
        waiting(app)
        run_to_its_end(store, "other")
        run_to_its_end(store, "mine")
        status, body, _ = answer()
    assert status == 200
    assert [result["job_id"] for result in body["results"]] == ["mine"]  # type: ignore[attr-defined]


def test_waiters_beyond_the_limit_do_not_wait(make: Callable[..., Flask], store: JobStore) -> None:
    app = make(max_waiters=1)
    app.test_client().post("/v1/jobs", json=a_job("a"))
    with asking(app, "/v1/jobs/a?wait=60") as answer:
        waiting(app)
        second = app.test_client().get("/v1/jobs/a?wait=60")
        assert (second.status_code, second.get_json()["state"], second.headers["Retry-After"]) == (200, "queued", "1")
        store.cancel("a")
        assert answer()[1]["state"] == "cancelled"


def test_closing_lets_all_waiters_go(app: Flask) -> None:
    app.test_client().post("/v1/jobs", json=a_job("a"))
    with asking(app, "/v1/jobs/a?wait=60") as answer:
        waiting(app)
        app.extensions["prorl"].waiters.close()
        assert answer()[1]["state"] == "queued"


def test_a_job_that_ends_after_redis_was_killed_and_came_back_still_wakes(
    app: Flask, redis_process: RedisProcess, store: JobStore, caplog: pytest.LogCaptureFixture
) -> None:
    app.test_client().post("/v1/jobs", json=a_job("a"))
    with asking(app, "/v1/jobs/a?wait=60") as answer:
        waiting(app)
        redis_process.kill()
        until(lambda: "out of reach" in caplog.text, 20)
        redis_process.start()
        run_to_its_end(store, "a")
        ended = time.monotonic()
        status, body, at = answer()
    assert (status, body["state"]) == (200, "completed")
    assert at - ended < 20
