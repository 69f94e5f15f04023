"""A job's events: replayed from the start, then told as they happen, to the job's end."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import redis
from flask import Flask
from redis_fixtures import claim
from web_helpers import RedisProcess, a_job, run_to_its_end, until

from prorl_celery.jobs.messages import Message
from prorl_celery.jobs.store import JobStore
from prorl_celery.jobs.turns import Turn

WHOLE = [
    ("stage", {"state": "queued", "stage": "init"}),
    ("stage", {"state": "running", "stage": "init"}),
    ("stage", {"state": "queued", "stage": "rollout"}),
    ("stage", {"state": "running", "stage": "rollout"}),
    ("stage", {"state": "queued", "stage": "eval"}),
    ("stage", {"state": "running", "stage": "eval"}),
    ("ended", {"state": "completed"}),
]


def parse(text: str) -> list[tuple[int, str, dict[str, Any]]]:
    """Number, name and data of each event of a stream."""
    found = []
    for frame in text.split("\n\n"):
        lines = dict(line.split(": ", 1) for line in frame.splitlines() if not line.startswith(":"))
        if lines:
            data = json.loads(lines["data"])
            assert data.pop("at").endswith("Z")
            found.append((int(lines["id"]), lines["event"], data))
    return found


def stream(app: Flask, path: str, **headers: str) -> Iterator[str]:
    answer = app.test_client().get(path, headers=headers, buffered=False)
    assert answer.status_code == 200
    assert answer.mimetype == "text/event-stream"
    try:
        for piece in answer.response:
            yield piece.decode()
    finally:
        answer.close()


class Reader:
    """Follows a job in a thread of its own."""

    def __init__(self, app: Flask, path: str) -> None:
        self.text = ""
        self.thread = threading.Thread(target=self._read, args=(stream(app, path),))
        self.thread.start()

    def _read(self, pieces: Iterator[str]) -> None:
        for piece in pieces:
            self.text += piece

    def end(self) -> list[tuple[int, str, dict[str, Any]]]:
        self.thread.join(20)
        assert not self.thread.is_alive()
        return parse(self.text)


def test_the_events_of_an_ended_job_are_replayed_from_the_start(app: Flask, store: JobStore) -> None:
    app.test_client().post("/v1/jobs", json=a_job("a"))
    run_to_its_end(store, "a")
    events = parse("".join(stream(app, "/v1/jobs/a/events")))
    assert [(name, data) for _, name, data in events] == WHOLE
    assert [number for number, _, _ in events] == list(range(len(WHOLE)))
    assert len(app.extensions["prorl"].waiters) == 0


def test_who_follows_is_told_at_once_and_until_the_end(app: Flask, store: JobStore) -> None:
    app.test_client().post("/v1/jobs", json=a_job("a"))
    reader = Reader(app, "/v1/jobs/a/events")
    until(lambda: "queued" in reader.text, 20)
    init = claim(store, Message("init", "init", "a", 0, 5))
    until(lambda: '"running","stage":"init"' in reader.text, 5)
    rollout = claim(store, store.commit(init, {}, next_stage="rollout", queue="rollout", worked_s=0))
    store.append_turn(rollout, Turn(index=0))
    until(lambda: "event: turn" in reader.text, 5)
    store.cancel("a")
    until(lambda: "event: cancel_requested" in reader.text, 5)
    store.finish(rollout, state="cancelled", finish_reason="cancelled", worked_s=0)
    assert reader.end()[-1][1:] == ("ended", {"state": "cancelled"})
    assert len(app.extensions["prorl"].waiters) == 0


def test_who_comes_back_goes_on_after_the_last_event_that_it_knows(app: Flask, store: JobStore) -> None:
    app.test_client().post("/v1/jobs", json=a_job("a"))
    run_to_its_end(store, "a")
    for rest in (
        stream(app, "/v1/jobs/a/events", **{"Last-Event-ID": "3"}),
        stream(app, "/v1/jobs/a/events?after=3"),
    ):
        assert [number for number, _, _ in parse("".join(rest))] == [4, 5, 6]
    over = app.test_client().get("/v1/jobs/a/events", headers={"Last-Event-ID": "6"})
    assert (over.status_code, over.data) == (204, b"")


def test_an_id_that_is_none_is_a_bad_field_and_an_unknown_job_not_found(app: Flask) -> None:
    api = app.test_client()
    api.post("/v1/jobs", json=a_job("a"))
    bad = api.get("/v1/jobs/a/events", headers={"Last-Event-ID": "x"})
    assert (bad.status_code, bad.get_json()["errors"][0]["field"]) == (422, "Last-Event-ID")
    assert api.get("/v1/jobs/a/events?after=-1").status_code == 422
    assert api.get("/v1/jobs/nobody/events").status_code == 404


def test_events_that_have_expired_are_gone(app: Flask, store: JobStore, raw_redis: redis.Redis) -> None:
    app.test_client().post("/v1/jobs", json=a_job("a"))
    run_to_its_end(store, "a")
    raw_redis.zadd("prorl:expiry", {"a": 1})
    store.sweep()
    assert app.test_client().get("/v1/jobs/a/events").status_code == 410


def test_a_stream_beyond_the_limit_replays_and_ends_early(make: Callable[..., Flask]) -> None:
    app = make(max_waiters=0)
    app.test_client().post("/v1/jobs", json=a_job("a"))
    answer = app.test_client().get("/v1/jobs/a/events")
    assert answer.headers["Retry-After"] == "1"
    assert parse(answer.get_data(as_text=True)) == [(0, *WHOLE[0])]


def test_many_follow_over_one_connection(app: Flask, store: JobStore, raw_redis: redis.Redis) -> None:
    app.test_client().post("/v1/jobs", json={"jobs": [a_job(f"j{number}") for number in range(30)]})
    readers = [Reader(app, f"/v1/jobs/j{number}/events") for number in range(30)]
    until(lambda: all("queued" in reader.text for reader in readers), 20)
    until(lambda: len(raw_redis.pubsub_channels("prorl:event:*")) == 30, 20)
    listening = [client for client in raw_redis.client_list() if int(client["sub"])]
    assert len(listening) == 1
    for number in range(30):
        run_to_its_end(store, f"j{number}")
    assert all([(name, data) for _, name, data in reader.end()] == WHOLE for reader in readers)


def test_who_was_followed_before_is_followed_again_at_once(app: Flask, store: JobStore) -> None:
    app.test_client().post("/v1/jobs", json={"jobs": [a_job("a"), a_job("b")]})
    following, waiters = app.extensions["prorl"].following, app.extensions["prorl"].waiters
    for job in ("a", "a", "b", "a"):
        watch = waiters.watch(job, within=5)
        following.follow(watch, within=20)
        assert following._heard[job].is_set()
        following.leave(watch)
        waiters.forget(watch)


def test_who_follows_while_redis_is_away_misses_nothing(
    app: Flask, store: JobStore, redis_process: RedisProcess
) -> None:
    app.test_client().post("/v1/jobs", json=a_job("a"))
    reader = Reader(app, "/v1/jobs/a/events")
    until(lambda: "queued" in reader.text, 20)
    redis_process.kill()
    redis_process.start()
    run_to_its_end(store, "a")
    events = reader.end()
    if events[-1][1] != "ended":  # it looked while Redis was away: the stream ended, and the reader comes back
        assert "out of reach" in reader.text
        events += parse("".join(stream(app, f"/v1/jobs/a/events?after={events[-1][0]}")))
    assert [(name, data) for _, name, data in events] == WHOLE


def test_a_reader_that_is_gone_before_the_stream_begins_keeps_no_place(app: Flask) -> None:
    app.test_client().post("/v1/jobs", json=a_job("a"))
    answer = app.test_client().get("/v1/jobs/a/events", buffered=False)
    assert len(app.extensions["prorl"].waiters) == 1
    answer.close()
    assert len(app.extensions["prorl"].waiters) == 0


def test_closing_lets_followers_go(app: Flask) -> None:
    app.test_client().post("/v1/jobs", json=a_job("a"))
    reader = Reader(app, "/v1/jobs/a/events")
    until(lambda: "queued" in reader.text, 20)
    app.extensions["prorl"].waiters.close()
    assert len(reader.end()) == 1


def test_who_comes_back_late_misses_nothing_of_a_long_job(app: Flask, store: JobStore) -> None:
    app.test_client().post("/v1/jobs", json=a_job("a"))
    init = claim(store, Message("init", "init", "a", 0, 5))
    rollout = claim(store, store.commit(init, {}, next_stage="rollout", queue="rollout", worked_s=0))
    for index in range(200):
        store.append_turn(rollout, Turn(index=index))
    store.finish(rollout, state="completed", finish_reason="stop", worked_s=0)
    for known in (0, 2, 100, 153, 154, 155, 203):
        events = parse("".join(stream(app, f"/v1/jobs/a/events?after={known}")))
        assert [number for number, _, _ in events] == list(range(known + 1, 205))
