"""Pausing and resuming by HTTP: what a trainer is told, and when."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from flask.testing import FlaskClient

from prorl_celery.scheduling.backends import Backend, BackendRegistry
from prorl_celery.scheduling.policy import PolicyRegistry, Told
from prorl_celery.settings import Settings
from prorl_celery.testing import ScriptedBackend


@pytest.fixture
def policy(raw_redis: redis.Redis, settings: Settings) -> PolicyRegistry:
    return PolicyRegistry(raw_redis, settings)


@pytest.fixture
def process(policy: PolicyRegistry) -> Iterator[ObedientProcess]:
    process = ObedientProcess(policy)
    yield process
    process.stop()


class ObedientProcess:
    """A process with calls in flight, which obeys and lets them end when it is told to."""

    def __init__(self, policy: PolicyRegistry) -> None:
        self._policy = policy
        self.in_flight = 0
        self.pauses_seen = threading.Semaphore(0)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._policy.look("p1", Told(epoch=0))

    def start(self, in_flight: int = 0) -> None:
        self.in_flight = in_flight
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(10)

    def _run(self) -> None:
        epoch = 0
        while not self._stop.wait(0.01):
            state = self._policy.look("p1", Told(epoch=epoch, in_flight={"m": self.in_flight}))
            if state.epoch != epoch and state.pauses:
                self.pauses_seen.release()
            epoch = state.epoch


def post(api: FlaskClient, path: str, **body: Any) -> dict[str, Any]:
    answer = api.post(f"/v1/policy/{path}", json=body)
    assert answer.status_code == 200, answer.get_json()
    return dict(answer.get_json())


def test_without_processes_a_pause_is_complete_at_once(api: FlaskClient) -> None:
    answer = post(api, "pause")
    assert answer["complete"]
    assert (answer["paused"], answer["mode"], answer["model"], answer["processes"]) == (True, "finish", None, 0)
    (shown,) = api.get("/v1/status").get_json()["pauses"]
    assert (shown["mode"], shown["model"], shown["epoch"]) == ("finish", None, answer["epoch"])
    assert post(api, "resume", version=3)["pauses_ended"] == 1
    assert api.get("/v1/status").get_json()["pauses"] == []


def test_a_pause_is_answered_when_the_last_call_has_ended(api: FlaskClient, process: ObedientProcess) -> None:
    process.start(in_flight=2)
    answers: list[dict[str, Any]] = []
    caller = threading.Thread(target=lambda: answers.append(post(api, "pause", model="m", timeout=60)))
    caller.start()
    assert process.pauses_seen.acquire(timeout=30)
    assert answers == []
    process.in_flight = 0
    caller.join(30)
    (answer,) = answers
    assert answer["complete"]
    assert (answer["processes"], answer["acknowledged"], answer["in_flight"]) == (1, 1, 0)


def test_a_pause_whose_time_is_over_stands_all_the_same(api: FlaskClient, process: ObedientProcess) -> None:
    process.start(in_flight=2)
    answer = post(api, "pause", timeout=0.5, mode="abort")
    assert not answer["complete"]
    assert answer["paused"]
    assert answer["in_flight"] == 2
    assert len(api.get("/v1/status").get_json()["pauses"]) == 1


def test_a_pause_that_lapses_is_no_complete_one(api: FlaskClient, process: ObedientProcess) -> None:
    process.start(in_flight=2)
    answer = post(api, "pause", timeout=60, ttl=0.2)
    assert not answer["complete"]
    assert not answer["paused"]


def test_a_resume_tells_the_models_backends_their_version(
    api: FlaskClient, raw_redis: redis.Redis, settings: Settings, process: ObedientProcess
) -> None:
    backends = BackendRegistry(raw_redis, settings)
    for url, model in (("http://m", "m"), ("http://n", "n")):
        backends.put(Backend(url=url, model=model, policy_version=1))
    process.start()
    assert post(api, "pause", model="m")["backends"] == 1
    answer = post(api, "resume", version=13, model="m")
    assert answer["complete"]
    assert (answer["version"], answer["backends"], answer["pauses_ended"]) == (13, 1, 1)
    shown = {one["url"]: one["policy_version"] for one in api.get("/v1/backends").get_json()["backends"]}
    assert shown == {"http://m": 13, "http://n": 1}


def test_backends_that_take_no_salt_forget_their_prefixes_before_a_job_is_let_go(
    api: FlaskClient, raw_redis: redis.Redis, settings: Settings
) -> None:
    backends = BackendRegistry(raw_redis, settings)
    with ScriptedBackend() as legacy, ScriptedBackend() as salted, ScriptedBackend() as other:
        for backend, kind, model in ((legacy, "legacy", "m"), (salted, "vllm", "m"), (other, "legacy", "n")):
            backends.put(Backend(url=backend.url, model=model, kind=kind, gives_ids=True, policy_version=1))
        backends.put(Backend(url="http://127.0.0.1:9", model="m", kind="legacy", policy_version=1))
        post(api, "pause", model="m")
        assert post(api, "resume", model="m")["stale_caches"] == []  # the weights are the same
        post(api, "pause", model="m")
        answer = post(api, "resume", version=2)
        resets = [backend.stats()["cache_resets"] for backend in (legacy, salted, other)]
        assert (answer["stale_caches"], answer["backends"], resets) == (["http://127.0.0.1:9"], 3, [1, 0, 0])
        for backend in (legacy, salted):
            spec = {"url": backend.url, "model": "scripted", "tokenizer": str(backend.tokenizer_dir)}
            kind = "legacy" if backend is legacy else "vllm"
            api.post("/v1/backends", json={**spec, "kind": kind, "policy_version": 3})
        assert [backend.stats()["cache_resets"] for backend in (legacy, salted)] == [2, 0]


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("pause", {"mode": "kill"}, "mode"),
        ("pause", {"timeout": -1}, "timeout"),
        ("pause", {"ttl": 0}, "ttl"),
        ("pause", {"model": ""}, "model"),
        ("pause", {"until": 5}, "until"),
        ("resume", {"version": -1}, "version"),
        ("resume", {"version": 2**31}, "version"),
        ("resume", {"version": "13"}, "version"),
    ],
)
def test_bad_input_is_named(api: FlaskClient, path: str, body: dict[str, Any], field: str) -> None:
    answer = api.post(f"/v1/policy/{path}", json=body)
    assert answer.status_code == 422
    assert [error["field"] for error in answer.get_json()["errors"]] == [field]
