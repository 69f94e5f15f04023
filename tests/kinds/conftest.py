"""A whole service whose model recites, for the tests that run real instances of a kind: all of them, through the three
stages.

    def test_each_problem_is_solved(kind_service):
        with kind_service(oracle_rows(PROBLEMS)) as kind:
            results = kind.run(PROBLEMS)
            assert kind.unlike(results, reward=1.0) == []
            results = kind.run(PROBLEMS, wrong=True)  # the rows' wrong_turns
            assert kind.unlike(results, reward=0.0) == []

A row of the oracle is as `prorl_celery/testing/scripted/recital.py` has it. All tests in this folder are marked `kinds`
and `slow`: `make test-tasks` runs them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from e2e_service import Service, running
from pypi_instances import bugs  # noqa: F401 - a fixture, here so that they are prepared once

from prorl_celery.jobs.models import Result
from prorl_celery.testing import ScriptedBackend

HERE = Path(__file__).parent
PAGE = 500
"""Jobs of one call."""

Rows = Iterable[Mapping[str, Any]]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.kinds)
            item.add_marker(pytest.mark.slow)


class Kind:
    """A service of its own, and what makes its model right or wrong."""

    def __init__(self, service: Service, oracle: Path, stack: ExitStack) -> None:
        self.service = service
        self._oracle = oracle
        self._stack = stack
        self._backends: dict[str, ScriptedBackend] = {}

    def run(
        self, instances: Sequence[Mapping[str, Any]], *, wrong: bool = False, timeout: float = 600.0, **fields: Any
    ) -> list[Result]:
        """A job for each instance, with these further fields; their results, in order, once all have ended.

        `wrong`: the model says the rows' `wrong_turns`. `timeout`: seconds for each, from when the one before it ended.
        Raises: `TimeoutError`.
        """
        model = self._model("recite:0" if wrong else "recite")
        sampling = {"model": model, "max_tokens": 30_000} | fields.pop("sampling_params", {})
        jobs = [{"instance": dict(instance), "sampling_params": sampling, **fields} for instance in instances]
        client = self.service.client
        sent = [job for at in range(0, len(jobs), PAGE) for job in client.submit(jobs[at : at + PAGE])]
        for job in sent:
            client.wait(job.job_id, timeout=timeout)
        return [client.result(job.job_id, tokens=False) for job in sent]

    def unlike(self, results: Iterable[Result], *, reward: float) -> list[str]:
        """What is to be known of each result that has another reward, or none."""
        return [
            f"{result.instance_id or result.job_id}: reward {result.reward}, {result.finish_reason}, "
            f"error {result.error}, eval {json.dumps(result.eval)[:2000]}"
            for result in results
            if result.reward != reward
        ]

    def _model(self, policy: str) -> str:
        """The name of the model with that policy; its backend is started when it is first asked for."""
        name = "scripted-" + policy.replace(":", "-")
        if name not in self._backends:
            backend = ScriptedBackend(policy, oracle=self._oracle, model_id=name, max_model_len=1_000_000)
            self._backends[name] = self._stack.enter_context(backend)
            self.service.add_backend(backend, model=name)
        return name


@pytest.fixture
def kind_service(tmp_path: Path) -> Callable[..., AbstractContextManager[Kind]]:
    """Start a service: `kind_service(rows, **environment)`; it ends with its `with` block."""

    @contextmanager
    def start(rows: Rows, **environment: str) -> Iterator[Kind]:
        oracle = tmp_path / "oracle.jsonl"
        oracle.write_text("".join(json.dumps(row) + "\n" for row in rows))
        with running(tmp_path / "data", **environment) as service, ExitStack() as stack:
            yield Kind(service, oracle, stack)

    return start
