"""`code` on whole data sets: HumanEval as published, and problems in Codeforces' form, right, wrong and hostile."""

from __future__ import annotations

import time
from typing import Any

from code_problems import MISDEEDS, TASKS

from prorl_celery.testing.scripted.oracle import human_eval_rows

PATH = "/workspace/solution.py"


def turns(source: str) -> list[dict[str, Any]]:
    """Write the program and finish."""
    write = {"name": "str_replace_editor", "arguments": {"command": "create", "path": PATH, "file_text": source}}
    finish = {"name": "finish", "arguments": {}}
    return [{"text": "I write it.", "calls": [write]}, {"text": "Done.", "calls": [finish]}]


def row(instance: dict[str, Any], right: str, wrong: str) -> dict[str, Any]:
    key = instance["instance_id"]
    return {"key": key, "prompt": instance["prompt"], "turns": turns(right), "wrong_turns": turns(wrong)}


def test_each_problem_of_human_eval_is_solved_and_each_wrong_answer_is_wrong(kind_service: Any) -> None:
    rows = human_eval_rows()
    instances = [{"data_source": "code", "instance_id": row["task_id"], **row} for row in rows]
    assert len(instances) == 164
    with kind_service(rows) as kind:
        assert kind.unlike(kind.run(instances), reward=1.0) == []
        assert kind.unlike(kind.run(instances, wrong=True), reward=0.0) == []
        without_tools = kind.run(instances[:20], agent={"tools": []})
        assert kind.unlike(without_tools, reward=1.0) == []


def test_each_problem_of_codeforces_form_is_solved_and_each_wrong_answer_is_wrong(kind_service: Any) -> None:
    instances = [task.instance for task in TASKS]
    rows = [row(task.instance, task.right, task.wrong) for task in TASKS]
    with kind_service(rows) as kind:
        right = kind.run(instances)
        assert kind.unlike(right, reward=1.0) == []
        assert [result.eval["passed"] for result in right] == [len(instance["tests"]) for instance in instances]
        wrong = kind.run(instances, wrong=True)
        assert kind.unlike(wrong, reward=0.0) == []
        assert {result.eval["failed"]["kind"] for result in wrong} == {"wrong answer"}
        halves = [{**instance, "scoring": "fraction"} for instance in instances]
        assert all(0.0 <= result.reward < 1.0 for result in kind.run(halves, wrong=True))


def test_each_misdeed_is_scored_as_what_it_is(kind_service: Any) -> None:
    instances, rows, kinds = [], [], []
    for task in TASKS[:6]:
        for expected, sources in MISDEEDS.items():
            for number, source in enumerate(sources):
                name = f"{task.name} {expected} {number}"
                prompt = f"({name}) {task.statement}"
                instance = {**task.instance, "instance_id": name, "prompt": prompt, "time_limit": 1}
                instances.append(instance)
                rows.append(row(instance, source.replace("{right}", task.right), ""))
                kinds.append(expected)
    with kind_service(rows) as kind:
        results = kind.run(instances)
        assert kind.unlike(results, reward=0.0) == []
        said = [(r.instance_id, r.eval["failed"]["kind"]) for r in results]
        assert said == [(i["instance_id"], expected) for i, expected in zip(instances, kinds, strict=True)]


def test_ten_thousand_cases_are_one_problem(kind_service: Any) -> None:
    tests = [{"input": f"{n}\n", "output": f"{n * n}"} for n in range(10_000)]
    instance = {
        "data_source": "codeforces",
        "instance_id": "many",
        "prompt": "Print the square of many a number.",
        "tests": tests,
        "total_time_limit": 3000,
    }
    source = "print(int(input()) ** 2)"
    with kind_service([row(instance, source, "n = int(input())\nprint(n * n if n < 9999 else 0)")]) as kind:
        began = time.monotonic()
        (result,) = kind.run([instance], timeout=1200, timeouts={"eval": 1100.0})
        print(f"10,000 cases in {time.monotonic() - began:.1f} s")
        assert (result.reward, result.eval["passed"]) == (1.0, 10_000), result.eval
