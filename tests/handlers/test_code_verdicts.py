"""What the `code` handler says of solutions, in real sandboxes: right, wrong, and those that would rather cheat."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from prorl_celery.errors import EvalError
from prorl_celery.handlers.code import CodeHandler
from prorl_celery.sandbox.base import Sandbox, SandboxSpec
from prorl_celery.sandbox.waiting import NeverCancelled
from prorl_celery.settings import Settings
from prorl_celery.testing.keeper import KeeperProcess

PROMPT = '''from typing import List


def helper(value: int) -> int:
    return value + 1


def above(values: List[float], *, limit: float = 1.0) -> List[float]:
    """Those above a limit."""
'''
TEST = """
METADATA = {}


def check(candidate):
    assert candidate([helper(0), 2, 3.5]) == [2, 3.5]
    assert candidate([0.5, float("inf")], limit=0.75) == [float("inf")]
    assert abs(sum(candidate([2.5])) - 2.5) < 1e-6
    assert candidate([]) == [] and above([]) == []
    try:
        candidate([None])
    except TypeError:
        return
    raise AssertionError("nothing was raised")
"""
RIGHT = PROMPT + "    return [value for value in values if value > limit]\n"
FUNCTION = {"prompt": PROMPT, "test": TEST, "entry_point": "above"}
PROGRAM = {"prompt": "Echo.", "tests": [{"input": "1\n", "output": "1"}, {"input": "2\n", "output": "2\n"}]}


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Sandbox]]:
    with (
        KeeperProcess(Settings(run_dir=tmp_path_factory.mktemp("run"), node="n1")) as keeper,
        NeverCancelled() as never,
    ):
        yield lambda: keeper.client.start(SandboxSpec(job_id="j", attempt=1), cancel=never, timeout=30)


@pytest.fixture
def verdict(start: Callable[[], Sandbox]) -> Iterator[Callable[..., dict[str, Any]]]:
    sandbox = start()

    def score(solution: str, instance: dict[str, Any] = FUNCTION, before: str = "") -> dict[str, Any]:
        if before:
            sandbox.shell.run(before, timeout=10)
        ctx: Any = SimpleNamespace(instance=instance, rollout={"solution": solution}, fresh_sandbox=lambda: sandbox)
        return CodeHandler().eval(ctx)

    yield score
    sandbox.stop()


def test_a_right_solution_passes(verdict: Callable[..., dict[str, Any]]) -> None:
    assert verdict(RIGHT) == {"reward": 1.0, "resolved": True, "passed": 1, "of": 1}


SEES_ALL = "class Anything(list):\n    def __eq__(self, other): return True\n    __sub__ = __lt__ = __eq__\n"
CHEATS = {
    "wrong": PROMPT + "    return values\n",
    "no such function": "x = 1\n",
    "no Python": "def above(\n",
    "nothing": "",
    "exits": "import os\nos._exit(0)\n",
    "exits politely": "def above(values, limit=1.0):\n    raise SystemExit(0)\n",
    "says ok": "print('ok')\n" + PROMPT + "    print('ok')\n",
    "equals all": SEES_ALL + "def above(values, limit=1.0): return Anything()\n",
    "other builtins": "import builtins\nbuiltins.abs = builtins.sum = lambda *_: 0\nabs = lambda _: 0\n" + SEES_ALL
    + "def above(values, limit=1.0):\n    if values == [None]: raise TypeError\n    return Anything()\n",
    "reads its caller": "import sys, gc\nf = sys._getframe()\n"
    "while f:\n    print(f.f_globals.get('proof'), f.f_locals)\n    f = f.f_back\n"
    "print([o for o in gc.get_objects() if isinstance(o, dict) and 'proof' in o])\n",
    "reads the tests": "import glob\nprint([open(path, 'rb').read() for path in glob.glob('/workspace/*')])\n",
    "reads its parent": "import os\nfor n in os.listdir(f'/proc/{os.getppid()}/fd'):\n"
    "    print(os.readlink(f'/proc/{os.getppid()}/fd/{n}'))\n",
    "ends the tests": "import os\nos.kill(os.getppid(), 9)\n",
    "ends the shell": "import os\nos.kill(-1, 9)\n",
}  # fmt: skip


@pytest.mark.parametrize("cheat", CHEATS)
def test_a_solution_that_is_wrong_or_cheats_is_scored_as_wrong(
    verdict: Callable[..., dict[str, Any]], cheat: str
) -> None:
    said = verdict(CHEATS[cheat])
    assert (said["reward"], said["resolved"]) == (0.0, False)
    assert "METADATA" not in said["why"]


@pytest.mark.parametrize(
    "broken",
    [
        {**FUNCTION, "test": "def check(candidate:"},
        {**FUNCTION, "test": "import no_such_module\n" + TEST},
        {**FUNCTION, "test": "x = 1"},
    ],
    ids=["no Python", "a module that is missing", "no check"],
)
def test_tests_that_cannot_begin_are_no_ones_wrong_answer(
    verdict: Callable[..., dict[str, Any]], broken: dict[str, Any]
) -> None:
    with pytest.raises(EvalError, match="could not be run"):
        verdict(RIGHT, broken)


@pytest.mark.parametrize("instance", [FUNCTION, PROGRAM], ids=["function", "program"])
def test_a_sandbox_without_python_is_no_ones_wrong_answer(
    verdict: Callable[..., dict[str, Any]], instance: dict[str, Any]
) -> None:
    with pytest.raises(EvalError, match="could not be run"):
        verdict(RIGHT, instance, before="PATH=/nowhere")


@pytest.mark.parametrize(
    ("program", "reward", "why"),
    [
        ("print(input())", 1.0, ""),
        ("print(1)", 0.0, "case 1: wrong answer: it printed '1\\n'"),
        ("for _ in range(2000): print('x' * 1000)", 0.0, "case 0: output limit"),
        ("raise ValueError('no')", 0.0, "case 0: runtime error: it ended with exit code 1"),
    ],
)
def test_a_program_is_scored_by_what_it_prints(
    verdict: Callable[..., dict[str, Any]], program: str, reward: float, why: str
) -> None:
    said = verdict(program, PROGRAM)
    assert said["reward"] == reward
    assert why in said.get("why", "")
