"""The stem handler: what it refuses, what the agent is told, and how its answers are scored."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from prorl_celery.errors import BadInstance, Unjudged
from prorl_celery.handlers.stem import StemHandler, task
from prorl_celery.jobs.models import JobRequest

HANDLER = StemHandler()
CHOICE = {"problem": "Which is a metal?", "choices": ["iron", "neon"], "answer": "A"}
NUMBER = {"problem": "How fast?", "answer": 9.81, "unit": "m/s^2"}
JUDGED = {"problem": "Why?", "answer": "Because of gravity.", "judge": True}


def score(instance: dict[str, Any], answer: str | None, *said: str) -> dict[str, Any]:
    """What eval makes of an answer; a judge says `said` in turn."""
    replies = iter(said)
    asked: list[dict[str, Any]] = []

    def ask_model(messages: Any, **how: Any) -> str:
        asked.append(how)
        return next(replies)

    ctx: Any = SimpleNamespace(instance=instance, rollout={"answer": answer}, ask_model=ask_model)
    return HANDLER.eval(ctx) | {"asked": asked}


@pytest.mark.parametrize("instance", [CHOICE, NUMBER, JUDGED, {"question": "How many?", "answer": "3.2 km"}])
def test_each_form_of_instance_is_taken(instance: dict[str, Any]) -> None:
    HANDLER.validate(instance)
    assert task(instance).startswith(instance.get("problem") or instance["question"])


@pytest.mark.parametrize(
    ("instance", "field"),
    [
        ({}, "problem"),
        ({"problem": 5, "answer": 5}, "problem"),
        ({"problem": " ", "answer": 5}, "problem"),
        ({"problem": "x"}, "answer"),
        ({"problem": "x", "answer": "because"}, "answer"),
        ({"problem": "x", "answer": 5, "unit": "apples"}, "unit"),
        ({"problem": "x", "answer": "A", "choices": ["x"]}, "choices"),
        ({"problem": "x", "answer": "A", "choices": ["x", "y"], "judge": True}, "judge"),
        ({"problem": "x", "answer": "y", "judge": "yes"}, "judge"),
        ({"problem": "x", "answer": 5, "judge": True}, "answer"),
    ],
)
def test_an_instance_that_cannot_be_graded_is_refused(instance: dict[str, Any], field: str) -> None:
    with pytest.raises(BadInstance) as caught:
        HANDLER.validate(instance)
    assert caught.value.field == field


def test_columns_of_a_table_that_are_empty_are_not_there() -> None:
    empty = dict.fromkeys(("choices", "judge", "unit", "tolerance", "unit_required", "rubric"))
    for instance in (NUMBER, CHOICE, JUDGED):
        HANDLER.validate(empty | instance)
    assert score(empty | NUMBER, "9.81")["reward"] == 1.0


def test_a_free_answer_without_a_judge_is_told_what_it_lacks() -> None:
    with pytest.raises(BadInstance, match="unless 'judge' is true"):
        HANDLER.validate({"problem": "x", "answer": "because"})


def test_the_agent_is_told_choices_and_unit_and_not_the_key() -> None:
    assert "(A) iron\n(B) neon" in task(CHOICE)
    assert "in m/s²" in task(NUMBER)
    assert "9.81" not in task(NUMBER)
    assert "gravity" not in task(JUDGED)
    assert "with its unit as the answer" in task(NUMBER | {"unit_required": True})


@pytest.mark.parametrize(
    ("instance", "right", "wrong"),
    [(CHOICE, "A", "B"), (NUMBER, "981 cm/s^2", "9.9"), (NUMBER | {"tolerance": 0.05}, "10", "11")],
)
def test_right_is_one_and_wrong_is_nought_with_a_reason(instance: dict[str, Any], right: str, wrong: str) -> None:
    good, bad = score(instance, right), score(instance, wrong)
    assert (good["reward"], good["resolved"], good["why"]) == (1.0, True, None)
    assert (bad["reward"], bad["resolved"], bool(bad["why"])) == (0.0, False, True)


@pytest.mark.parametrize("answer", [None, "", " \n"])
@pytest.mark.parametrize("instance", [CHOICE, NUMBER, JUDGED])
def test_no_answer_is_wrong_and_asks_no_judge(instance: dict[str, Any], answer: str | None) -> None:
    found = score(instance, answer)
    assert (found["reward"], found["why"], found["asked"]) == (0.0, "there is no answer in the reply", [])


def test_a_judge_scores_and_its_words_are_kept() -> None:
    good = score(JUDGED, "It falls.", "The same.\nVERDICT: CORRECT")
    assert (good["reward"], good["judge"]["text"]) == (1.0, "The same.\nVERDICT: CORRECT")
    bad = score(JUDGED, "It flies.", "Hm.", "VERDICT: INCORRECT")
    assert (bad["reward"], bad["resolved"], bad["judge"]["tries"]) == (0.0, False, 2)
    assert [how["seed"] for how in bad["asked"]] == [0, 1]


def test_a_judge_that_cannot_be_understood_is_no_score() -> None:
    with pytest.raises(Unjudged):
        score(JUDGED, "It falls.", "Hm.", "Hm.", "Hm.")


def test_settings_say_who_judges_how_long_and_by_which_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRORL_JUDGE_TOKENS", "77")
    monkeypatch.setenv("PRORL_JUDGE_TIMEOUT", "5")
    [how] = score(JUDGED, "It falls.", "VERDICT: CORRECT")["asked"]
    assert (how["max_tokens"], how["timeout"]) == (77, 5.0)
    monkeypatch.setenv("PRORL_JUDGE_PROMPT", "/nowhere")
    with pytest.raises(Unjudged, match="PRORL_JUDGE_PROMPT"):
        score(JUDGED, "It falls.")


def test_a_job_that_nobody_here_could_judge_ends_before_its_rollout(monkeypatch: pytest.MonkeyPatch) -> None:
    ctx: Any = SimpleNamespace(instance=JUDGED)
    monkeypatch.delenv("PRORL_JUDGE_MODEL", raising=False)
    with pytest.raises(BadInstance, match="PRORL_JUDGE_MODEL"):
        HANDLER.init(ctx)
    monkeypatch.setenv("PRORL_JUDGE_MODEL", "judge")
    assert HANDLER.init(ctx) == {}
    assert HANDLER.init(SimpleNamespace(instance=NUMBER)) == {}  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("tools", "sandbox", "kernel"),
    [(None, True, True), (["bash"], True, False), (["finish", "search"], False, False), ([], False, False)],
)
def test_a_sandbox_is_there_where_a_tool_needs_one(tools: list[str] | None, sandbox: bool, kernel: bool) -> None:
    job = JobRequest.model_validate(
        {"job_id": "a", "instance": {"data_source": "stem", **NUMBER}, "agent": {"tools": tools}}
    )
    assert HANDLER.needs_sandbox(job) is sandbox
    assert HANDLER.needs_kernel(job) is kernel
