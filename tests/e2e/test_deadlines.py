"""A stage's deadline ends whatever the stage is at, names the stage, and keeps what was done before."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e_service import Service, eventually, running

from prorl_celery.jobs.models import JobStatus
from prorl_celery.testing import ScriptedBackend

pytestmark = pytest.mark.e2e

DEADLINE_S = 2.0
CALL_S = 1.5
AMID_CALLS_S = 5.0
"""Of five calls at least one has an answer by then, and at least one has none, on a loaded machine too."""
WITHIN_S = 60.0
GRACE_S = 2.0
PLENTY = {"init": 300.0, "rollout": 300.0, "eval": 300.0}

CASES = [
    ("init", "start"),
    ("init", "shell"),
    ("rollout", "model"),
    ("rollout", "shell"),
    ("rollout", "kernel"),
    ("rollout", "child"),
    ("rollout", "spin"),
    ("rollout", "block"),
    ("eval", "shell"),
    ("eval", "child"),
    ("eval", "spin"),
]


@pytest.fixture(scope="module")
def deaf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service with a handler for each thing to be deaf at; its backend takes its time for a call."""
    data_dir: Path = tmp_path_factory.mktemp("deaf") / "data"
    handler = f"{Path(__file__).with_name('deaf_handlers.py')}:DeafHandler"
    quick = {"PRORL_WEDGE_GRACE": str(GRACE_S), "PRORL_HEARTBEAT": "0.5", "PRORL_SPARE_SANDBOXES": "0"}
    with ScriptedBackend(policy="toy", latency=CALL_S) as backend:
        with running(data_dir, PRORL_HANDLERS=handler, **quick) as service:
            service.add_backend(backend)
            yield service


@pytest.fixture(scope="module")
def ended(deaf: Service) -> dict[tuple[str, str], JobStatus]:
    """How all the jobs ended, which ran at the same time."""
    for stage, do in CASES:
        seconds = {"start": 0.02, "model": AMID_CALLS_S}.get(do, DEADLINE_S)
        job = {
            "job_id": f"{stage}-{do}",
            "instance": {"data_source": "deaf", "stage": stage, "do": do},
            "timeouts": PLENTY | {stage: seconds},
            "max_attempts": 1,
        }
        deaf.client.submit([job])
    return {(stage, do): deaf.client.wait(f"{stage}-{do}", timeout=WITHIN_S) for stage, do in CASES}


@pytest.mark.parametrize(("stage", "do"), CASES)
def test_a_deadline_ends_its_stage(deaf: Service, ended: dict[tuple[str, str], JobStatus], stage: str, do: str) -> None:
    status = ended[stage, do]
    assert status.state == "timed_out", (status, deaf.logs())
    assert status.error is not None
    assert (status.error.kind, status.error.stage, status.reward) == ("timeout", stage, None)
    assert status.attempt == 1
    assert status.timing[stage].running < AMID_CALLS_S + GRACE_S + 10.0  # type: ignore[index]


def test_what_the_agent_did_before_the_deadline_is_kept(deaf: Service, ended: dict[tuple[str, str], JobStatus]) -> None:
    assert ended["rollout", "model"].turns >= 1
    result = deaf.client.result("rollout-model")
    assert result.finish_reason == "timeout"
    assert result.segments
    assert result.reward is None


def test_the_process_of_a_blocked_slot_is_replaced_and_the_service_goes_on(
    deaf: Service, ended: dict[tuple[str, str], JobStatus]
) -> None:
    assert ended["rollout", "block"].state == "timed_out"

    def whole() -> bool:
        (node,) = deaf.client.nodes()
        rollout = [process for process in node["processes"] if process["stage"] == "rollout"]
        return len(rollout) == 2 and not any(process["retiring"] for process in rollout)

    assert eventually(whole, WITHIN_S), deaf.logs()
    job = {"job_id": "after", "instance": {"data_source": "deaf", "stage": "none", "do": "nothing"}}
    deaf.client.submit([job])
    assert deaf.client.wait("after", timeout=WITHIN_S).state == "completed"
