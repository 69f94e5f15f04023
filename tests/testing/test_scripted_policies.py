"""Each policy, played by a real server process against simulated tools."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from scripted_agent import Agent, post

from prorl_celery.testing import ScriptedBackend
from prorl_celery.testing.scripted.latency import make_latency
from prorl_celery.testing.scripted.oracle import Oracle, human_eval_rows
from prorl_celery.testing.scripted.policies import make_policy

ROWS = human_eval_rows()
Start = Callable[..., ScriptedBackend]

_SCORE = """
import json, sys
passed = []
for job in json.load(sys.stdin):
    try:
        exec(job["program"], {"__name__": "scored"})
    except Exception:
        passed.append(False)
    else:
        passed.append(True)
print(json.dumps(passed), file=sys.stderr)
"""


def task(row: dict[str, str]) -> str:
    return f"Complete the function.\n\n```python\n{row['prompt']}```\n\nLeave it in /workspace/solution.py."


def passed(modules: list[str], rows: list[dict[str, str]]) -> list[bool]:
    """Which modules pass HumanEval's tests, run in one child process."""
    programs = [
        {"program": f"{module}\n{row['test']}\ncheck({row['entry_point']})\n"}
        for module, row in zip(modules, rows, strict=True)
    ]
    child = subprocess.run(
        [sys.executable, "-P", "-c", _SCORE], input=json.dumps(programs), capture_output=True, text=True, timeout=60
    )
    result: list[bool] = json.loads(child.stderr)
    return result


@pytest.mark.parametrize("rows", [ROWS[::20], pytest.param(ROWS, marks=pytest.mark.slow)], ids=["some", "all 164"])
def test_solve_passes_the_hidden_tests_of_each_problem(
    solver: ScriptedBackend, tmp_path: Path, rows: list[dict[str, str]]
) -> None:
    modules = []
    for number, row in enumerate(rows):
        workspace = tmp_path / str(number)
        workspace.mkdir()
        agent = Agent(solver.url, task(row), workspace).run(2)  # looks round, writes
        if number % 8 == 0:
            agent.run()
            assert agent.finished
            assert len(agent.turns) == 4
            assert agent.observations[-2] == "loads\nexit code 0"
        modules.append((workspace / "solution.py").read_text())
    assert all(passed(modules, rows))
    assert solver.stats()["aborts"] == 0


def test_fail_writes_modules_that_load_and_pass_no_hidden_test(scripted: Start, tmp_path: Path) -> None:
    backend = scripted("fail", oracle="human-eval")
    rows, modules = ROWS[::41], []
    for number, row in enumerate(rows):
        workspace = tmp_path / str(number)
        workspace.mkdir()
        agent = Agent(backend.url, task(row), workspace).run(3)
        assert agent.observations[-1] == "loads\nexit code 0"
        modules.append((workspace / "solution.py").read_text())
    assert not any(passed(modules, rows))


def test_no_wrong_module_is_right_by_accident() -> None:
    oracle = Oracle.load("human-eval")
    problems = [oracle.find(row["prompt"]) for row in ROWS]
    assert [problem.key for problem in problems if problem] == [row["task_id"] for row in ROWS]
    assert not any(passed([problem.wrong_module for problem in problems if problem], ROWS))


def test_p_is_decided_by_the_seeds_and_the_problem(scripted: Start, tmp_path: Path) -> None:
    backend = scripted("p=0.5", oracle="human-eval")

    def written(seed: int) -> str:
        agent = Agent(backend.url, task(ROWS[3]), tmp_path, seed=seed)
        agent.turn()
        agent.turn()
        return (tmp_path / "solution.py").read_text()

    first = [written(seed) for seed in range(6)]
    assert len(set(first)) == 2
    backend.kill()
    backend.start()
    assert [written(seed) for seed in range(6)] == first


def test_p_solves_about_that_share_of_the_samples() -> None:
    oracle = Oracle.load("human-eval")
    policy = make_policy("p=0.3", oracle)
    problem = oracle.find(ROWS[0]["prompt"])
    assert problem is not None
    conversation = _Stub(ROWS[0]["prompt"])
    right = sum(problem.solution in policy(conversation, seed) for seed in range(2000))  # type: ignore[arg-type]
    assert 500 < right < 700


class _Stub:
    """A conversation without tools."""

    turn = 0
    tools: frozenset[str] = frozenset()

    def __init__(self, task: str) -> None:
        self.task = self.last = task


def test_a_restart_in_the_middle_of_a_rollout_goes_unnoticed(scripted: Start, tmp_path: Path) -> None:
    backend = scripted("solve", oracle="human-eval")
    agent = Agent(backend.url, task(ROWS[5]), tmp_path)
    agent.turn()
    backend.kill()
    backend.start()
    agent.run()
    assert agent.finished
    assert passed([(tmp_path / "solution.py").read_text()], [ROWS[5]]) == [True]


def test_loop_never_finishes(scripted: Start, tmp_path: Path) -> None:
    agent = Agent(scripted("loop").url, "anything", tmp_path).run(20)
    assert not agent.finished
    assert agent.observations[7] == "still working, turn 7\nexit code 0"


def test_malformed_errs_in_different_ways_and_then_solves(scripted: Start, tmp_path: Path) -> None:
    backend = scripted("malformed:6", oracle="human-eval")
    agent = Agent(backend.url, task(ROWS[1]), tmp_path).run(12)
    assert agent.finished
    assert len(set(agent.turns[:6])) == 6
    assert len(agent.turns) == 10
    assert passed([(tmp_path / "solution.py").read_text()], [ROWS[1]]) == [True]


def test_think_thinks_long_before_each_turn(scripted: Start, tmp_path: Path) -> None:
    agent = Agent(scripted("think:300", oracle="human-eval").url, task(ROWS[2]), tmp_path).run()
    assert agent.finished
    for turn in agent.turns:
        thought, _, rest = turn.partition("</think>")
        assert thought.startswith("<think>\n")
        assert len(thought.split()) == 301
        assert rest.strip()


def test_toy_is_the_job_that_peers_were_measured_on(scripted: Start, tmp_path: Path) -> None:
    agent = Agent(scripted("toy").url, "count", tmp_path).run()
    assert agent.observations == [f"step-{i}\nexit code 0" for i in (1, 2, 3, 4)]
    assert agent.turns[4] == "All 4 steps are done."
    assert agent.finished


def test_obey_runs_the_commands_of_the_task_and_several_in_a_turn(scripted: Start, tmp_path: Path) -> None:
    agent = Agent(scripted("obey").url, "Do this:\n$ echo 1 >> steps\n$ echo 2 >> steps ;; echo 3 >> steps", tmp_path)
    agent.run()
    assert (tmp_path / "steps").read_text().split() == ["1", "2", "3"]
    assert len(agent.turns) == 3


def test_answer_does_sums_right_or_wrong_by_the_seed(scripted: Start, tmp_path: Path) -> None:
    backend = scripted("answer:0.5")
    answers = []
    for seed in range(16):
        agent = Agent(backend.url, "What is 3 + 4?", tmp_path, tools=None, seed=seed).run(1)
        assert agent.finished
        answers.append(agent.turns[0].rpartition("#### ")[2])
    assert "7" in answers
    assert set(answers) - {"7"}


def test_an_unknown_problem_is_given_up_and_not_invented(solver: ScriptedBackend, tmp_path: Path) -> None:
    agent = Agent(solver.url, "```python\ndef unheard_of(x):\n```", tmp_path).run()
    assert agent.finished
    assert "I do not know this problem." in agent.turns[-1]


def test_without_tools_the_solution_is_the_answer(solver: ScriptedBackend) -> None:
    body = {"model": "scripted", "messages": [{"role": "user", "content": task(ROWS[4])}]}
    _, answer, _ = post(solver.url + "/v1/chat/completions", body)
    code = answer["choices"][0]["message"]["content"].partition("```python\n")[2].rpartition("```")[0]
    assert passed([code], [ROWS[4]]) == [True]


def test_an_oracle_may_be_a_file(scripted: Start, tmp_path: Path) -> None:
    row = {"prompt": "def twice(x):\n", "entry_point": "twice", "canonical_solution": "    return 2 * x\n"}
    path = tmp_path / "problems.jsonl"
    path.write_text(json.dumps(row) + "\n")
    Agent(scripted("solve", oracle=path).url, f"```python\n{row['prompt']}```", tmp_path).run()
    assert (tmp_path / "solution.py").read_text() == "def twice(x):\n    return 2 * x\n"


@pytest.mark.parametrize("spec", ["nothing", "p=2", "p=", "toy:1,2,3", "think:many", "solve:1"])
def test_a_wrong_policy_is_refused_by_name(spec: str) -> None:
    with pytest.raises(ValueError, match="policy"):
        make_policy(spec, Oracle([]))


@pytest.mark.parametrize("spec", ["-1", "fast", "lognormal:1", "tokens:", "nan", "inf"])
def test_a_wrong_latency_is_refused(spec: str) -> None:
    with pytest.raises(ValueError, match="latency"):
        make_latency(spec)


def test_latency_models_keep_their_means() -> None:
    draw = make_latency("lognormal:0.5,0.8", seed=1)
    assert 0.45 < sum(draw(10) for _ in range(20_000)) / 20_000 < 0.55
    assert make_latency("tokens:0.01")(30) == pytest.approx(0.3)
    assert make_latency("0.2")(30) == 0.2
