"""Dead letters, their retry, draining nodes, stalls and counts, over HTTP."""

from __future__ import annotations

from flask import Flask
from flask.testing import FlaskClient
from redis_fixtures import claim
from test_metrics import key, samples
from test_operations import beat
from web_helpers import Recorder, a_job, run_to_its_end

from prorl_celery.errors import StoreUnavailable
from prorl_celery.jobs.messages import Message
from prorl_celery.jobs.models import JobError
from prorl_celery.jobs.store import JobStore

ERROR = JobError(kind="sandbox", stage="init", message="none would start", retryable=True)


def let_fail(api: FlaskClient, store: JobStore, job_id: str, attempts: int = 1) -> None:
    """A job that fails in init until no attempt is left."""
    assert api.post("/v1/jobs", json=a_job(job_id, max_attempts=attempts)).status_code == 201
    message: Message | None = Message("init", "init", job_id, 0, 5)
    while message is not None:
        message = store.fail(claim(store, message, op=f"{message.fence}"), ERROR, worked_s=0)


def test_dead_letters_are_listed_the_latest_first_in_pages(api: FlaskClient, store: JobStore) -> None:
    for number in range(5):
        let_fail(api, store, f"d{number}")
    api.post("/v1/jobs", json=a_job("well"))
    run_to_its_end(store, "well")
    seen: list[str] = []
    cursor = ""
    while True:
        page = api.get(f"/v1/jobs?dead=true&limit=2{cursor}").get_json()
        assert all(job["error"]["message"] == "none would start" for job in page["jobs"])
        seen += [job["job_id"] for job in page["jobs"]]
        if page["next"] is None:
            break
        cursor = f"&cursor={page['next']}"
    assert sorted(seen) == ["d0", "d1", "d2", "d3", "d4"]
    assert len(seen) == 5


def test_dead_letters_are_listed_without_another_filter(api: FlaskClient) -> None:
    answer = api.get("/v1/jobs?dead=true&state=failed")
    assert (answer.status_code, answer.get_json()["errors"][0]["field"]) == (422, "dead")
    assert api.get("/v1/jobs?cursor=3-4").status_code == 422
    assert api.get("/v1/jobs?dead=true&cursor=34").status_code == 422


def test_a_retry_is_a_new_life(api: FlaskClient, store: JobStore, publisher: Recorder) -> None:
    let_fail(api, store, "a", attempts=2)
    publisher.messages.clear()
    answer = api.post("/v1/jobs/a/retry")
    assert answer.status_code == 202
    status = answer.get_json()
    assert (status["state"], status["stage"], status["attempt"], status["error"]) == ("queued", "init", 1, None)
    assert [message.job_id for message in publisher.messages] == ["a"]
    assert api.get("/v1/jobs/a/result").status_code == 409
    assert api.get("/v1/jobs?dead=true").get_json()["jobs"] == []
    again = claim(store, publisher.messages[0])
    store.finish(again, state="completed", finish_reason="stop", reward=1.0, worked_s=0)
    assert api.get("/v1/jobs/a/result").get_json()["reward"] == 1.0


def test_only_what_has_failed_can_be_retried(api: FlaskClient, store: JobStore) -> None:
    api.post("/v1/jobs", json={"jobs": [a_job("live"), a_job("well")]})
    run_to_its_end(store, "well")
    for job_id in ("live", "well"):
        refused = api.post(f"/v1/jobs/{job_id}/retry")
        assert (refused.status_code, refused.get_json()["type"]) == (409, "urn:prorl:problem:job-not-failed")
    assert api.post("/v1/jobs/nobody/retry").status_code == 404


def test_a_retry_whose_message_the_broker_does_not_take_is_left_to_the_sweep(
    api: FlaskClient, store: JobStore, publisher: Recorder
) -> None:
    let_fail(api, store, "a")
    publisher.error = StoreUnavailable("no broker")
    assert api.post("/v1/jobs/a/retry").status_code == 202
    assert store.status("a").state == "queued"


def test_a_node_drains_until_that_is_undone(app: Flask) -> None:
    api = app.test_client()
    beat(app, "n1")
    beat(app, "n2")
    answer = api.post("/v1/nodes/n1/drain", json={"drain": True})
    assert answer.status_code == 200
    (node,) = answer.get_json()["nodes"]
    assert (node["node"], node["draining"], node["drained"]) == ("n1", True, False)
    told = {node["node"]: node["draining"] for node in api.get("/v1/nodes").get_json()["nodes"]}
    assert told == {"n1": True, "n2": False}
    assert api.post("/v1/nodes/n1/drain", json={"drain": False}).get_json()["nodes"][0]["draining"] is False
    assert api.post("/v1/nodes/nowhere/drain", json={}).status_code == 404
    assert api.post("/v1/nodes/n1/drain", json={"drain": "yes"}).status_code == 422


def test_what_went_wrong_is_counted(app: Flask, store: JobStore) -> None:
    api = app.test_client()
    beat(app, "n1")
    let_fail(api, store, "a", attempts=3)
    status = api.get("/v1/status").get_json()
    assert (status["dead"], status["stalled"], status["stalled_jobs"]) == (1, 0, [])
    assert status["counts"] == {"retries:sandbox:init": 2, "failed:sandbox": 1}
    told = samples(app)
    assert told[key("prorl_retries_total", kind="sandbox", stage="init")] == 2
    assert told[key("prorl_failed_jobs_total", kind="sandbox")] == 1
    assert told[key("prorl_rollouts_gone_on_total")] == 0
    assert told[key("prorl_dead_jobs")] == 1


def test_a_stalled_job_is_told_with_what_it_is_at(app: Flask, store: JobStore) -> None:
    api = app.test_client()
    api.post("/v1/jobs", json=a_job("a"))
    held = claim(store, Message("init", "init", "a", 0, 5), process="n1 b1 init-0 ab")
    store.note_stall("a", held.fence, {"act": "sandbox start", "thread": "slot-3", "since_s": 321.0})
    stalled = api.get("/v1/jobs/a").get_json()["stalled"]
    assert 321 <= stalled.pop("seconds") < 400
    assert stalled == {
        "stage": "init",
        "node": "n1",
        "process": "n1 b1 init-0 ab",
        "thread": "slot-3",
        "act": "sandbox start",
    }
    status = api.get("/v1/status").get_json()
    assert status["stalled"] == 1
    assert [job["stalled"]["act"] for job in status["stalled_jobs"]] == ["sandbox start"]
    assert samples(app)[key("prorl_stalled_jobs")] == 1
