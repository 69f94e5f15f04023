"""Three task kinds that need more than one sandbox for init and rollout. The instance is a HumanEval row.

rivals      two agents, each in a workspace of its own, solve the same problem
graded      the agent's program is scored in a sandbox that stood ready while the agent was at work
inspected   eval looks at the agent's own workspace as the agent left it
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from prorl_celery.handlers import EvalContext, Handler, RolloutContext, SandboxRequest
from prorl_celery.jobs.models import JobRequest
from prorl_celery.sandbox.base import Sandbox

SOLUTION = "/workspace/solution.py"


def task(ctx: RolloutContext) -> list[dict[str, str]]:
    """The agent's first message."""
    return [{"role": "user", "content": f"Complete this function in {SOLUTION}:\n\n{ctx.instance['prompt']}"}]


def passes(ctx: EvalContext, sandbox: Sandbox) -> bool:
    """Whether the solution that lies in a sandbox passes the tests. For solutions that one trusts: see `code`."""
    sandbox.shell.run(f"sleep {ctx.instance.get('eval_s', 0)}", timeout=60)
    checks = f"{ctx.instance['test']}\nfrom solution import *\ncheck({ctx.instance['entry_point']})\n"
    sandbox.files.write("/workspace/checks.py", checks.encode())
    return sandbox.shell.run("cd /workspace && python3 checks.py", timeout=60).exit_code == 0


class Rivals(Handler):
    """There is no main sandbox; each agent is told in which of the two its tools work."""

    data_source = "rivals"
    uses_sandbox = False

    def sandboxes(self, job: JobRequest) -> Mapping[str, SandboxRequest]:
        return {"red": SandboxRequest(), "blue": SandboxRequest()}

    def rollout(self, ctx: RolloutContext) -> dict[str, Any]:
        for name in ctx.sandboxes:
            ctx.run_agent(task(ctx), sandbox=name)
        return {"solutions": {name: box.files.read(SOLUTION).decode() for name, box in ctx.sandboxes.items()}}

    def eval(self, ctx: EvalContext) -> dict[str, Any]:
        passed = {}
        for name, solution in ctx.rollout["solutions"].items():
            sandbox = ctx.fresh_sandbox()
            sandbox.files.write(SOLUTION, solution.encode())
            passed[name] = passes(ctx, sandbox)
        return {"reward": sum(passed.values()) / len(passed), "passed": passed}


class Graded(Handler):
    """No agent has touched the grader: it was started for eval alone, and did not cost eval its start."""

    data_source = "graded"

    def sandboxes(self, job: JobRequest) -> Mapping[str, SandboxRequest]:
        return {"grader": SandboxRequest(stages=("eval",))}

    def rollout(self, ctx: RolloutContext) -> dict[str, Any]:
        ctx.run_agent(task(ctx))
        return {"solution": ctx.sandbox.files.read(SOLUTION).decode()}

    def eval(self, ctx: EvalContext) -> dict[str, Any]:
        grader = ctx.sandboxes["grader"]
        grader.files.write(SOLUTION, ctx.rollout["solution"].encode())
        return {"reward": float(passes(ctx, grader))}


class Inspected(Handler):
    """The main sandbox outlives rollout, so that nothing needs to be carried over. A repeated eval finds it again."""

    data_source = "inspected"

    def sandbox_request(self, job: JobRequest) -> SandboxRequest:
        return replace(super().sandbox_request(job), stages=("init", "rollout", "eval"))

    def rollout(self, ctx: RolloutContext) -> dict[str, Any]:
        return ctx.run_agent(task(ctx))

    def eval(self, ctx: EvalContext) -> dict[str, Any]:
        return {"reward": float(passes(ctx, ctx.sandbox))}
