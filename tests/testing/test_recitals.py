"""Recitals: an oracle's turns, said one by one by a real server process."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scripted_agent import Agent

from prorl_celery.testing import ScriptedBackend
from prorl_celery.testing.scripted.oracle import Oracle, human_eval_rows
from prorl_celery.testing.scripted.policies import make_policy

Start = Callable[..., ScriptedBackend]

RIVER = {
    "key": "river",
    "prompt": "Name a river\n   of France.",
    "turns": [
        {"text": "I note it.", "calls": [{"name": "bash", "arguments": {"command": "echo Loire > note"}}]},
        {
            "text": "",
            "calls": [
                {"name": "bash", "arguments": {"command": "echo one"}},
                {"name": "bash", "arguments": {"command": "cat note"}},
            ],
        },
        {"text": "The Loire."},
    ],
    "wrong_turns": [{"text": "The Thames."}],
}
HILL = {"key": "hill", "prompt": "Name a hill.", "turns": [{"text": "Box Hill."}]}


def written(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_the_turns_of_a_row_are_said_one_by_one(scripted: Start, tmp_path: Path) -> None:
    backend = scripted("recite", oracle=written(tmp_path / "rows.jsonl", RIVER, HILL))
    agent = Agent(backend.url, "Please:\n\tName a  river of\nFrance. Be short.", tmp_path).run()
    assert agent.finished
    assert agent.observations == ["exit code 0", "one\nexit code 0", "Loire\nexit code 0"]
    assert agent.turns[0].startswith("I note it.\n<tool_call>")
    assert agent.turns[1].startswith("<tool_call>")
    assert agent.turns[2] == "The Loire."


def test_a_row_that_ends_with_a_call_is_followed_by_a_last_word(scripted: Start, tmp_path: Path) -> None:
    row = HILL | {"turns": [{"calls": [{"name": "bash", "arguments": {"command": "true"}}]}]}
    agent = Agent(scripted("recite", oracle=written(tmp_path / "rows.jsonl", row)).url, "Name a hill.", tmp_path).run()
    assert agent.turns[-1] == "I have said all of it."


def test_p_decides_between_right_and_wrong_by_seeds_and_row(scripted: Start, tmp_path: Path) -> None:
    backend = scripted("recite:0.5", oracle=written(tmp_path / "rows.jsonl", RIVER))

    def last_words(seed: int) -> str:
        return Agent(backend.url, RIVER["prompt"], tmp_path, seed=seed).run().turns[-1]  # type: ignore[arg-type]

    first = [last_words(seed) for seed in range(12)]
    assert set(first) == {"The Loire.", "The Thames."}
    assert [last_words(seed) for seed in range(12)] == first


def test_the_longest_prompt_that_stands_in_the_message_is_meant(tmp_path: Path) -> None:
    longer = HILL | {"key": "longer", "prompt": "Name a hill. In Surrey."}
    oracle = Oracle.load(str(written(tmp_path / "rows.jsonl", longer, HILL)))
    found = [oracle.recital(text) for text in ("Name a hill. In Kent.", "Q: Name a hill. In Surrey.", "Name a town.")]
    assert [row and row.key for row in found] == ["hill", "longer", None]


def test_one_file_may_hold_problems_and_recitals(scripted: Start, tmp_path: Path) -> None:
    problem = human_eval_rows()[0]
    backend = scripted("recite", oracle=written(tmp_path / "rows.jsonl", problem, HILL))
    assert Agent(backend.url, "Name a hill.", tmp_path).run().turns == ["Box Hill."]
    Agent(backend.url, f"Do it.\n```python\n{problem['prompt']}```", tmp_path).run()
    assert problem["canonical_solution"] in (tmp_path / "solution.py").read_text()


def test_an_argument_may_have_any_name(tmp_path: Path) -> None:
    call = {"name": "tool", "arguments": {"name": "x", "self": 1}}
    oracle = Oracle.load(str(written(tmp_path / "rows.jsonl", HILL | {"turns": [{"calls": [call]}]})))
    said = make_policy("recite", oracle)(_Stub("Name a hill."), 0)  # type: ignore[arg-type]
    assert json.loads(said.removeprefix("<tool_call>\n").removesuffix("\n</tool_call>")) == call


class _Stub:
    """A conversation in which nothing has been said."""

    turn = 0
    tools = frozenset({"bash"})

    def __init__(self, task: str) -> None:
        self.task = self.last = task


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (HILL | {"key": 3}, "row 1 of the oracle: key must be text, not 3"),
        (HILL | {"prompt": " \n"}, "row 1 of the oracle: prompt must be text"),
        (HILL | {"turns": []}, "row 1 of the oracle: turns must not be empty"),
        (HILL | {"turns": "x"}, "row 1 of the oracle: turns must be a list"),
        (HILL | {"turns": [{"txt": "x"}]}, r"row 1 of the oracle: turns\[0\] must be"),
        (HILL | {"turns": [{"text": 1}]}, r"row 1 of the oracle: turns\[0\].text must be text"),
        (HILL | {"turns": [{"calls": {}}]}, r"row 1 of the oracle: turns\[0\].calls must be a list"),
        (HILL | {"turns": [{"calls": [{"name": "bash"}]}]}, r"row 1 of the oracle: turns\[0\].calls\[0\] must be"),
        (HILL | {"wrong_turns": [7]}, r"row 1 of the oracle: wrong_turns\[0\] must be"),
        (HILL | {"wrongturns": []}, "row 1 of the oracle: unknown field 'wrongturns'"),
    ],
)
def test_a_wrong_row_is_refused_by_its_number_and_field(row: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=said):
        Oracle.load(str(written(tmp_path / "rows.jsonl", row)))


def test_two_rows_that_say_different_things_for_one_prompt_are_refused(tmp_path: Path) -> None:
    other = HILL | {"key": "other", "prompt": "Name  a hill.", "turns": [{"text": "Leith Hill."}]}
    with pytest.raises(ValueError, match="rows 'hill' and 'other' have the same prompt"):
        Oracle.load(str(written(tmp_path / "rows.jsonl", HILL, other)))


def test_a_share_of_wrong_ones_needs_wrong_words(tmp_path: Path) -> None:
    oracle = Oracle.load(str(written(tmp_path / "rows.jsonl", RIVER, HILL)))
    make_policy("recite", oracle)
    with pytest.raises(ValueError, match="'hill' has no wrong_turns"):
        make_policy("recite:0.9", oracle)
    with pytest.raises(ValueError, match="from 0 to 1"):
        make_policy("recite:2", oracle)
