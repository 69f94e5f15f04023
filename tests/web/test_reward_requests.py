"""Jobs with a reward server, or with a shaped reward: what is accepted, what is refused, how it says so."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient
from web_helpers import a_job

from prorl_celery.jobs.models import JobRequest
from prorl_celery.jobs.store import request_body
from web.nodes import ProcessRecord

URL = "http://127.0.0.1:9/score"
OVERLONG = {"max_tokens": 100, "buffer_tokens": 10}


def with_truth(**fields: Any) -> dict[str, Any]:
    job = a_job("a", **fields)
    return {**job, "instance": {**job["instance"], "ground_truth": "7"}}


def fields(response: Any) -> dict[str, str]:
    assert response.status_code == 422, response.get_data(as_text=True)
    return {error["field"]: error["message"] for error in response.get_json()["errors"]}


@pytest.mark.parametrize(
    ("job", "field"),
    [
        (with_truth(reward_url="ftp://a/"), "reward_url"),
        (with_truth(reward_url="http://"), "reward_url"),
        (with_truth(reward_url="http://a b/"), "reward_url"),
        (with_truth(reward_url="http://a:99999/"), "reward_url"),
        (with_truth(reward_url="http://a/" + "x" * 2048), "reward_url"),
        (with_truth(reward_url=7), "reward_url"),
        (a_job("a", reward_url=URL), "instance.ground_truth"),
        (a_job("a", reward_shaping={}), "reward_shaping"),
        (a_job("a", reward_shaping={"length": {}}), "reward_shaping.length"),
        (a_job("a", reward_shaping={"overlong": {"max_tokens": 5}}), "reward_shaping.overlong.buffer_tokens"),
        (
            a_job("a", reward_shaping={"overlong": {"max_tokens": 5, "buffer_tokens": 6}}),
            "reward_shaping.overlong.buffer_tokens",
        ),
        (a_job("a", reward_shaping={"overlong": {**OVERLONG, "max_tokens": 0}}), "reward_shaping.overlong.max_tokens"),
        (a_job("a", reward_shaping={"overlong": {**OVERLONG, "penalty": -1}}), "reward_shaping.overlong.penalty"),
        (
            a_job("a", reward_shaping={"repetition": {"ngram": 0, "penalty": 1}}),
            "reward_shaping.repetition.ngram",
        ),
        (a_job("a", reward_shaping={"repetition": {"ngram": 4}}), "reward_shaping.repetition.penalty"),
    ],
)
def test_a_bad_field_is_named(api: FlaskClient, job: dict[str, Any], field: str) -> None:
    assert field in fields(api.post("/v1/jobs", json=job))


def test_what_is_refused_of_a_url_is_not_repeated(api: FlaskClient) -> None:
    told = api.post("/v1/jobs", json=with_truth(reward_url="http://user:hushhush@h:port/"))
    assert "hushhush" not in told.get_data(as_text=True)


def test_jobs_with_both_are_accepted_once(api: FlaskClient) -> None:
    shaping = {"overlong": OVERLONG, "repetition": {"ngram": 40, "penalty": 0.5}}
    job = with_truth(reward_url=URL, reward_shaping=shaping)
    assert [api.post("/v1/jobs", json=job).status_code for _ in range(2)] == [201, 200]
    assert api.post("/v1/jobs", json={**job, "reward_url": URL + "s"}).status_code == 409


def test_a_job_without_them_has_the_fingerprint_that_it_had_before_there_were_any() -> None:
    body = request_body(JobRequest.model_validate(a_job("a")))
    assert b"reward" not in body
    assert request_body(JobRequest.model_validate({**a_job("a"), "reward_url": None})) == body


def test_the_setting_says_which_servers_may_be_asked(make: Callable[..., Flask]) -> None:
    api = make(reward_urls=("http://127.0.0.1:9/",)).test_client()
    assert api.post("/v1/jobs", json=with_truth(reward_url=URL)).status_code == 201
    refused = fields(api.post("/v1/jobs", json={"jobs": [with_truth(reward_url="http://169.254.169.254/")]}))
    assert "PRORL_REWARD_URLS" in refused["jobs.0.reward_url"]


def test_with_tokens_no_server_may_be_asked_unless_the_setting_names_it(make: Callable[..., Flask]) -> None:
    entry = "t:submit+read:" + hashlib.sha256(b"secret").hexdigest()
    headers = {"Authorization": "Bearer secret"}
    api = make(api_tokens=(entry,)).test_client()
    refused = fields(api.post("/v1/jobs", json=with_truth(reward_url=URL), headers=headers))
    assert "PRORL_REWARD_URLS names none" in refused["reward_url"]
    api = make(api_tokens=(entry,), reward_urls=("http://127.0.0.1:9",)).test_client()
    assert api.post("/v1/jobs", json=with_truth(reward_url=URL), headers=headers).status_code == 201


def test_a_batch_says_both_in_its_defaults(make: Callable[..., Flask]) -> None:
    api = make(reward_urls=("http://good/",)).test_client()
    instance = {**a_job("a")["instance"], "ground_truth": 1}
    batch = {"batch_id": "b", "target_groups": 1, "samples_per_group": 2}
    prompts = [{"prompt_id": "p", "instance": instance}]
    defaults: dict[str, Any] = {"reward_url": "http://good/", "reward_shaping": {"overlong": OVERLONG}}
    assert api.post("/v1/batches", json={**batch, "prompts": prompts, "defaults": defaults}).status_code == 201
    bad = {**batch, "batch_id": "c", "prompts": prompts}
    refused = fields(api.post("/v1/batches", json={**bad, "defaults": {"reward_url": "http://bad/"}}))
    assert set(refused) == {"defaults.reward_url"}
    worse = {"overlong": {"max_tokens": 1, "buffer_tokens": 2}}
    refused = fields(api.post("/v1/batches", json={**bad, "defaults": {"reward_shaping": worse}}))
    assert set(refused) == {"defaults.reward_shaping.overlong.buffer_tokens"}


def test_the_document_describes_both(api: FlaskClient) -> None:
    schemas = api.get("/openapi.json").get_json()["components"]["schemas"]
    assert {"reward_url", "reward_shaping"} <= set(schemas["JobRequest"]["properties"])
    assert set(schemas["Overlong"]["properties"]) == {"max_tokens", "buffer_tokens", "penalty"}


def test_the_metrics_tell_how_the_reward_servers_do(app: Flask, api: FlaskClient) -> None:
    server = {"server": "http://r:80", "calls": {"scored": 3, "failed": 1}, "seconds": 0.5, "held_off": True}
    record = {
        "id": "x",
        "name": "eval-0",
        "stage": "eval",
        "slots": 4,
        "busy": 0,
        "handlers": [],
        "reward_servers": [server],
    }
    nodes = app.extensions["prorl"].nodes
    nodes.beat({"node": "n1", "boot": "b1"})
    nodes.beat_process("n1", "b1", record)
    nodes.beat_process("n1", "b1", {**record, "id": "y"})
    told = api.get("/metrics").get_data(as_text=True)
    labels = 'node="n1",process="eval-0",server="http://r:80"'
    assert f'prorl_reward_calls{{{labels},outcome="scored"}} 6' in told
    assert f"prorl_reward_call_seconds{{{labels}}} 1.0" in told
    assert f"prorl_reward_servers_held_off{{{labels}}} 2" in told
    assert ProcessRecord(name="old", stage="eval").reward_servers == []
