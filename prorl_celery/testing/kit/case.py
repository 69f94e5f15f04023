"""What a check is given: a handler, an instance of it, and the words of models that are right and wrong about it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from prorl_celery.handlers.base import Handler
from prorl_celery.jobs.models import JobRequest
from prorl_celery.testing.scripted.conversation import Conversation
from prorl_celery.testing.scripted.oracle import Oracle, read_rows
from prorl_celery.testing.scripted.policies import Policy, Recite
from prorl_celery.testing.scripted.recital import Recital

Rows = str | Path | Sequence[Mapping[str, Any]]


class ContractBroken(AssertionError):
    """The handler does not do what the service counts on."""


class Missing:
    """For a field that is left out."""

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = Missing()


@dataclass(frozen=True, kw_only=True)
class Case:
    """One instance of a handler, and what is to come of it."""

    handler: type[Handler]
    instance: Mapping[str, Any]
    oracle: Oracle
    """Recitals: for each prompt of this instance what is said, right and wrong."""
    bad: Sequence[tuple[str, Mapping[str, Any]]] = ()
    """Changes to the instance that `validate` must refuse, each with the field that it must name."""
    hidden: Sequence[str] = ()
    """Fields of the instance that the model must not get to see."""
    right_reward: float = 1.0
    wrong_reward: float = 0.0
    job_fields: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of the job, as a caller sends them."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `Settings`, such as `judge_model`."""
    stop_seconds: float = 3.0
    """How long a stage may take to end when it is told to."""

    @property
    def job(self) -> JobRequest:
        """A job of the instance, with one attempt."""
        sampling = {"seed": 0, "max_tokens": 30_000}
        body = {"job_id": "kit", "instance": dict(self.instance), "sampling_params": sampling, **self.job_fields}
        return JobRequest.model_validate({**body, "max_attempts": 1})

    def changed(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """The instance with these fields changed."""
        return {name: value for name, value in {**self.instance, **changes}.items() if value is not MISSING}


class Words:
    """A policy that says what the oracle has for the case; `unknown` are tasks that it has nothing for."""

    def __init__(self, case: Case, *, wrong: bool) -> None:
        self._recite: Policy = Recite(case.oracle, 0, 0.0 if wrong else 1.0)
        self._oracle = case.oracle
        self.unknown: list[str] = []

    def __call__(self, conversation: Conversation, seed: int | None) -> str:
        if self._oracle.recital(conversation.task) is None:
            self.unknown.append(conversation.task)
            return "The oracle has nothing for this task."
        return self._recite(conversation, seed)


def oracle_of(rows: Rows) -> Oracle:
    """The oracle of these recitals, or of the file that holds them. Raises `ContractBroken`."""
    try:
        found: Iterable[Mapping[str, Any]] = read_rows(Path(rows)) if isinstance(rows, str | Path) else rows
        recitals = [Recital.of(row, number) for number, row in enumerate(found, 1)]
        speechless = [recital.key for recital in recitals if not recital.wrong_turns]
        if not recitals or speechless:
            lacking = f"rows without wrong_turns: {', '.join(speechless)}" if speechless else "no row"
            raise ContractBroken(f"`oracle` has {lacking}; each row says what is right and what is wrong")
        return Oracle([], recitals)
    except (OSError, ValueError) as error:
        raise ContractBroken(f"`oracle`: {error}") from error


def instance_of(instance: str | Path | Mapping[str, Any]) -> dict[str, Any]:
    """The instance, or the one in this file. Raises `ContractBroken`."""
    try:
        found = json.loads(Path(instance).read_bytes()) if isinstance(instance, str | Path) else dict(instance)
        json.dumps(found, allow_nan=False)
    except (OSError, ValueError, TypeError) as error:
        raise ContractBroken(f"`instance`: {error}") from error
    if not isinstance(found, dict):
        raise ContractBroken(f"`instance` must be a JSON object, not {type(found).__name__}")
    return found
