"""The README says what is so: its commands exist, its code runs."""

import re
import subprocess
from pathlib import Path

import click
import pytest

from prorl_celery.cli.main import cli
from prorl_celery.handlers.base import Handler

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


@pytest.mark.parametrize("target", sorted(set(re.findall(r"\bmake ([a-z][a-z-]*)\b(?=`|\n)", README))))
def test_every_make_target_of_the_readme_exists(target: str) -> None:
    told = subprocess.run(["make", "--dry-run", target], cwd=ROOT, capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr


def test_every_prorl_command_of_the_readme_exists_with_its_options() -> None:
    lines = re.findall(r"prorl ((?:[a-z-]+)(?: [^`;\n]*)?)[`;\n]", README)
    assert lines
    context = click.Context(cli)
    for line in lines:
        words = line.split()
        command = cli.get_command(context, words[0])
        assert command is not None, line
        known = {option for param in command.params for option in param.opts}
        if isinstance(command, click.Group) and len(words) > 1:
            inner = command.get_command(context, words[1])
            assert inner is not None, line
            known |= {option for param in inner.params for option in param.opts}
        assert {word for word in words if word.startswith("--")} <= known, line


def test_the_task_of_the_readme_is_a_handler() -> None:
    [source] = [block for block in blocks("python") if "class Reverse" in block]
    space: dict[str, object] = {}
    exec(compile(source, "README.md", "exec"), space)
    handler = space["Reverse"]
    assert isinstance(handler, type)
    assert issubclass(handler, Handler)
    assert handler.data_source == "reverse"


def test_the_readme_begins_with_the_two_commands() -> None:
    assert blocks("sh")[0].split("\n")[:2] == ["make demo", "make test"]
