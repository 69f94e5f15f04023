"""The commands of who runs a service: dead letters, retry, events, nodes, status, check; on a whole service."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from service import Up, until

from prorl_celery.node.places import run_dir_for

JOB = {
    "instance": {"data_source": "math", "problem": "1+1", "answer": "2"},
    "agent": {"tools": []},
    "max_attempts": 2,
}


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """A service without a backend, where a job fails for want of one."""
    with Up(tmp_path_factory.mktemp("service"), PRORL_BACKEND_WAIT="0.2") as service:
        yield service


def post(up: Up, path: str, body: Any) -> Any:
    data = json.dumps(body).encode()
    request = urllib.request.Request(up.url + path, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def failed(up: Up, job_id: str) -> None:
    post(up, "/v1/jobs", {"job_id": job_id, **JOB})
    until(lambda: up.json("show", job_id)["state"] == "failed", "the job fails")


def test_a_dead_letter_is_listed_told_retried_and_dies_again(up: Up) -> None:
    failed(up, "d1")
    (letter,) = up.json("jobs", "--dead")["jobs"]
    assert (letter["job_id"], letter["error"]["kind"], letter["attempt"]) == ("d1", "backend", 2)
    events = [json.loads(line) for line in up.prorl("events", "d1", "--json").splitlines()]
    assert [event["event"] for event in events if event["event"] != "stage"] == ["attempt_failed", "ended"]
    assert events[0]["stage"] == "init"
    assert events[-1]["state"] == "failed"
    assert "dead letters: 1" in up.prorl("status")
    assert up.prorl("retry", "d1") == "d1: queued\n"
    until(lambda: up.json("show", "d1")["state"] == "failed", "the job fails again")
    assert "stage running" in up.prorl("events", "d1").replace("state=", "").replace(" stage=", " ")
    told = up.prorl("retry", "d1", "nobody", code=1)
    assert told == "d1: queued\n"


def test_a_node_is_drained_and_let_back(up: Up) -> None:
    (node,) = up.json("nodes")
    up.prorl("nodes", "drain", node["node"])
    until(lambda: up.json("nodes")[0]["drained"], "the node has drained")
    post(up, "/v1/jobs", {"job_id": "waits", **JOB})
    assert up.json("show", "waits")["state"] == "queued"
    up.prorl("nodes", "drain", node["node"], "--undo")
    until(lambda: up.json("show", "waits")["state"] == "failed", "the job was taken")


def test_a_live_service_is_checked_damaged_mended_and_checked(up: Up) -> None:
    failed(up, "c1")
    here = ["--data-dir", str(up.data_dir)]
    assert up.prorl("check", *here) == "all adds up\n"
    assert up.json("check", *here) == {"findings": [], "notes": []}
    with redis.Redis(unix_socket_path=str(run_dir_for(up.data_dir.absolute()) / "redis.sock")) as client:
        client.zrem("prorl:index:failed", "c1")
        client.set("prorl:what", "?")
    told = up.prorl("check", *here, code=1)
    assert "not-indexed\tc1" in told
    assert "unknown-key\tprorl:what" in told
    kinds = {finding["kind"] for finding in up.json("check", *here)["findings"]}
    assert kinds == {"not-indexed", "unknown-key"}
    assert "mended: list the job" in up.prorl("check", "--repair", *here)
    assert up.prorl("check", *here) == "all adds up\n"


def test_without_its_redis_a_service_cannot_be_checked(up: Up, tmp_path: Path) -> None:
    told = up.prorl("check", "--redis", f"unix://{tmp_path}/none.sock", code=1)
    assert told == ""
