"""New weights under running jobs: pauses, versions, salts, and what becomes of calls in flight.

A whole service with two rollout processes, and two scripted backends that tell which weights they sampled with.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from e2e_service import Service, eventually, running

from prorl_celery.client import Result
from prorl_celery.testing import ScriptedBackend

pytestmark = pytest.mark.e2e

JOBS = 16
TURNS = 5
GENEROUS_SECONDS = 120.0
SETTINGS = {
    "PRORL_LEASE": "3",
    "PRORL_HEARTBEAT": "1",
    "PRORL_SWEEP": "0.5",
    "PRORL_ROLLOUT_SLOTS": str(JOBS),
    "PRORL_ROLLOUT_PROCESSES": "2",
}


class Trainer:
    """Jobs on two backends, and new weights for them."""

    def __init__(self, service: Service, backends: list[ScriptedBackend]) -> None:
        self.service = service
        self.client = service.client
        self.backends = backends
        self.version = 0

    def submit(self, name: str, count: int = JOBS, **fields: Any) -> list[str]:
        instance = {"data_source": "math", "problem": "What is 1 + 1?", "answer": "2"}
        agent = {"tools": ["think"], "max_turns": TURNS}
        job = {"instance": instance, "agent": agent, **fields}
        return [one.job_id for one in self.client.submit([{"job_id": f"{name}-{n}", **job} for n in range(count)])]

    def reach(self, ids: list[str], turns: int) -> None:
        self.expect(lambda: all(self.client.status(job_id).turns >= turns for job_id in ids))

    def expect(self, true: Any) -> None:
        assert eventually(true, GENEROUS_SECONDS), self.service.logs()

    def count(self, what: str) -> int:
        return sum(backend.stats()[what] for backend in self.backends)

    def load(self, version: int) -> None:
        """Give the backends new weights."""
        for backend in self.backends:
            body = json.dumps({"new_version": str(version)}).encode()
            request = urllib.request.Request(
                backend.url + "/update_weight_version", body, {"Content-Type": "application/json"}
            )
            with urllib.request.urlopen(request, timeout=30) as reply:
                assert reply.status == 200
        self.version = version

    def register(self, **fields: Any) -> None:
        for backend in self.backends:
            self.service.add_backend(backend, policy_version=self.version, **fields)

    def results(self, ids: list[str]) -> list[Result]:
        states = Counter(self.client.wait(job_id, timeout=GENEROUS_SECONDS).state for job_id in ids)
        assert states == {"completed": len(ids)}, self.service.logs()
        return [self.client.result(job_id) for job_id in ids]

    def versions_of(self, result: Result) -> list[int]:
        """The versions of the sampled tokens, each as the backend that sampled it says; the salts fit them."""
        (segment,) = result.segments
        calls = {
            tuple(call["prompt_ids"]): call
            for backend in self.backends
            for call in backend.calls(10_000)
            if call["sampled_ids"]
        }
        ids, versions, at = list(segment.prompt_ids), [], 0
        while at < len(segment.response_ids):
            if not segment.loss_mask[at]:
                assert segment.policy_versions[at] == -1
                ids.append(segment.response_ids[at])
                at += 1
                continue
            call = calls[tuple(ids)]
            version, size = int(call["weight_version"]), len(call["sampled_ids"])
            assert segment.response_ids[at : at + size] == call["sampled_ids"]
            assert segment.policy_versions[at : at + size] == [version] * size
            assert call["cache_salt"].split(".")[0] == f"v{version}"
            versions += [version] * size
            ids += call["sampled_ids"]
            at += size
        return versions


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trainer]:
    with ExitStack() as stack:
        options: dict[str, Any] = {"policy": f"toy:{TURNS},30", "latency": 0.5, "record": 10_000}
        backends = [stack.enter_context(ScriptedBackend(**options)) for _ in range(2)]
        service = stack.enter_context(running(tmp_path_factory.mktemp("policy") / "data", **SETTINGS))
        trainer = Trainer(service, backends)
        trainer.load(12)
        trainer.register()
        yield trainer


@pytest.fixture(autouse=True)
def forgotten(trainer: Trainer) -> None:
    """Two jobs of the same problem say the same: each test looks at its own calls only."""
    for backend in trainer.backends:
        backend.reset()


def test_an_update_under_finish_aborts_nothing_and_every_token_tells_its_weights(trainer: Trainer) -> None:
    """Public report: each version bump aborts all that is in flight."""
    old = trainer.version
    ids = trainer.submit("finish")
    trainer.reach(ids, 1)
    paused = trainer.client.pause("finish", timeout=GENEROUS_SECONDS)
    assert paused["complete"], paused
    assert (paused["processes"], paused["acknowledged"], paused["in_flight"]) == (2, 2, 0)
    assert trainer.count("live") == 0
    calls = trainer.count("calls")
    assert [pause["mode"] for pause in trainer.client.service_status()["pauses"]] == ["finish"]
    assert not eventually(lambda: trainer.count("calls") != calls, 1.0)
    trainer.load(old + 1)
    resumed = trainer.client.resume(old + 1)
    assert (resumed["complete"], resumed["backends"]) == (True, 2)
    results = trainer.results(ids)
    assert trainer.count("aborts") == 0
    seen = [trainer.versions_of(result) for result in results]
    assert all(versions == sorted(versions) for versions in seen)
    assert {version for versions in seen for version in versions} == {old, old + 1}
    assert {turn.policy_version for result in results for turn in result.turns} == {old, old + 1}
    assert any(len(set(versions)) == 2 for versions in seen)  # a job that spans the update


def test_an_update_under_abort_keeps_what_was_sampled(trainer: Trainer) -> None:
    old = trainer.version
    for backend in trainer.backends:
        backend.fail("slow", count=JOBS, seconds=40.0)
    ids = trainer.submit("abort")
    trainer.expect(lambda: trainer.count("live") == JOBS)
    threading.Event().wait(3.0)  # by now each has sampled some tokens
    paused = trainer.client.pause("abort", timeout=GENEROUS_SECONDS)
    assert paused["complete"], paused
    assert trainer.count("live") == 0
    for backend in trainer.backends:
        backend.fail("slow", count=0)
    trainer.load(old + 1)
    trainer.client.resume(old + 1)
    seen = [trainer.versions_of(result) for result in trainer.results(ids)]
    assert all(versions == sorted(versions) and versions[-1] == old + 1 for versions in seen)
    assert any(versions[0] == old for versions in seen)
    assert trainer.count("calls") == JOBS * (TURNS + 1)  # each turn once, and the rest of the turn that was given up


@pytest.mark.slow
def test_a_pause_that_nobody_ends_is_over_by_itself(trainer: Trainer) -> None:
    paused = trainer.client.pause("finish", ttl=3.0)
    assert paused["complete"], paused
    (result,) = trainer.results(trainer.submit("lapsed", 1, timeouts={"rollout": 30}))
    assert trainer.client.service_status()["pauses"] == []
    assert result.state == "completed"


def test_a_backend_with_other_weights_is_told_by_registering_it_again(trainer: Trainer) -> None:
    (job_id,) = trainer.submit("rolling", 1, max_attempts=1)
    trainer.reach([job_id], 1)
    old = trainer.version
    trainer.load(old + 1)
    trainer.register()
    told = trainer.count("calls")
    (result,) = trainer.results([job_id])
    assert result.turns[0].policy_version == old
    # The call that was in flight may have begun under either; those that began later are of the new weights.
    assert [turn.policy_version for turn in result.turns[told:]] == [old + 1] * (TURNS - told)
    assert trainer.version == old + 1


@pytest.mark.slow
def test_a_rollout_process_that_is_killed_holds_up_no_pause(trainer: Trainer) -> None:
    for backend in trainer.backends:
        backend.fail("slow", count=JOBS, seconds=3.0)
    ids = trainer.submit("killed", max_attempts=3)
    trainer.expect(lambda: trainer.count("live") > JOBS // 2)
    answers: list[dict[str, Any]] = []
    pausing = threading.Thread(target=lambda: answers.append(trainer.client.pause(timeout=60.0)))
    pausing.start()
    trainer.expect(lambda: trainer.client.service_status()["pauses"])
    (node,) = trainer.client.nodes()
    os.kill(next(one["pid"] for one in node["processes"] if one["stage"] == "rollout"), signal.SIGKILL)
    pausing.join(GENEROUS_SECONDS)
    (answer,) = answers
    assert answer["complete"], answer
    assert trainer.count("live") == 0
    trainer.load(trainer.version + 1)
    trainer.client.resume(trainer.version)
    assert all(result.reward is not None for result in trainer.results(ids))
