"""Workers that die, and jobs that are cancelled, while a judge is asked: one result, and the judge's slot is back."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from e2e_service import eventually
from fault_service import WITHIN_S, FaultService, hurt_service
from scripted_judge import Judge, judge

from prorl_celery.checking import check
from prorl_celery.sandbox.client import KeeperClient
from prorl_celery.testing import ScriptedBackend

pytestmark = pytest.mark.slow  # for the service of its own


class SlowJudge:
    """Finds all right, as soon as it is let."""

    def __init__(self) -> None:
        self.may_answer = threading.Event()

    def __call__(self, _: dict[str, Any]) -> str:
        self.may_answer.wait(WITHIN_S)
        return "VERDICT: CORRECT"


SLOW = SlowJudge()


@pytest.fixture(scope="module")
def asked() -> Iterator[Judge]:
    with judge(SLOW) as server:
        yield server
        SLOW.may_answer.set()


@pytest.fixture(scope="module")
def hurt(tmp_path_factory: pytest.TempPathFactory, backend: ScriptedBackend, asked: Judge) -> Iterator[FaultService]:
    with hurt_service(tmp_path_factory.mktemp("judged"), PRORL_JUDGE_MODEL="judge") as service:
        service.add_backend(backend)
        service.client.add_backend(url=asked.url, model="judge", kind="chat")
        yield service


def submit(service: FaultService, asked: Judge, *names: str) -> list[str]:
    """Jobs whose evals all wait for their judge; their ids."""
    SLOW.may_answer.clear()
    asked.asked.clear()
    instance = {"data_source": "stem", "problem": "Why?", "answer": "Because.", "judge": True}
    sampling = {"model": "scripted"}
    ids = service.submit(
        {"job_id": name, "instance": instance, "agent": {"tools": []}, "sampling_params": sampling} for name in names
    )
    assert eventually(lambda: len(asked.asked) == len(ids), WITHIN_S), service.told(ids)
    return ids


def slots(service: FaultService, asked: Judge) -> int:
    [judge] = [one for one in service.client.backends() if one["url"] == asked.url]
    return int(judge["assigned"])


def test_a_worker_killed_while_it_asks_has_its_evals_repeated_once(service: FaultService, asked: Judge) -> None:
    ids = submit(service, asked, "judged-0", "judged-1")
    assert slots(service, asked) == 2
    findings = check(service.redis, service.settings, KeeperClient(service.settings))
    assert not findings, "a judge's slot is no leak"
    service.kill_stage("eval")
    assert eventually(lambda: len(asked.asked) >= 4, WITHIN_S), service.told(ids)
    assert slots(service, asked) == 2
    SLOW.may_answer.set()
    assert service.states(ids) == {"completed": 2}, service.told(ids)
    for job_id in ids:
        result = service.client.result(job_id)
        assert (result.reward, result.attempt) == (1.0, 1), service.told([job_id])
        assert result.eval["judge"]["verdict"] == "correct"
    assert len(asked.asked) == 4
    assert slots(service, asked) == 0


def test_a_cancel_while_a_judge_is_asked_takes_effect_and_gives_the_slot_back(
    service: FaultService, asked: Judge
) -> None:
    [job_id] = submit(service, asked, "judged-cancelled")
    service.client.cancel(job_id)
    assert service.states([job_id], 10.0) == {"cancelled": 1}, service.told([job_id])
    assert slots(service, asked) == 0
    SLOW.may_answer.set()
