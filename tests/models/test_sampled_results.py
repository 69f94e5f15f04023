"""A results file is counted for what a trainer needs of it, and what cannot be trained on is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from prorl_celery.cli.demo_real import additions
from prorl_celery.cli.sampled import read_sampled


def result(job_id: str, reward: float | None, **changes: Any) -> dict[str, Any]:
    segment = {
        "prompt_ids": [1, 2],
        "response_ids": [3, 4],
        "loss_mask": [1, 1],
        "logprobs": [-0.5, -0.1],
        "policy_versions": [0, 0],
    }
    return {"job_id": job_id, "reward": reward, "segments": [segment | changes]}


def read(tmp_path: Path, *results: dict[str, Any]) -> Any:
    file = tmp_path / "results.jsonl"
    file.write_text("".join(json.dumps(one) + "\n" for one in results))
    return read_sampled(file)


def test_groups_are_mixed_all_wrong_or_all_right(tmp_path: Path) -> None:
    rewards = {"a:0": 1.0, "a:1": 0.0, "b:0": 0.0, "b:1": 0.0, "c:0": 1.0, "c:1": 1.0, "d:0": 0.0, "d:1": 1.0}
    sampled = read(tmp_path, *(result(job_id, reward) for job_id, reward in rewards.items()))
    assert (sampled.mixed, sampled.all_wrong, sampled.all_right) == (2, 1, 1)
    assert sampled.tokens == 16
    assert sampled.faults == []


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (result("a:0", None), "no reward"),
        (result("a:0", 0.0, logprobs=[-0.5]), "2 ids, 1 logprobs"),
        (result("a:0", 0.0, loss_mask=[0, 0]), "no sampled token"),
        (result("a:0", 0.0, prompt_ids=[]), "no prompt ids"),
        (result("a:0", 0.0, logprobs=[-0.5, 0.1]), "above 0"),
        ({"job_id": "a:0", "reward": 1.0, "segments": []}, "no sampled token"),
    ],
)
def test_what_cannot_be_trained_on_is_named(tmp_path: Path, wrong: dict[str, Any], words: str) -> None:
    faults = read(tmp_path, result("b:0", 1.0), wrong).faults
    assert faults
    assert all(fault.startswith("a:0: ") for fault in faults)
    assert any(words in fault for fault in faults)


def test_the_additions_are_different_sums_with_their_answers() -> None:
    bodies = list(additions(81))
    assert len({body["instance"]["instance_id"] for body in bodies}) == 81
    for body in bodies:
        a, b = map(int, body["instance"]["instance_id"].split("+"))
        assert body["instance"]["answer"] == a + b
    assert list(additions(30)) == bodies[:30]
