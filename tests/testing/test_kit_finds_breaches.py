"""Each breach of the contract is found by the check that is for it, and told so that one can act on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import broken_handlers as broken
import pytest

from prorl_celery.handlers.base import Handler
from prorl_celery.testing.kit import MISSING, Case, ContractBroken, HandlerContract, instances, remains, scores, stops
from prorl_celery.testing.kit.bench import Bench, settings_of_kit
from prorl_celery.testing.kit.case import oracle_of
from prorl_celery.testing.local import LocalRunner

INSTANCE = {"data_source": "count", "text": "a\nb\nc\n", "lines": 3, "hint": "there are three of them"}
ROWS = [
    {
        "key": "count",
        "prompt": "Count the lines of /workspace/text.",
        "turns": [
            {"calls": [{"name": "bash", "arguments": {"command": "wc -l < text"}}]},
            {"calls": [{"name": "finish", "arguments": {"answer": "3"}}]},
        ],
        "wrong_turns": [{"calls": [{"name": "finish", "arguments": {"answer": "4"}}]}],
    }
]
BAD = (("lines", {"lines": MISSING}), ("text", {"text": 3}))


def case_of(handler: type[Handler], **changes: Any) -> Case:
    fields = {"instance": INSTANCE, "oracle": oracle_of(ROWS), "bad": BAD, "hidden": ("hint",), "stop_seconds": 0.5}
    return Case(handler=handler, **(fields | changes))


class TestSound(HandlerContract):
    """What the broken ones are made of keeps the contract."""

    handler = broken.Sound
    instance = INSTANCE
    oracle = ROWS
    bad = BAD
    hidden = ("hint",)


@pytest.fixture(scope="module")
def runner() -> Iterator[LocalRunner]:
    """One for all that leave it as it was."""
    with LocalRunner(broken.Sound, settings_of_kit()) as runner:
        yield runner


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left is not waited for long."""
    monkeypatch.setattr(remains, "PATIENCE_SECONDS", 0.2)


@pytest.mark.parametrize(
    ("handler", "check", "said"),
    [
        (broken.NeedsTheLines, instances.stands_strange_instances, "raised KeyError.* for an instance with no 'text'"),
        (broken.RefusesWithoutAField, instances.refuses_bad_instances, "refused for the field None, not for 'lines'"),
        (broken.RefusesWithoutAField, instances.stands_strange_instances, "without a field"),
        (broken.TakesAnything, instances.refuses_bad_instances, "takes an instance with no 'lines'"),
        (broken.AsksForOthers, instances.asks_for_the_same_sandboxes_each_time, "other sandboxes the second time"),
    ],
)
def test_what_is_wrong_with_instances_is_found(
    handler: type[Handler], check: Callable[[Case], None], said: str
) -> None:
    with pytest.raises(ContractBroken, match=said):
        check(case_of(handler))


def test_an_instance_of_another_handler_is_found() -> None:
    with pytest.raises(ContractBroken, match="data_source is 'math'; the handler serves count"):
        instances.accepts_the_instance(case_of(broken.Sound, instance={**INSTANCE, "data_source": "math"}))


def in_init(bench: Bench) -> None:
    stops.stops_when_cancelled(bench, "init")


def in_eval(bench: Bench) -> None:
    stops.stops_when_time_is_up(bench, "eval")


def without_sandbox(bench: Bench) -> None:
    stops.scores_nothing_without_its_sandbox(bench, "eval")


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("handler", "check", "said"),
    [
        (broken.ScoresHalf, scores.scores_the_right_answer, "must be 1.0, but .* with reward 0.5"),
        (broken.ScoresNan, scores.scores_the_right_answer, "reward None; error of kind"),
        (broken.ReturnsTuples, scores.returns_json, "what init returned changes .* return lists for tuples"),
        (broken.TellsTheAnswer, scores.hides_the_answer, "the prompt has 'hint': 'there are three"),
        (broken.LeavesTheAnswer, scores.hides_the_answer, "/tmp/.solution .* of the sandbox 'main' has 'hint'"),
        (broken.KeepsOnItself, scores.scores_the_right_answer, "AttributeError"),
        (broken.KeepsOnItsClass, scores.scores_in_a_process_of_its_own, "keep nothing on the handler"),
        (broken.ScoresOnce, stops.scores_the_same_twice, "must give the same"),
        (broken.SleepsInInit, in_init, "cancelled at the beginning of init, the job took .* s to end"),
        (broken.SleepsInEval, in_eval, "the time of eval was up, the job took .* s to end"),
        (broken.CatchesAll, without_sandbox, "lost in eval, and the job was scored 0.0"),
        (broken.LeavesAThread, scores.leaves_nothing, "left: the thread 'poller'"),
        (broken.CannotBeRepeated, stops.goes_on_after_a_death, "rollout returned .* bear being done again"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_is_wrong_with_a_run_is_found(
    handler: type[Handler], check: Callable[[Bench], None], said: str, runner: LocalRunner
) -> None:
    with Bench(case_of(handler), runner) as bench, pytest.raises(ContractBroken, match=said):
        check(bench)


def test_a_rollout_that_cannot_be_gone_on_with_may_say_so(runner: LocalRunner) -> None:
    with Bench(case_of(broken.StartsOver), runner) as bench:
        stops.goes_on_after_a_death(bench)


def test_a_judge_may_recite_too() -> None:
    verdicts = [
        {"key": said, "prompt": f"Is '{answer}' right?", "turns": [{"text": said}], "wrong_turns": [{"text": said}]}
        for answer, said in (("3", "yes"), ("4", "no"))
    ]
    case = case_of(broken.Judged, oracle=oracle_of([*ROWS, *verdicts]), settings={"judge_model": "scripted"})
    with Bench(case) as bench:
        scores.scores_the_right_answer(bench)
        scores.scores_the_wrong_answer(bench)
        stops.scores_the_same_twice(bench)


@pytest.mark.usefixtures("impatient")
def test_a_process_that_is_left_is_found(runner: LocalRunner) -> None:
    try:
        with Bench(case_of(broken.LeavesAProcess), runner) as bench:
            with pytest.raises(ContractBroken, match=r"process \d+ \(sleep\)"):
                scores.leaves_nothing(bench)
    finally:
        for process in broken.LIVELY:
            process.kill()
            process.wait(5.0)


def test_a_task_that_the_oracle_does_not_know_is_told(runner: LocalRunner) -> None:
    rows = [{**ROWS[0], "prompt": "Count the words."}]
    with Bench(case_of(broken.Sound, oracle=oracle_of(rows)), runner) as bench:
        with pytest.raises(ContractBroken, match=r"no row whose prompt stands in .* 'Count the lines"):
            scores.scores_the_right_answer(bench)


def test_a_class_that_does_not_say_what_to_check_is_told() -> None:
    class Empty(HandlerContract):
        handler = broken.Sound

    with pytest.raises(ContractBroken, match="must say its instance, oracle"):
        Empty.case()


def test_an_oracle_without_wrong_words_is_told() -> None:
    with pytest.raises(ContractBroken, match="rows without wrong_turns: count"):
        oracle_of([{name: value for name, value in ROWS[0].items() if name != "wrong_turns"}])
