"""Whatever is sent, the answer is no 500."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

from flask.testing import FlaskClient
from hypothesis import HealthCheck, given, settings, strategies
from web_helpers import a_job

JSON = strategies.recursive(
    strategies.none()
    | strategies.booleans()
    | strategies.integers()
    | strategies.floats()
    | strategies.text(max_size=20),
    lambda inner: (
        strategies.lists(inner, max_size=4) | strategies.dictionaries(strategies.text(max_size=12), inner, max_size=4)
    ),
    max_leaves=12,
)
NAMES = [
    "job_id",
    "instance",
    "sampling_params",
    "agent",
    "timeouts",
    "llm",
    "max_attempts",
    "priority",
    "tags",
    "jobs",
]
JOB_LIKE = strategies.dictionaries(strategies.sampled_from(NAMES), JSON, max_size=6).flatmap(
    lambda job: strategies.sampled_from(
        [
            job,
            {**a_job(), **job},
            {"jobs": [job]},
            {"jobs": [{**a_job(), **job}]},
            {"instance": {"data_source": "echo", **job}},
        ]
    )
)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(body=JOB_LIKE | JSON)
def test_no_json_body_is_answered_with_a_500(api: FlaskClient, body: Any) -> None:
    for path in ("/v1/jobs", "/v1/backends", "/v1/policy/pause", "/v1/policy/resume", "/v1/nodes/n1/drain"):
        answer = api.post(path, data=json.dumps(body), content_type="application/json")
        assert answer.status_code < 500, answer.get_data(as_text=True)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=strategies.binary(max_size=200))
def test_no_bytes_are_answered_with_a_500(api: FlaskClient, body: bytes) -> None:
    assert api.post("/v1/jobs", data=body, content_type="application/json").status_code < 500


WORDS = strategies.sampled_from(
    ["wait", "tokens", "state", "limit", "cursor", "after", "tag", "batch_id", "url", "mode", "dead"]
)
VALUES = strategies.text(max_size=12) | strategies.sampled_from(
    ["-1", "nan", "inf", "1e999", "0", "queued", "drain", "0-0", "true", "3-4"]
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(query=strategies.dictionaries(WORDS, VALUES, max_size=4), tail=strategies.text(max_size=10))
def test_no_query_and_no_path_is_answered_with_a_500(api: FlaskClient, query: dict[str, str], tail: str) -> None:
    if query.get("wait") not in (None, "0", "-1", "nan", ""):
        query = {**query, "wait": "0"}
    tail = quote(tail, safe="")
    for method, path in (
        ("GET", "/v1/jobs"), ("GET", "/v1/results"), ("DELETE", "/v1/backends"), ("GET", "/v1/jobs/a/result"),
        ("GET", f"/v1/jobs/{tail}"), ("DELETE", f"/v1/jobs/{tail}"), ("GET", f"/v1/jobs/{tail}/result"),
        ("GET", "/v1/jobs/a/events"), ("GET", f"/v1/jobs/{tail}/events"), ("POST", f"/v1/jobs/{tail}/retry"),
    ):  # fmt: skip
        answer = api.open(path, method=method, query_string=query)
        assert answer.status_code < 500, (method, path, query, answer.get_data(as_text=True))
