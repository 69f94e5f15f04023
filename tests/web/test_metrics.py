"""`/metrics`, as Prometheus reads it."""

from __future__ import annotations

from collections.abc import Callable

from flask import Flask
from prometheus_client.parser import text_string_to_metric_families
from test_operations import STAGES, beat
from web_helpers import a_job, run_to_its_end

from prorl_celery.jobs.store import JobStore
from prorl_celery.scheduling.backends import Backend
from web.auth import new_token


def samples(app: Flask) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Each sample by its name and labels; none comes twice."""
    answer = app.test_client().get("/metrics")
    assert answer.status_code == 200
    assert answer.content_type == "text/plain; version=0.0.4; charset=utf-8"
    families = list(text_string_to_metric_families(answer.get_data(as_text=True)))
    assert all(family.documentation for family in families)
    found = [(s.name, frozenset(s.labels.items()), s.value) for family in families for s in family.samples]
    assert len({(name, labels) for name, labels, _ in found}) == len(found)
    return {(name, labels): value for name, labels, value in found}


def key(metric: str, **labels: str) -> tuple[str, frozenset[tuple[str, str]]]:
    return metric, frozenset(labels.items())


def test_leaks_sandboxes_slots_queues_jobs_and_backends_are_told(app: Flask, store: JobStore) -> None:
    beat(app, "n1")
    beat(app, 'n"2\\\n')
    app.test_client().post("/v1/jobs", json={"jobs": [a_job(f"j{i}") for i in range(5)]})
    run_to_its_end(store, "j0")
    app.extensions["prorl"].backends.put(Backend(url="http://h", model="m", state="up"))
    told = samples(app)
    for node in ("n1", 'n"2\\\n'):
        assert told[key("prorl_leaked_sandboxes_total", node=node)] == 1, "this parser calls every counter so"
        assert told[key("prorl_stuck_sandboxes", node=node)] == 0
        assert told[key("prorl_sandboxes", node=node)] == 2
        for stage in STAGES:
            assert told[key("prorl_slots", node=node, stage=stage)] == 4
            assert told[key("prorl_slots_busy", node=node, stage=stage)] == 1
    assert told[key("prorl_queued_jobs", stage="init")] == 4
    assert (told[key("prorl_jobs", state="completed")], told[key("prorl_jobs", state="queued")]) == (1, 4)
    assert told[key("prorl_backends", state="up")] == 1


def test_a_leak_counter_is_a_counter_and_a_node_that_was_started_again_is_told_once(app: Flask) -> None:
    nodes = app.extensions["prorl"].nodes
    for boot, started_at, leaked in (("b1", 100.0, 3), ("b2", 200.0, 1234567)):
        nodes.beat({"node": "n1", "boot": boot, "started_at": started_at, "leaked": leaked, "slots": {}})
    text = app.test_client().get("/metrics").get_data(as_text=True)
    assert "# TYPE prorl_leaked_sandboxes counter\n" in text
    assert [line for line in text.splitlines() if line.startswith("prorl_leaked_sandboxes{")] == [
        'prorl_leaked_sandboxes{node="n1"} 1234567'
    ]
    assert app.test_client().get("/v1/status").get_json()["leaked_sandboxes"] == 1234567


def test_metrics_need_the_same_right_as_the_status(make: Callable[..., Flask]) -> None:
    token, entry = new_token("prometheus", ["read"])
    api = make(api_tokens=(entry,)).test_client()
    assert api.get("/metrics").status_code == 401
    assert api.get("/metrics", headers={"Authorization": f"Bearer {token}"}).status_code == 200


def test_without_redis_there_are_none(make: Callable[..., Flask]) -> None:
    assert make(redis_url="unix:///nowhere/redis.sock").test_client().get("/metrics").status_code == 503


def test_connections_to_redis_are_told_by_process(app: Flask) -> None:
    beat(app, "n1")
    nodes = app.extensions["prorl"].nodes
    for number, connections in (("a", 5), ("b", 7)):  # one that retires and its successor
        record = {
            "id": number,
            "name": "eval-0",
            "stage": "eval",
            "busy": 0,
            "handlers": [],
            "connections": connections,
        }
        nodes.beat_process("n1", "b1", record)
    told = samples(app)
    assert told[key("prorl_redis_connections", node="n1", process="eval-0")] == 12
    own = [value for (name, labels), value in told.items() if ("process", "api") in labels]
    assert len(own) == 1
