"""The task kinds of `tests/handlers/several_sandboxes.py` through a whole service, and a `kill -9` in their eval."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e_service import QUICK, Service, eventually, running
from test_pipeline import PROBLEMS

from prorl_celery.jobs.models import JobStatus
from prorl_celery.testing import ScriptedBackend

pytestmark = pytest.mark.e2e

HANDLERS = Path(__file__).parents[1] / "handlers" / "several_sandboxes.py"


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory, solver: ScriptedBackend) -> Iterator[Service]:
    """A service that knows those task kinds."""
    handlers = ",".join(f"{HANDLERS}:{name}" for name in ("Rivals", "Graded", "Inspected"))
    data_dir = tmp_path_factory.mktemp("several") / "data"
    with running(data_dir, **(QUICK | {"PRORL_HANDLERS": handlers})) as service:
        service.add_backend(solver)
        yield service


def job(kind: str, **instance: Any) -> dict[str, Any]:
    return {"instance": {**PROBLEMS[0], "data_source": kind, **instance}, "sampling_params": {"max_tokens": 1500}}


def completed(service: Service, job_id: str) -> JobStatus:
    status = service.client.wait(job_id, timeout=120)
    assert status.state == "completed", (status, service.logs())
    assert service.client.result(job_id).reward == 1.0
    return status


@pytest.mark.parametrize(
    ("kind", "starts", "turns"),
    [("rivals", 4, 8), ("graded", 2, 4), ("inspected", 1, 4)],
)
def test_each_kind_gets_its_sandboxes_and_leaves_none(several: Service, kind: str, starts: int, turns: int) -> None:
    before = several.keeper()["starts"]
    status = completed(several, several.client.submit(job(kind)).job_id)
    assert (status.attempt, status.turns) == (1, turns)
    assert several.keeper()["starts"] - before == starts
    assert eventually(lambda: several.keeper()["live"] == 0, 30)


@pytest.mark.parametrize(("kind", "starts"), [("graded", 3), ("inspected", 1)])
def test_an_eval_whose_worker_is_killed_is_repeated_alone(several: Service, kind: str, starts: int) -> None:
    """In the same sandbox where what rollout left counts; in another where the first must be untouched."""
    before = several.keeper()["starts"]
    job_id = several.client.submit(job(kind, eval_s=3)).job_id

    def in_eval() -> bool:
        status = several.client.status(job_id)
        return (status.state, status.stage) == ("running", "eval")

    assert eventually(in_eval, 60), several.logs()
    for pid in several.pids("eval-"):
        with contextlib.suppress(ProcessLookupError):  # a stage's children die with it, and are of its name
            os.kill(pid, signal.SIGKILL)
    status = completed(several, job_id)
    assert (status.attempt, status.turns) == (1, 4)
    assert several.keeper()["starts"] - before == starts
    assert eventually(lambda: several.keeper()["live"] == 0, 60), several.keeper()
