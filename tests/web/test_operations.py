"""Status, nodes, health and readiness."""

from __future__ import annotations

from collections.abc import Callable

from flask import Flask
from flask.testing import FlaskClient
from web_helpers import a_job, run_to_its_end

from prorl_celery.jobs.store import JobStore
from prorl_celery.scheduling.backends import Backend

STAGES = ("init", "rollout", "eval")


def beat(app: Flask, node: str, *, stages: tuple[str, ...] = STAGES) -> None:
    """What a node and its stage processes tell."""
    nodes = app.extensions["prorl"].nodes
    record = {"node": node, "boot": "b1", "slots": dict.fromkeys(STAGES, 4), "room": 3, "sandboxes": 2, "leaked": 1}
    nodes.beat(record)
    for stage in stages:
        process = {"name": f"{stage}-0", "stage": stage, "pid": 1, "slots": 4, "busy": 1, "handlers": ["echo"]}
        nodes.beat_process(node, "b1", process)


def test_readiness_says_what_is_missing(app: Flask) -> None:
    api, services = app.test_client(), app.extensions["prorl"]
    bare = api.get("/readyz")
    assert bare.status_code == 503
    assert len(bare.get_json()["missing"]) == 4
    beat(app, "n1", stages=("init",))
    services.backends.put(Backend(url="http://h", model="m", state="down"))
    partly = api.get("/readyz").get_json()["missing"]
    assert partly[:2] == ["no worker of stage rollout", "no worker of stage eval"]
    assert len(partly) == 3
    beat(app, "n1")
    services.backends.set_state("http://h", "up")
    assert api.get("/readyz").get_json() == {"ready": True, "missing": []}


def test_readiness_without_redis_says_so_and_health_does_not_mind(make: Callable[..., Flask]) -> None:
    api = make(redis_url="unix:///nowhere/redis.sock").test_client()
    assert api.get("/readyz").get_json()["missing"] == ["Redis does not answer"]
    assert api.get("/healthz").get_json() == {"status": "ok"}


def test_the_status_counts_jobs_queues_slots_and_leaks(app: Flask, store: JobStore) -> None:
    api = app.test_client()
    beat(app, "n1")
    beat(app, "n2")
    api.post("/v1/jobs", json={"jobs": [a_job(f"j{i}") for i in range(5)]})
    run_to_its_end(store, "j0")
    status = api.get("/v1/status").get_json()
    assert status["stages"]["init"] == {"queued": 4, "slots": 8, "busy": 2}
    assert status["jobs"]["completed"] == 1
    assert status["jobs"]["queued"] == 4
    assert status["leaked_sandboxes"] == 2
    assert status["backends"] == {"up": 0, "draining": 0, "down": 0}
    assert status["missing"] == ["no backend is up (register one with POST /v1/backends)"]
    nodes = api.get("/v1/nodes").get_json()["nodes"]
    assert [node["node"] for node in nodes] == ["n1", "n2"]
    assert nodes[0]["handlers"] == ["echo"]


def test_the_front_page_points_to_the_schema(api: FlaskClient) -> None:
    assert api.get("/").get_json()["openapi"] == "/openapi.json"
