"""Problems of the package `reasoning-gym` as instances: about a hundred tasks, made by the package from a seed.

    for instance in instances("countdown", 10, seed=1, max_target=200): ...

An instance holds what the package gives for a problem, as JSON: `question`, `answer` (a right one; None where the
package knows none, but can tell), `metadata`, by which its scorer scores, and the `config` that the problem was made
with where that is not the task's own, since some scorers ask it. Its `data_source` is `reasoning_gym/TASK`.
"""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from prorl_celery.errors import BadInstance, SettingsError

PREFIX = "reasoning_gym/"
EXTRA = "reasoning-gym is not installed: pip install 'prorl-celery[gym]'"
COUNT = 100
"""Problems where none are counted."""
MOST = 1_000_000

NO_TASKS = {"composite": "its problems are of the tasks that it is made of: name one of those"}
"""What the package calls a task and is none, and why."""
RUNS_CODE = {"codeio": "the package makes its problems by running programs of its data here, in no sandbox"}
"""Tasks whose problems are not made here. Problems that were made elsewhere can be scored: that runs nothing."""


@lru_cache(maxsize=1)
def task_names() -> frozenset[str]:
    """The tasks of the installed package, read from its source: to import it takes a second and 100 MB.

    Raises: `BadInstance` when the package is not installed; the message says how to get it.
    """
    found = importlib.util.find_spec("reasoning_gym")
    if found is None or not found.submodule_search_locations:
        raise BadInstance(EXTRA, field="data_source")
    names: set[str] = set()
    for file in Path(found.submodule_search_locations[0]).rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        if "register_dataset(" in text:
            names.update(re.findall(r'^DATASET_NAME\s*=\s*"(\w+)"', text, re.MULTILINE))
            names.update(re.findall(r'register_dataset\(\s*"(\w+)"', text))
    return frozenset(names - set(NO_TASKS))


def check_task(task: str) -> None:
    """Raises: `BadInstance` for a task that the package does not have."""
    if task in NO_TASKS:
        raise BadInstance(f"reasoning_gym/{task}: {NO_TASKS[task]}", field="data_source")
    names = task_names()
    if task not in names:
        near = sorted(name for name in names if task and (task in name or name in task))
        hint = (
            f"; there are {', '.join(near)}" if near else f"; there are {len(names)}, such as chain_sum and countdown"
        )
        raise BadInstance(f"reasoning-gym has no task {task!r}{hint}", field="data_source")


def instances(task: str, count: int, seed: int = 0, **config: Any) -> Iterator[dict[str, Any]]:
    """`count` problems of a task, always the same for a seed; `config` is the package's for that task.

    Raises: `BadInstance` for a task that there is not, or a config that the package does not take.
    """
    check_task(task)
    if task in RUNS_CODE:
        raise BadInstance(f"reasoning_gym/{task}: {RUNS_CODE[task]}", field="data_source")
    from reasoning_gym import create_dataset

    try:
        dataset = create_dataset(task, seed=seed, size=count, **config)
    except (AssertionError, TypeError, ValueError) as error:
        raise BadInstance(f"reasoning_gym/{task} takes no such config: {error}", field="config") from error
    for number in range(count):
        made = dataset[number]
        given = {"question": made["question"], "answer": made["answer"], "metadata": made["metadata"]}
        instance = {"data_source": PREFIX + task, "instance_id": f"{task}-{seed}-{number}", **given}
        if config:
            instance["config"] = config
        yield json.loads(json.dumps(instance))


def reasoning_gym_instances(spec: str) -> Iterator[dict[str, Any]]:
    """The instances that `TASK[:COUNT[:SEED]]` names: `countdown`, `countdown:500`, `countdown:500:7`.

    Raises: `SettingsError` that says what is wrong with it, at once.
    """
    task, *numbers = spec.split(":")
    if len(numbers) > 2 or not all(re.fullmatch(r"\d{1,18}", number) for number in numbers):
        raise SettingsError(f"reasoning_gym:{spec}: write reasoning_gym:TASK, or reasoning_gym:TASK:COUNT:SEED")
    count = int(numbers[0]) if numbers else COUNT
    seed = int(numbers[1]) if len(numbers) == 2 else 0
    if not 0 < count <= MOST:
        raise SettingsError(f"reasoning_gym:{spec}: COUNT is 1 to {MOST}")
    try:
        check_task(task)
        if task in RUNS_CODE:
            raise BadInstance(RUNS_CODE[task])
    except BadInstance as error:
        raise SettingsError(f"reasoning_gym:{spec}: {error}") from error
    return instances(task, count, seed)
