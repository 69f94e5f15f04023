"""What one gets wrong in a first handler is told by its cause."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from prorl_celery.cli.handler import handler
from prorl_celery.errors import EvalError
from prorl_celery.handlers.base import Handler
from tasks.eval import _scored

FORGETFUL = """
from prorl_celery.handlers.base import Handler

class Forgetful(Handler):
    data_source = "forgetful"
    uses_sandbox = False
    default_tools = ("finish",)

    def validate(self, instance):
        instance["word"].strip()

    def rollout(self, ctx):
        return ctx.run_agent("What is the word?")
"""


def tried(tmp_path: Path, instance: dict[str, Any], source: str = FORGETFUL) -> tuple[int, str]:
    (tmp_path / "forgetful.py").write_text(source)
    (tmp_path / "one.json").write_text(json.dumps(instance))
    done = CliRunner().invoke(handler, ["try", str(tmp_path / "forgetful.py"), str(tmp_path / "one.json")])
    return done.exit_code, done.stderr


def test_an_instance_without_a_data_source_is_told_which(tmp_path: Path) -> None:
    assert tried(tmp_path, {"word": "x"}) == (
        2,
        "prorl: the instance has no 'data_source'; Forgetful's is 'forgetful' (field data_source)\n",
    )


def test_a_validate_that_stumbles_is_told_with_its_line_and_what_it_should_raise(tmp_path: Path) -> None:
    code, said = tried(tmp_path, {"data_source": "forgetful"})
    assert code == 2
    assert 'instance["word"].strip()' in said
    assert said.endswith("prorl: Forgetful could not read the instance (KeyError: 'word'); refuse it by BadInstance\n")


def test_a_text_in_place_of_messages_is_told_where_it_is_given(tmp_path: Path) -> None:
    code, said = tried(tmp_path, {"data_source": "forgetful", "word": "x"})
    assert code == 1
    assert 'run_agent takes a list of messages, each {"role": ..., "content": ...}' in said
    assert 'return ctx.run_agent("What is the word?")' in said


@pytest.mark.parametrize("method", ["rollout", "eval"])
def test_a_method_that_is_not_there_is_named(method: str) -> None:
    with pytest.raises(NotImplementedError, match=f"Handler has no method {method}"):
        getattr(Handler(), method)(None)


@pytest.mark.parametrize(
    ("verdict", "said"),
    [({"score": 1.0}, "is absent"), ({"reward": "1.0"}, r"is '1\.0' \(str\)"), ({"reward": True}, r"True \(bool\)")],
)
def test_a_reward_that_is_no_number_is_told_as_it_is_written(verdict: dict[str, Any], said: str) -> None:
    with pytest.raises(EvalError, match=said):
        _scored(verdict)
