"""POST /v1/jobs: what is accepted, what is refused, and how it says so."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis
from flask import Flask
from flask.testing import FlaskClient
from web_helpers import Recorder, a_job, run_to_its_end

from prorl_celery.errors import StoreUnavailable
from prorl_celery.jobs.store import JobStore
from web.reading import BIG_BODIES, ROOM


def fields(response: Any) -> dict[str, str]:
    assert response.status_code == 422, response.get_data(as_text=True)
    assert response.mimetype == "application/problem+json"
    document = response.get_json()
    assert document["status"] == 422
    assert document["title"]
    assert document["type"].startswith("urn:prorl:problem:")
    return {error["field"]: error["message"] for error in document["errors"]}


def test_a_job_is_accepted_once_and_the_same_again_is_no_second(api: FlaskClient, publisher: Recorder) -> None:
    first = api.post("/v1/jobs", json=a_job("a"))
    again = api.post("/v1/jobs", json=a_job("a"))
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.get_json()["state"] == "queued"
    assert first.get_json()["stage"] == "init"
    assert [(m.stage, m.job_id) for m in publisher.messages] == [("init", "a")]


def test_another_body_under_the_same_id_is_a_conflict(api: FlaskClient) -> None:
    api.post("/v1/jobs", json=a_job("a"))
    refused = api.post("/v1/jobs", json=a_job("a", priority=9))
    assert refused.status_code == 409
    assert refused.get_json()["job_id"] == "a"


def test_a_list_is_refused_as_a_whole(api: FlaskClient, publisher: Recorder) -> None:
    api.post("/v1/jobs", json=a_job("taken"))
    refused = api.post("/v1/jobs", json={"jobs": [a_job("new"), a_job("taken", priority=9)]})
    assert refused.status_code == 409
    assert api.get("/v1/jobs/new").status_code == 404
    assert len(publisher.messages) == 1


def test_a_list_is_answered_in_its_order(api: FlaskClient, publisher: Recorder) -> None:
    ids = [f"job-{i}" for i in range(50)]
    accepted = api.post("/v1/jobs", json={"jobs": [a_job(i) for i in ids]})
    assert accepted.status_code == 201
    assert [job["job_id"] for job in accepted.get_json()["jobs"]] == ids
    assert [m.job_id for m in publisher.messages] == ids


def test_a_job_without_an_id_gets_one(api: FlaskClient) -> None:
    job_id = api.post("/v1/jobs", json=a_job()).get_json()["job_id"]
    assert api.get(f"/v1/jobs/{job_id}").status_code == 200


def test_fifty_identical_submits_at_once_make_one_job(app: Flask, publisher: Recorder) -> None:
    def submit(_: int) -> int:
        return app.test_client().post("/v1/jobs", json=a_job("one")).status_code

    with ThreadPoolExecutor(50) as pool:
        codes = sorted(pool.map(submit, range(50)))
    assert codes == [200] * 49 + [201]
    assert len(publisher.messages) == 1


def test_a_job_whose_message_the_broker_refused_is_accepted(api: FlaskClient, publisher: Recorder) -> None:
    publisher.error = StoreUnavailable("the broker is away")
    assert api.post("/v1/jobs", json=a_job("a")).status_code == 201
    assert api.get("/v1/jobs/a").get_json()["state"] == "queued"


def test_more_jobs_than_may_wait_are_refused_with_a_time_to_come_back(make: Callable[..., Flask]) -> None:
    api = make(max_queued=2).test_client()
    api.post("/v1/jobs", json={"jobs": [a_job("a"), a_job("b")]})
    refused = api.post("/v1/jobs", json=a_job("c"))
    assert refused.status_code == 429
    assert int(refused.headers["Retry-After"]) > 0


@pytest.mark.parametrize(
    ("job", "field"),
    [
        ({**a_job("an id")}, "job_id"),
        ({**a_job(""), "job_id": ""}, "job_id"),
        (a_job("a\n"), "job_id"),
        (a_job("x" * 129), "job_id"),
        (a_job(timeouts={"init": -1}), "timeouts.init"),
        (a_job(timeouts={"rollout": 0}), "timeouts.rollout"),
        (a_job(timeouts={"eval": "60"}), "timeouts.eval"),
        (a_job(sampling_params={"temperature": "hot"}), "sampling_params.temperature"),
        (a_job(sampling_params={"temperature": True}), "sampling_params.temperature"),
        (a_job(sampling_params={"top_p": 0}), "sampling_params.top_p"),
        (a_job(sampling_params={"stop": ["END", ""]}), "sampling_params.stop.1"),
        (a_job(agent={"max_turns": 0}), "agent.max_turns"),
        (a_job(agent={"tools": "bash"}), "agent.tools"),
        (a_job(priority=10), "priority"),
        (a_job(priority=1.5), "priority"),
        (a_job(llm={"mode": "telepathy"}), "llm.mode"),
        (a_job(unheard_of=1), "unheard_of"),
        (a_job(tags={"run": 1}), "tags.run"),
        ({"job_id": "a"}, "instance"),
        ({"instance": {}}, "instance.data_source"),
        ({"instance": {"data_source": "unknown"}}, "instance.data_source"),
        ({"instance": {"data_source": "echo"}}, "instance.text"),
        ({"instance": {"data_source": "echo", "text": ""}}, "instance.text"),
        ({"instance": {"data_source": "echo", "text": "a", "instance_id": "\x00"}}, "instance.instance_id"),
        ({"instance": {"data_source": "clumsy"}}, "instance"),
        ({"jobs": []}, "jobs"),
        ({"jobs": [a_job("a"), a_job("a")]}, "jobs"),
        ({"jobs": [a_job(), a_job(sampling_params={"temperature": -1})]}, "jobs.1.sampling_params.temperature"),
        ({"jobs": [a_job(), {"instance": {"data_source": "echo"}}]}, "jobs.1.instance.text"),
        ({"jobs": [a_job(f"j{i}") for i in range(1001)]}, "jobs"),
    ],
)
def test_bad_input_is_told_by_the_name_of_its_field(api: FlaskClient, job: Any, field: str) -> None:
    assert field in fields(api.post("/v1/jobs", json=job))


def test_all_bad_fields_are_named_at_once(api: FlaskClient) -> None:
    job = a_job("a b", priority=99, timeouts={"init": -1, "rollout": -1})
    assert set(fields(api.post("/v1/jobs", json=job))) == {"job_id", "priority", "timeouts.init", "timeouts.rollout"}


def test_a_family_of_data_sources_is_served_by_its_pattern(api: FlaskClient) -> None:
    family = {"instance": {"data_source": "family/member", "text": "a"}}
    assert api.post("/v1/jobs", json=family).status_code == 201
    assert "instance.data_source" in fields(api.post("/v1/jobs", json={"instance": {"data_source": "family"}}))


def test_a_data_source_that_only_a_live_node_knows_is_accepted(app: Flask) -> None:
    api = app.test_client()
    nodes = app.extensions["prorl"].nodes
    nodes.beat({"node": "n", "boot": "b", "slots": {}})
    process = {"name": "init-0", "stage": "init", "pid": 1, "slots": 1, "busy": 0, "handlers": ["far", "distant/*"]}
    nodes.beat_process("n", "b", process)
    assert api.post("/v1/jobs", json={"instance": {"data_source": "far"}}).status_code == 201
    assert api.post("/v1/jobs", json={"instance": {"data_source": "distant/star"}}).status_code == 201
    assert api.post("/v1/jobs", json={"instance": {"data_source": "farther"}}).status_code == 422


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"[" * 100_000, 400),
        (b'{"a":' * 50_000, 400),
        (b'{"instance": {"data_source": "echo", "text": NaN}}', 400),
        (b'{"instance": {"data_source": "echo", "text": -Infinity}}', 400),
        (b'{"instance": {"data_source": "echo", "text": "\\ud800"}}', 400),
        (b'{"instance": {"data_source": "echo", "text": "\xff"}}', 400),
        (b'{"instance": {"data_source": "echo", "text": 1' + b"0" * 5000 + b"}}", 400),
        (b'{"instance": {"data_source": "echo", "text": "a", "x": [1e999]}}', 422),
        (b"[]", 422),
        (b"null", 422),
        (b'"job"', 422),
        (b"1", 422),
    ],
)
def test_a_body_that_is_no_job_is_refused(api: FlaskClient, body: bytes, status: int) -> None:
    refused = api.post("/v1/jobs", data=body, content_type="application/json")
    assert refused.status_code == status, refused.get_data(as_text=True)
    assert refused.mimetype == "application/problem+json"


def test_what_json_can_hold_is_accepted(api: FlaskClient, store: JobStore) -> None:
    odd = {"text": "\U0001f600 \x00 é", "big": 10**30, "deep": [[[[[{}]]]]], "small": 5e-324, "none": None}
    accepted = api.post("/v1/jobs", json={"job_id": "odd", "instance": {"data_source": "echo", **odd}})
    assert accepted.status_code == 201
    claim = store.claim("init", "odd", 0, node="n", process="p", op="o")
    assert claim is not None
    assert claim.request.instance.data() == {"data_source": "echo", **odd}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Content-Type": "text/plain"}, 415),
        ({}, 415),
        ({"Content-Type": "application/json; charset=utf-16"}, 415),
        ({"Content-Type": "application/json", "Content-Encoding": "gzip"}, 415),
        ({"Content-Type": "application/json; charset=UTF-8"}, 201),
    ],
)
def test_only_plain_json_is_taken(api: FlaskClient, headers: dict[str, str], status: int) -> None:
    assert api.post("/v1/jobs", data=json.dumps(a_job()), headers=headers).status_code == status


def test_a_body_over_the_limit_is_refused(make: Callable[..., Flask]) -> None:
    api = make(max_body_bytes=2048).test_client()
    refused = api.post("/v1/jobs", json=a_job(text="x" * 4096))
    assert refused.status_code == 413
    assert refused.mimetype == "application/problem+json"
    assert refused.get_json()["detail"] == "the body is over 2048 bytes, the most that PRORL_MAX_BODY allows here"


@pytest.mark.parametrize(
    ("path", "body", "field", "says"),
    [
        ("/v1/jobs", {**a_job(), "agent": {"tools": ["bash", "knife"]}}, "agent.tools", "unknown tools: knife; there"),
        ("/v1/jobs", {"jobs": [{**a_job(), "agent": {"tools": ["knife"]}}]}, "jobs.0.agent.tools", "unknown tools"),
        ("/v1/jobs", {**a_job(), "agnet": {}}, "agnet", "there is no such field"),
        ("/v1/jobs", {"jobs": []}, "jobs", "List should have at least 1 item, not 0"),
        ("/v1/backends", {"url": "gpu1:8000", "model": "m"}, "url", "not an http:// or https:// url of a server"),
    ],
)
def test_what_is_wrong_is_said_in_plain_words(
    api: FlaskClient, path: str, body: dict[str, Any], field: str, says: str
) -> None:
    refused = api.post(path, json=body)
    assert refused.status_code == 422
    [error] = refused.get_json()["errors"]
    assert error["field"] == field
    assert error["message"].startswith(says)


def test_an_answer_ends_its_line(api: FlaskClient) -> None:
    for answer in (api.post("/v1/jobs", json=a_job("a")), api.get("/v1/jobs/a"), api.get("/v1/jobs/none")):
        assert answer.data.endswith(b"}\n")
        assert answer.data.count(b"\n") == 1


def test_big_bodies_take_turns_and_give_their_room_back(
    app: Flask, monkeypatch: pytest.MonkeyPatch, publisher: Recorder
) -> None:
    monkeypatch.setattr("web.reading.BIG_BYTES", 1000)
    monkeypatch.setattr("web.reading.ROOM_SECONDS", 0.2)
    big = {"instance": {"data_source": "echo", "text": "x" * 3000}}
    for _ in range(BIG_BODIES + 1):
        assert app.test_client().post("/v1/jobs", json=big).status_code == 201
        assert app.test_client().post("/v1/jobs", json={**big, "priority": 99}).status_code == 422
    room = app.extensions[ROOM]
    for _ in range(BIG_BODIES):
        assert room.acquire(timeout=1)
    refused = app.test_client().post("/v1/jobs", json=big)
    assert (refused.status_code, refused.headers["Retry-After"]) == (503, "2")
    assert app.test_client().post("/v1/jobs", json=a_job("small")).status_code == 201


def test_an_instance_too_big_for_the_store_is_refused(make: Callable[..., Flask]) -> None:
    api = make(max_blob_bytes=2048).test_client()
    job = {"instance": {"data_source": "echo", "text": "x" * 4096}}
    assert api.post("/v1/jobs", json=job).status_code == 413


def test_unknown_routes_and_methods_answer_with_problem_documents(api: FlaskClient) -> None:
    missing, wrong = api.get("/v1/nothing"), api.put("/v1/jobs", json={})
    assert (missing.status_code, wrong.status_code) == (404, 405)
    assert missing.mimetype == wrong.mimetype == "application/problem+json"
    assert "POST" in wrong.headers["Allow"]


def test_a_bug_is_a_bare_500_and_its_trace_is_logged(
    app: Flask, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("secret")

    monkeypatch.setattr(type(app.extensions["prorl"].store), "counts", broken)
    answer = app.test_client().get("/v1/status")
    assert answer.status_code == 500
    assert answer.mimetype == "application/problem+json"
    assert "secret" not in answer.get_data(as_text=True)
    assert "RuntimeError: secret" in caplog.text


def test_without_redis_the_answer_is_503(make: Callable[..., Flask]) -> None:
    api = make(redis_url="unix:///nowhere/redis.sock").test_client()
    for answer in (api.post("/v1/jobs", json=a_job()), api.get("/v1/jobs"), api.get("/v1/status")):
        assert answer.status_code == 503
        assert int(answer.headers["Retry-After"]) > 0


def test_an_id_is_a_conflict_or_the_same_long_after_its_job_ended(api: FlaskClient, store: JobStore) -> None:
    api.post("/v1/jobs", json=a_job("a"))
    run_to_its_end(store, "a")
    again = api.post("/v1/jobs", json=a_job("a"))
    assert (again.status_code, again.get_json()["state"]) == (200, "completed")
    assert api.post("/v1/jobs", json=a_job("a", priority=1)).status_code == 409


def test_the_store_never_holds_more_than_was_accepted(api: FlaskClient, redis_process: Any) -> None:
    api.post("/v1/jobs", json={"jobs": [a_job("a"), a_job("b b")]})
    with redis.Redis.from_url(redis_process.url) as client:
        assert client.keys("prorl:job:*") == []
