"""`code`: write a Python program; hidden tests score it in a sandbox that the agent never touched.

Instance, either a HumanEval row as published (`task_id`, `prompt`, `entry_point`, `test`, `canonical_solution`) or a
`prompt` with `tests: [{"input", "output"}]` for a program that reads stdin and writes stdout. Neither the tests nor the
canonical solution enters the agent's sandbox or its prompt. The agent leaves its program at `/workspace/solution.py`.

Figures of HumanEval: Chen et al. 2021, 164 problems, `check(candidate)` raises when a test fails.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from prorl_celery.errors import BadInstance, EvalError
from prorl_celery.handlers.base import EvalContext, Handler, RolloutContext, require
from prorl_celery.handlers.check_function import NOT_SCORED
from prorl_celery.sandbox.base import Sandbox

SOLUTION = "/workspace/solution.py"
SOLUTION_LIMIT_BYTES = 256 << 10
OUTPUT_LIMIT_BYTES = 1 << 20
CHECK_SECONDS = 30.0
"""Most seconds of one hidden test run; HumanEval's own harness takes 3."""

SYSTEM = "You are a careful programmer. You work in a Linux sandbox with the tools you are given."

FUNCTION_TASK = """Complete this Python function.

```python
{prompt}
```

Write the whole module, the lines above included, to {path}, try it out, then call finish."""

PROGRAM_TASK = """{prompt}

Write a Python program that reads standard input and writes standard output to {path}, try it out, then call finish."""

CHECK = files("prorl_celery.handlers").joinpath("check_function.py").read_text(encoding="utf-8")
NO_PYTHON = (126, 127)
"""What a shell says of a program that is not there or cannot be run; no exit code of the tests."""


class CodeHandler(Handler):
    """HumanEval and stdin/stdout programming problems."""

    data_source = "code"

    def validate(self, instance: Mapping[str, Any]) -> None:
        require(instance, "prompt")
        if "test" in instance:
            require(instance, "test")
            if not require(instance, "entry_point").isidentifier():
                raise BadInstance("'entry_point' is not a Python name", field="entry_point")
            return
        if "tests" not in instance:
            raise BadInstance("the instance has neither 'test' nor 'tests'", field="test")
        tests = require(instance, "tests", list)
        if not tests:
            raise BadInstance("'tests' is empty", field="tests")
        for i, test in enumerate(tests):
            if not isinstance(test, dict) or not all(isinstance(test.get(k), str) for k in ("input", "output")):
                raise BadInstance("a test is {'input': text, 'output': text}", field=f"tests.{i}")

    def rollout(self, ctx: RolloutContext) -> dict[str, Any]:
        template = FUNCTION_TASK if "test" in ctx.instance else PROGRAM_TASK
        task = template.format(prompt=ctx.instance["prompt"].rstrip(), path=SOLUTION)
        ctx.run_agent([{"role": "system", "content": SYSTEM}, {"role": "user", "content": task}])
        try:
            solution = ctx.sandbox.files.read(SOLUTION, limit_bytes=SOLUTION_LIMIT_BYTES)
        except OSError as error:
            return {"solution": None, "why": f"{SOLUTION}: {error.strerror or error}"}
        text = solution.decode("utf-8", "replace")
        return {"solution": text, "artifacts": {"solution.py": text}}

    def eval(self, ctx: EvalContext) -> dict[str, Any]:
        solution = ctx.rollout["solution"]
        if solution is None:
            return {"reward": 0.0, "resolved": False, "why": ctx.rollout["why"]}
        sandbox = ctx.fresh_sandbox()
        sandbox.files.write(SOLUTION, solution.encode("utf-8", "replace"))
        if "test" in ctx.instance:
            return _check_function(sandbox, ctx.instance)
        return _check_program(sandbox, ctx.instance["tests"])


def _check_function(sandbox: Sandbox, instance: Mapping[str, Any]) -> dict[str, Any]:
    """Run `check(candidate)`, as `check_function.py` says. A pass is told by a secret the solution never sees.

    Raises `EvalError` when the tests could not begin: that is no fault of the solution.
    """
    proof, entry_point = secrets.token_hex(16), instance["entry_point"]
    sandbox.files.write("/tmp/check.py", CHECK.encode())
    sandbox.files.write("/tmp/tests", repr((instance["prompt"], instance["test"])).encode())
    command = f"printf '{proof}\\n' | python3 -I /tmp/check.py {SOLUTION} /tmp/tests {entry_point}"
    ran = sandbox.shell.run(command, timeout=CHECK_SECONDS)
    said = ran.output.replace(proof, "")[-2000:]
    if ran.exit_code in (NOT_SCORED, *NO_PYTHON):
        raise EvalError(f"the hidden tests could not be run (exit code {ran.exit_code}): {said}")
    resolved = ran.exit_code == 0 and proof in ran.output
    verdict: dict[str, Any] = {"reward": float(resolved), "resolved": resolved, "exit_code": ran.exit_code}
    if ran.timed_out:
        verdict["why"] = f"the tests did not end in {CHECK_SECONDS:g} s"
    elif not resolved:
        verdict["why"] = said
    return verdict


def _check_program(sandbox: Sandbox, tests: list[dict[str, str]]) -> dict[str, Any]:
    """Run the program once per test. Expected outputs stay on this side; only inputs enter the sandbox.

    Raises `EvalError` when the sandbox has no Python: that is no fault of the program.
    """
    if sandbox.shell.run("command -v python3", timeout=CHECK_SECONDS).exit_code != 0:
        raise EvalError("the sandbox has no python3")
    for number, test in enumerate(tests):
        sandbox.files.write("/tmp/input", test["input"].encode())
        ran = sandbox.shell.run(f"python3 -I {SOLUTION} </tmp/input >/tmp/output", timeout=CHECK_SECONDS)
        why = None
        if ran.timed_out:
            why = f"test {number} did not end in {CHECK_SECONDS:g} s"
        elif ran.exit_code != 0:
            why = f"test {number} ended with exit code {ran.exit_code}: {ran.output[-1000:]}"
        else:
            why = _wrong_output(sandbox, number, test["output"])
        if why is not None:
            return {"reward": 0.0, "resolved": False, "passed": number, "of": len(tests), "why": why}
    return {"reward": 1.0, "resolved": True, "passed": len(tests), "of": len(tests)}


def _wrong_output(sandbox: Sandbox, number: int, expected: str) -> str | None:
    """What is wrong with a program's output; None when it is the one expected."""
    try:
        output = sandbox.files.read("/tmp/output", limit_bytes=OUTPUT_LIMIT_BYTES).decode("utf-8", "replace")
    except OSError as error:  # too much of it, or no file any more: the program's own doing
        return f"test {number} left no output that can be read: {error.strerror or error}"
    return None if output.split() == expected.split() else f"test {number} printed something else"
