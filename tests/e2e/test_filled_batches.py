"""Batches on a whole service, with samples whose success the scripted backend tosses by seed: what comes out is what
the seeds say.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from e2e_service import Service, eventually, running

from prorl_celery.jobs.batch_models import LIVE, BatchStatus, GroupView
from prorl_celery.jobs.store import SEED_STEP
from prorl_celery.testing import ScriptedBackend
from prorl_celery.testing.scripted.policies import lucky

pytestmark = pytest.mark.e2e

P, SERVER_SEED, SEED = 0.3, 11, 5
SAMPLES = 4
GENEROUS_SECONDS = 120.0
DEFAULTS: dict[str, Any] = {"sampling_params": {"model": "scripted", "seed": SEED}, "agent": {"tools": []}}


@pytest.fixture(scope="module")
def tosser() -> Iterator[ScriptedBackend]:
    """A backend that answers a sum rightly with the chance `P`."""
    with ScriptedBackend(policy=f"answer:{P}", seed=SERVER_SEED, record=4000) as backend:
        yield backend


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory, tosser: ScriptedBackend) -> Iterator[Service]:
    slots = ("--rollout", "16", "--init", "4", "--eval", "4")
    options = {"PRORL_LEASE": "6", "PRORL_HEARTBEAT": "1", "PRORL_SWEEP": "0.5", "PRORL_REPUBLISH_AFTER": "3"}
    with running(tmp_path_factory.mktemp("batches") / "data", *slots, **options) as service:
        service.add_backend(tosser, policy_version=1)
        yield service


def sums(first: int, count: int) -> list[dict[str, Any]]:
    """Prompts that differ from one another, and from those of other places."""
    return [
        {
            "prompt_id": f"{n}",
            "instance": {"data_source": "math", "problem": f"What is {n} + 3?", "answer": n + 3},
        }
        for n in range(first, first + count)
    ]


def tossed(n: int, samples: int = SAMPLES) -> list[float]:
    """What the samples of the prompt of that number score."""
    seeds = [(SEED + k * SEED_STEP) % 2**63 for k in range(samples)]
    return [float(lucky(P, SERVER_SEED, f"{n} + 3", seed)) for seed in seeds]


def differs(n: int) -> bool:
    return len(set(tossed(n))) > 1


def mixed(first: int, count: int) -> list[dict[str, Any]]:
    """As many prompts whose samples differ."""
    found = [prompt for prompt in sums(first, 20 * count) if differs(int(prompt["prompt_id"]))]
    return found[:count]


def ended(service: Service, batch_id: str) -> BatchStatus:
    status = service.client.batches.status
    assert eventually(lambda: status(batch_id).state not in LIVE, GENEROUS_SECONDS), service.logs()
    return status(batch_id)


def groups_of(service: Service, batch_id: str) -> list[GroupView]:
    return service.client.batches.groups(batch_id, limit=100).groups


def assert_as_tossed(groups: list[GroupView]) -> None:
    for group in groups:
        assert [result["reward"] for result in group.results] == tossed(int(group.prompt_id), group.samples)


def test_the_funnel_is_the_one_that_the_seeds_say(filled: Service) -> None:
    told = [tossed(n) for n in range(36)]
    informative = [n for n, rewards in enumerate(told) if len(set(rewards)) > 1]
    assert 6 < len(informative) < 30
    filled.client.batches.create(
        {
            "batch_id": "funnel", "target_groups": 60, "samples_per_group": SAMPLES, "prompts": sums(0, 36),
            "more_prompts": False, "defaults": DEFAULTS,
        }
    )  # fmt: skip
    status = ended(filled, "funnel")
    assert status.state == "exhausted"
    counts = status.groups
    assert (counts.informative, counts.uniform_0, counts.uniform_1) == (
        len(informative), told.count([0.0] * SAMPLES), told.count([1.0] * SAMPLES),
    )  # fmt: skip
    assert (counts.failed, counts.revoked, counts.pending, counts.inflight) == (0, 0, 0, 0)
    groups = groups_of(filled, "funnel")
    assert sorted(int(group.prompt_id) for group in groups) == informative
    assert_as_tossed(groups)
    assert status.waste.uniform.tokens > 0


def test_a_loop_over_a_batch_feeds_it_as_it_asks_and_survives_the_api(filled: Service) -> None:
    drawn = 0

    def prompts() -> Iterator[dict[str, Any]]:
        nonlocal drawn
        for prompt in sums(1000, 10_000):
            drawn += 1
            yield prompt

    request = {
        "batch_id": "loop", "target_groups": 24, "samples_per_group": SAMPLES, "max_inflight_jobs": 32,
        "defaults": DEFAULTS,
    }  # fmt: skip
    groups = []
    for group in filled.client.batch(request, prompts()):
        groups.append(group)
        if len(groups) == 8:
            filled.kill("api")
    assert len({group.group_id for group in groups}) == len(groups) == 24
    assert_as_tossed(groups)
    assert all(differs(int(group.prompt_id)) for group in groups)
    assert 24 <= drawn <= 500, "prompts are drawn when they are asked for"


def test_a_loop_that_is_left_cancels_what_it_did_not_take(filled: Service, tosser: ScriptedBackend) -> None:
    tosser.reset()
    request = {"batch_id": "left", "target_groups": 50, "samples_per_group": SAMPLES, "defaults": DEFAULTS}
    tosser.fail("slow", probability=0.1, seconds=300.0)
    for _ in filled.client.batch(request, sums(20_000, 400)):
        break
    status = filled.client.batches.status("left")
    assert status.state == "cancelled"
    assert eventually(lambda: filled.client.batches.status("left").jobs.live == 0, GENEROUS_SECONDS), filled.logs()
    tosser.wait_until(live=0, seconds=GENEROUS_SECONDS)
    tosser.reset()
    busy = lambda: filled.client.service_status()["stages"]["rollout"]["busy"]  # noqa: E731
    assert eventually(lambda: busy() == 0, GENEROUS_SECONDS), busy()


def test_without_a_filter_every_group_counts_uniform_ones_too(filled: Service) -> None:
    request = {
        "batch_id": "plain", "target_groups": 12, "samples_per_group": SAMPLES, "prompts": sums(30_000, 30),
        "informative": None, "defaults": DEFAULTS,
    }  # fmt: skip
    filled.client.batches.create(request)
    status = ended(filled, "plain")
    assert (status.state, status.groups.informative, status.groups.uninformative) == ("complete", 12, 0)
    assert status.jobs.started == 12 * SAMPLES, "as all count, none is started too many"
    groups = groups_of(filled, "plain")
    assert_as_tossed(groups)
    assert {differs(int(group.prompt_id)) for group in groups} == {True, False}


def test_a_group_that_is_decided_is_not_waited_for_where_that_was_asked(
    filled: Service, tosser: ScriptedBackend
) -> None:
    halves = [p for p in mixed(40_000, 100) if sum(tossed(int(p["prompt_id"]))) == 2][:1]
    tosser.reset()
    tosser.fail("slow", count=1, seconds=300.0)
    request = {
        "batch_id": "decided", "target_groups": 1, "samples_per_group": SAMPLES, "prompts": halves, "min_samples": 3,
        "stop_group_when_decided": True, "defaults": DEFAULTS,
    }  # fmt: skip
    filled.client.batches.create(request)
    status = ended(filled, "decided")
    assert (status.state, status.groups.informative) == ("complete", 1)
    (group,) = groups_of(filled, "decided")
    assert (group.samples, group.scored, len(group.results)) == (SAMPLES, 3, 3)
    tosser.wait_until(live=0, seconds=GENEROUS_SECONDS)
    assert tosser.stats()["aborts"] == 1, "the fourth was in its model call"
    assert eventually(lambda: filled.client.batches.status("decided").jobs.live == 0, GENEROUS_SECONDS)


@pytest.mark.parametrize(("staleness", "kept"), [(1, False), (2, True)])
def test_what_is_carried_over_is_judged_by_the_versions_that_it_was_sampled_under(
    filled: Service, tosser: ScriptedBackend, staleness: int, kept: bool
) -> None:
    tosser.reset()
    first = 50_000 + 5_000 * staleness
    first_version = 10 * staleness
    give_weights(filled, tosser, first_version)
    tosser.fail("slow", count=1, seconds=6.0 if kept else 300.0)
    one, two = f"stale-{staleness}", f"fresh-{staleness}"
    request = {"samples_per_group": SAMPLES, "target_groups": 1, "max_inflight_jobs": 2 * SAMPLES, "defaults": DEFAULTS}
    old, new = mixed(first, 2), mixed(first + 1000, 2)
    filled.client.batches.create({**request, "batch_id": one, "prompts": old, "on_target": "carry_over"})
    status = ended(filled, one)
    assert (status.state, status.groups.informative, status.groups.inflight) == ("complete", 1, 1)
    assert eventually(lambda: filled.client.batches.status(one).jobs.live == 1, GENEROUS_SECONDS), filled.logs()
    give_weights(filled, tosser, first_version + 2)
    filled.client.batches.create(
        {
            **request,
            "target_groups": 2 + kept,
            "batch_id": two,
            "prompts": new,
            "adopt": one,
            "max_staleness": staleness,
        }
    )
    status = ended(filled, two)
    assert (status.state, status.groups.carried) == ("complete", int(kept)), filled.logs()
    groups = groups_of(filled, two)
    adopted = [group for group in groups if group.batch_id == one]
    assert (len(groups), len(adopted)) == (2 + kept, int(kept))
    for group in groups:
        assert group.oldest_policy_version == first_version + (0 if group in adopted else 2)
    assert_as_tossed(groups)
    assert filled.client.batches.status(one).groups.revoked == int(not kept)
    tosser.wait_until(live=0, seconds=GENEROUS_SECONDS)


def give_weights(service: Service, backend: ScriptedBackend, version: int) -> None:
    """New weights at the backend, and word of them to the service."""
    body = json.dumps({"new_version": str(version)}).encode()
    headers = {"Content-Type": "application/json"}
    with urllib.request.urlopen(
        urllib.request.Request(backend.url + "/update_weight_version", body, headers), timeout=30
    ) as reply:
        assert reply.status == 200
    service.client.resume(version)
