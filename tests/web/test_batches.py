"""Batches over HTTP: asked for, fed, watched, taken, cancelled; jobs are run by the test, as workers do."""

from __future__ import annotations

from array import array
from typing import Any

import pytest
import redis
from flask.testing import FlaskClient
from web_helpers import Recorder

from prorl_celery.jobs.store import JobStore
from prorl_celery.jobs.turns import Turn
from prorl_celery.scheduling.backends import Backend, BackendRegistry
from prorl_celery.settings import Settings


def prompts(count: int, first: int = 0) -> list[dict[str, Any]]:
    return [
        {"prompt_id": f"p{n}", "instance": {"data_source": "echo", "text": str(n)}} for n in range(first, first + count)
    ]


def a_batch(batch_id: str = "b", **more: Any) -> dict[str, Any]:
    return {"batch_id": batch_id, "target_groups": 2, "samples_per_group": 2, "prompts": prompts(4)} | more


class Workers:
    """Takes the messages that were published, and ends each job with the reward that is asked for."""

    def __init__(self, store: JobStore, publisher: Recorder) -> None:
        self._store = store
        self._publisher = publisher
        self._taken = 0

    def run(self, **rewards: list[float | None]) -> list[str]:
        """Work off all messages there are. `p0=[0, 1]`: the rewards of its samples; None: the job fails for good."""
        done = []
        while self._taken < len(self._publisher.messages):
            message = self._publisher.messages[self._taken]
            self._taken += 1
            claim = self._store.claim(
                "init", message.job_id, message.fence, node="n", process="p", op=f"abc{self._taken}"
            )
            if claim is None:
                continue
            name = f"p{claim.request.instance.data()['text']}"
            reward = rewards.get(name, [0.0] * 99)[int(message.job_id.split(":")[2])]
            state = "failed" if reward is None else "completed"
            self._store.finish(claim, state=state, finish_reason="stop", reward=reward, worked_s=2.0)
            done.append(message.job_id)
        return done


@pytest.fixture
def workers(make: Any, settings: Any, store: JobStore, publisher: Recorder) -> Workers:
    own = JobStore(store._client, settings, publish=publisher.publish_all)
    return Workers(own, publisher)


def test_a_batch_gives_exactly_its_target_of_groups_that_differ(api: FlaskClient, workers: Workers) -> None:
    made = api.post("/v1/batches", json=a_batch())
    assert made.status_code == 201, made.get_json()
    assert made.get_json()["groups"]["inflight"] == 4
    workers.run(p0=[0, 0], p1=[0, 1], p2=[1, 1], p3=[1, 0])
    page = api.get("/v1/batches/b/groups").get_json()
    assert [group["prompt_id"] for group in page["groups"]] == ["p1", "p3"]
    assert [[r["reward"] for r in group["results"]] for group in page["groups"]] == [[0.0, 1.0], [1.0, 0.0]]
    assert page["state"] == "complete"
    assert api.get(f"/v1/batches/b/groups?after={page['next']}").get_json()["done"]
    counts = api.get("/v1/batches/b").get_json()
    assert (counts["groups"]["uniform_0"], counts["groups"]["uniform_1"]) == (1, 1)
    assert counts["waste"]["uniform"]["seconds"] == 8.0


def test_what_the_prompts_cannot_give_is_exhausted_with_what_there_is(api: FlaskClient, workers: Workers) -> None:
    api.post("/v1/batches", json=a_batch())
    workers.run(p1=[0, 1])
    status = api.get("/v1/batches/b?wait=5").get_json()
    assert (status["state"], status["groups"]["informative"]) == ("exhausted", 1)


def test_the_time_left_is_never_less_than_none(api: FlaskClient, workers: Workers) -> None:
    """Also within the second in which the batch was made."""
    for number in range(3):
        api.post("/v1/batches", json=a_batch(f"b{number}", more_prompts=True))
        workers.run(p0=[0, 1])
        assert api.get(f"/v1/batches/b{number}").get_json()["seconds_to_target"] >= 0


def test_a_batch_asks_for_prompts_and_takes_them(api: FlaskClient, workers: Workers) -> None:
    api.post("/v1/batches", json=a_batch(more_prompts=True))
    workers.run()
    assert api.get("/v1/batches/b?wait=5").get_json()["state"] == "waiting_for_prompts"
    added = api.post("/v1/batches/b/prompts", json={"prompts": prompts(2, 4), "more_prompts": False})
    assert (added.status_code, added.get_json()["added"]) == (200, 2)
    again = api.post("/v1/batches/b/prompts", json={"prompts": prompts(2, 4), "more_prompts": False})
    assert (again.status_code, again.get_json()["added"]) == (200, 0)
    workers.run(p4=[0, 1], p5=[1, 0])
    assert api.get("/v1/batches/b").get_json()["state"] == "complete"
    late = api.post("/v1/batches/b/prompts", json={"prompts": prompts(1, 9)})
    assert (late.status_code, late.get_json()["type"]) == (409, "urn:prorl:problem:batch-ended")


def test_a_batch_that_was_told_of_the_last_prompts_asks_for_no_more(api: FlaskClient, workers: Workers) -> None:
    """Who waits until it asks would else be told so at once, for as long as what runs takes."""
    api.post("/v1/batches", json=a_batch(more_prompts=True))
    assert api.get("/v1/batches/b").get_json()["state"] == "waiting_for_prompts"
    told = api.post("/v1/batches/b/prompts", json={"more_prompts": False}).get_json()["batch"]
    assert (told["state"], told["groups"]["inflight"]) == ("filling", 4)
    workers.run()
    assert api.get("/v1/batches/b").get_json()["state"] == "exhausted"


def test_at_the_target_what_waits_never_starts(api: FlaskClient, workers: Workers, publisher: Recorder) -> None:
    api.post("/v1/batches", json=a_batch(target_groups=1, prompts=prompts(3)))
    ran = workers.run(p0=[0, 1], p1=[0, 1])
    assert ran == ["b:0:0", "b:0:1"]
    assert api.get("/v1/jobs/b:1:0").get_json()["state"] == "cancelled"
    assert api.get("/v1/batches/b").get_json()["groups"]["revoked"] == 2
    assert len(publisher.messages) == 6


def test_a_failed_sample_is_drawn_anew_twice_and_is_never_a_zero(api: FlaskClient, workers: Workers) -> None:
    api.post("/v1/batches", json=a_batch(target_groups=1, prompts=prompts(1), min_samples=1))
    ran = workers.run(p0=[None, 1.0])
    assert ran == ["b:0:0", "b:0:1", "b:0:0:r1", "b:0:0:r2"]
    status = api.get("/v1/batches/b").get_json()
    # One sample is scored, the other failed: they do not differ, as they would if a failure were a zero.
    assert (status["state"], status["groups"]["uninformative"], status["jobs"]["redrawn"]) == ("exhausted", 1, 2)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"samples_per_group": 1}, ""),
        ({"target_groups": 0}, "target_groups"),
        ({"prompts": [*prompts(1), *prompts(1)]}, "prompts"),
        ({"prompts": [{"prompt_id": "x", "instance": {"data_source": "nobody"}}]}, "prompts.0.instance.data_source"),
        ({"informative": {"min_spread": -1}}, "informative.min_spread"),
        ({"defaults": {"agent": {"tools": ["axe"]}}}, "defaults.agent.tools"),
        ({"unknown": 1}, "unknown"),
    ],
)
def test_bad_input_is_named(api: FlaskClient, change: dict[str, Any], field: str) -> None:
    refused = api.post("/v1/batches", json=a_batch(**change))
    assert refused.status_code == 422, refused.get_json()
    assert field in [error["field"] for error in refused.get_json()["errors"]]
    assert api.get("/v1/batches/b").status_code == 404


def test_two_bodies_of_one_id_conflict_and_the_same_is_the_same(api: FlaskClient) -> None:
    assert api.post("/v1/batches", json=a_batch()).status_code == 201
    assert api.post("/v1/batches", json=a_batch()).status_code == 200
    refused = api.post("/v1/batches", json=a_batch(target_groups=1))
    assert (refused.status_code, refused.get_json()["batch_id"]) == (409, "b")
    other = {"prompt_id": "p0", "instance": {"data_source": "echo", "text": "another"}}
    assert api.post("/v1/batches/b/prompts", json={"prompts": [other]}).status_code == 409


def test_the_next_batch_adopts_finished_samples(api: FlaskClient, workers: Workers) -> None:
    api.post("/v1/batches", json=a_batch(target_groups=1, prompts=prompts(2), on_target="carry_over"))
    # The first group is complete when the second has one sample.
    first = api.get("/v1/batches/b").get_json()
    assert first["groups"]["inflight"] == 2
    workers.run(p0=[0, 1], p1=[0, 1])
    assert api.get("/v1/batches/b").get_json()["groups"]["inflight"] == 1
    adopted = api.post("/v1/batches", json=a_batch("c", target_groups=1, prompts=[], adopt="b"))
    assert (adopted.status_code, adopted.get_json()["groups"]["carried"]) == (201, 1)
    workers.run(p1=[0, 1])
    page = api.get("/v1/batches/c/groups").get_json()
    assert [(group["batch_id"], group["prompt_id"]) for group in page["groups"]] == [("b", "p1")]
    assert api.post("/v1/batches", json=a_batch("d", adopt="b")).status_code == 409


def test_the_age_of_what_is_adopted_counts_in_versions_of_its_own_model(
    api: FlaskClient, workers: Workers, store: JobStore, publisher: Recorder, raw_redis: redis.Redis, settings: Settings
) -> None:
    backends = BackendRegistry(raw_redis, settings)
    for url, model, version in (("http://m", "m", 5), ("http://n", "n", 50)):
        backends.put(Backend(url=url, model=model, policy_version=version))
    of_m = {"defaults": {"sampling_params": {"model": "m"}}}
    api.post("/v1/batches", json=a_batch(target_groups=1, prompts=prompts(2), on_target="carry_over", **of_m))
    early = publisher.messages.pop(2)
    claim = store.claim("init", early.job_id, early.fence, node="n", process="p", op="abcdef")
    assert claim is not None
    turn = Turn(index=0, sampled_ids=array("i", [1]), logprobs=array("f", [-1.0]), versions=array("i", [5]))
    store.append_turn(claim, turn)
    store.finish(claim, state="completed", finish_reason="stop", reward=0.0, worked_s=1.0)
    workers.run(p0=[0, 1])
    adopted = api.post("/v1/batches", json=a_batch("c", prompts=[], adopt="b", max_staleness=0, **of_m))
    assert adopted.get_json()["groups"]["carried"] == 1


def test_a_cancel_ends_all_of_it(api: FlaskClient, workers: Workers) -> None:
    api.post("/v1/batches", json=a_batch())
    assert api.delete("/v1/batches/b").status_code == 202
    assert workers.run() == []
    status = api.get("/v1/batches/b").get_json()
    assert (status["state"], status["jobs"]["live"], status["groups"]["revoked"]) == ("cancelled", 0, 4)
    assert api.delete("/v1/batches/b").status_code == 200
    assert api.delete("/v1/batches/none").status_code == 404


def test_status_and_metrics_tell_batches_groups_and_waste(api: FlaskClient, workers: Workers) -> None:
    api.post("/v1/batches", json=a_batch("open", more_prompts=True, prompts=[]))
    api.post("/v1/batches", json=a_batch())
    workers.run(p0=[0, 0], p1=[0, 1], p2=[1, 1], p3=[1, 0])
    status = api.get("/v1/status").get_json()
    assert status["batches"] == {"filling": 0, "waiting_for_prompts": 1}
    assert {name: status["counts"][name] for name in ("batches:complete", "groups:won", "groups:uniform")} == {
        "batches:complete": 1,
        "groups:won": 2,
        "groups:uniform": 2,
    }
    told = api.get("/metrics").get_data(as_text=True).splitlines()
    assert 'prorl_batches{state="waiting_for_prompts"} 1' in told
    assert 'prorl_batches_ended{state="complete"} 1' in told
    assert 'prorl_groups_closed{state="uniform"} 2' in told
    assert 'prorl_wasted_seconds{why="uniform"} 8.0' in told


def test_a_page_of_groups_ends_where_it_becomes_too_long_and_the_next_goes_on(
    api: FlaskClient, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.post("/v1/batches", json=a_batch(target_groups=3, prompts=prompts(3)))
    workers.run(p0=[0, 1], p1=[0, 1], p2=[0, 1])
    whole = api.get("/v1/batches/b/groups").get_json()
    assert (len(whole["groups"]), whole["next"], whole["done"]) == (3, 3, True)
    monkeypatch.setattr("web.batches.MAX_PAGE_BYTES", 100)
    seen, page = [], {"next": 0, "done": False}
    while not page["done"]:
        page = api.get(f"/v1/batches/b/groups?after={page['next']}").get_json()
        seen.append(page["groups"])
    assert [len(groups) for groups in seen] == [1, 1, 1]
    assert [group for groups in seen for group in groups] == whole["groups"]
