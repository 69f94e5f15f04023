"""Problems of `reasoning-gym` as instances: the same for a seed, JSON, and named when they cannot be had."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from typing import Any

import pytest

from prorl_celery.data import gym
from prorl_celery.data.gym import instances, reasoning_gym_instances, task_names
from prorl_celery.errors import BadInstance, SettingsError


def test_the_tasks_are_told_without_importing_the_package() -> None:
    program = (
        "import sys; from prorl_celery.data.gym import task_names as t; print(len(t()), 'reasoning_gym' in sys.modules)"
    )
    told = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, timeout=60, check=True)
    count, imported = told.stdout.split()
    assert int(count) == len(task_names()) > 90
    assert imported == "False"


@pytest.mark.slow  # the package is long in importing itself
def test_the_tasks_are_the_packages() -> None:
    program = "from reasoning_gym.factory import DATASETS; print(*sorted(DATASETS))"
    told = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert task_names() | set(gym.NO_TASKS) == set(told.stdout.split())


def test_a_seed_gives_the_same_instances_as_plain_json() -> None:
    made = list(instances("chain_sum", 3, seed=5))
    assert made == list(instances("chain_sum", 3, seed=5)) == json.loads(json.dumps(made))
    assert made != list(instances("chain_sum", 3, seed=6))
    assert [one["instance_id"] for one in made] == ["chain_sum-5-0", "chain_sum-5-1", "chain_sum-5-2"]
    assert set(made[0]) == {"data_source", "instance_id", "question", "answer", "metadata"}


def test_a_config_goes_along() -> None:
    (made,) = instances("puzzle24", 1, seed=1, max_value=6)
    assert made["config"] == {"max_value": 6}
    assert max(made["metadata"]["numbers"]) <= 6
    with pytest.raises(BadInstance, match="no such config") as refused:
        list(instances("puzzle24", 1, no_such=1))
    assert refused.value.field == "config"


@pytest.mark.parametrize(
    ("spec", "count", "first"), [("lcm", 100, "lcm-0-0"), ("lcm:3", 3, "lcm-0-0"), ("lcm:2:9", 2, "lcm-9-0")]
)
def test_what_the_command_line_names(spec: str, count: int, first: str) -> None:
    made = list(reasoning_gym_instances(spec))
    assert (len(made), made[0]["instance_id"]) == (count, first)


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ("no_such", "no task 'no_such'"),
        ("count", "count_primes"),
        ("lcm:x", "write reasoning_gym:TASK"),
        ("lcm:1:2:3", "write reasoning_gym:TASK"),
        ("lcm:0", "COUNT is 1 to"),
        ("composite", "name one of those"),
        ("codeio", "running programs"),
        ("", "no task ''"),
    ],
)
def test_what_cannot_be_had_is_said_at_once(spec: str, why: str) -> None:
    with pytest.raises(SettingsError, match=why):
        reasoning_gym_instances(spec)


def test_without_the_extra_it_says_which_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: Any) -> None:
        return None

    monkeypatch.setattr(importlib.util, "find_spec", missing)
    task_names.cache_clear()
    try:
        with pytest.raises(SettingsError, match=r"prorl-celery\[gym\]"):
            reasoning_gym_instances("lcm")
    finally:
        task_names.cache_clear()
