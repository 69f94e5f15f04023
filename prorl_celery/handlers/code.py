"""`code`: write a Python program; hidden tests score it in a sandbox that the agent never touched.

Instance, either a HumanEval row as published (`task_id`, `prompt`, `entry_point`, `test`, `canonical_solution`) or a
`prompt` with `tests: [{"input", "output"}]` for a program that reads stdin and writes stdout. Neither the tests nor the
canonical solution enters the agent's sandbox or its prompt. The agent leaves its program at `/workspace/solution.py`.

Figures of HumanEval: Chen et al. 2021, 164 problems, `check(candidate)` raises when a test fails.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from prorl_celery.errors import BadInstance
from prorl_celery.handlers.base import EvalContext, Handler, RolloutContext, require
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

HARNESS = """\
import os, sys
proof = os.fdopen(os.dup(0), "r")
null = os.open(os.devnull, os.O_RDONLY)
os.dup2(null, 0)
space = {{"__name__": "solution"}}
with open({solution!r}, encoding="utf-8") as file:
    exec(compile(file.read(), {solution!r}, "exec"), space)
tests = dict(space)
exec(compile({test!r}, "hidden tests", "exec"), tests)
tests["check"](space[{entry_point!r}])
sys.stdout.flush()
os.write(1, ("\\n" + proof.readline().strip() + "\\n").encode())
"""


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
        seconds = min(CHECK_SECONDS, ctx.remaining_seconds())
        if "test" in ctx.instance:
            return _check_function(sandbox, ctx.instance, seconds)
        return _check_program(sandbox, ctx.instance["tests"], seconds)


def _check_function(sandbox: Sandbox, instance: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """Run `check(candidate)`. A pass is told by a secret that the harness reads only after the last test, so that a
    solution that exits early or prints "ok" has not passed."""
    proof = secrets.token_hex(16)
    harness = HARNESS.format(solution=SOLUTION, test=instance["test"], entry_point=instance["entry_point"])
    sandbox.files.write("/tmp/check.py", harness.encode())
    ran = sandbox.shell.run(f"printf '{proof}\\n' | python3 -I /tmp/check.py", timeout=seconds)
    resolved = ran.exit_code == 0 and proof in ran.output
    verdict: dict[str, Any] = {"reward": float(resolved), "resolved": resolved, "exit_code": ran.exit_code}
    if ran.timed_out:
        verdict["why"] = f"the tests did not end in {seconds:g} s"
    elif not resolved:
        verdict["why"] = ran.output.replace(proof, "")[-2000:]
    return verdict


def _check_program(sandbox: Sandbox, tests: list[dict[str, str]], seconds: float) -> dict[str, Any]:
    """Run the program once per test. Expected outputs stay on this side; only inputs enter the sandbox."""
    for number, test in enumerate(tests):
        sandbox.files.write("/tmp/input", test["input"].encode())
        ran = sandbox.shell.run(f"python3 -I {SOLUTION} </tmp/input >/tmp/output", timeout=seconds)
        why = None
        if ran.timed_out:
            why = f"test {number} did not end in {seconds:g} s"
        elif ran.exit_code != 0:
            why = f"test {number} ended with exit code {ran.exit_code}: {ran.output[-1000:]}"
        else:
            output = sandbox.files.read("/tmp/output", limit_bytes=OUTPUT_LIMIT_BYTES).decode("utf-8", "replace")
            if output.split() != test["output"].split():
                why = f"test {number} printed something else"
        if why is not None:
            return {"reward": 0.0, "resolved": False, "passed": number, "of": len(tests), "why": why}
    return {"reward": 1.0, "resolved": True, "passed": len(tests), "of": len(tests)}
