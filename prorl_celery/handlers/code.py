"""`code`: write a program; hidden tests score it in a sandbox that the agent never touched.

Instance: a `prompt` (or `problem`, `question`, `description`), and tests in one of the forms that data sets have them
in: a HumanEval row as published, MBPP's assertions, calls of a function, or inputs and outputs of a program
(`prorl_celery.grading.code.problem` lists fields, limits, checkers and defaults). Neither tests nor a canonical
solution enter the agent's sandbox or its prompt.

The agent leaves its program at `/workspace/solution.py`. A job with none of the tools that need a sandbox has none: its
solution is the last fenced block of the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from prorl_celery.grading.code.forms import CODECONTESTS, FIELDS, Cases, Check
from prorl_celery.grading.code.grade import grade, last_fence
from prorl_celery.grading.code.problem import Problem, problem_of
from prorl_celery.handlers.base import EvalContext, Handler, RolloutContext, SandboxRequest
from prorl_celery.jobs.models import JobRequest
from prorl_celery.sandbox.base import Sandbox

WORKSPACE = "/workspace"
NAMES = {"python": "solution.py", "cpp": "solution.cpp"}
LANGUAGES = {"python": "Python", "cpp": "C++"}
SOLUTION_LIMIT_BYTES = 256 << 10
USUAL_MEMORY = 1 << 30
"""A program that may use more has a sandbox of its own size."""
TOOLS_ANYWHERE = ("finish", "think")
"""Tools that need no sandbox."""

TEST_PARTS = (("test", "entry_point"), ("test_list", "test_setup_code", "test_imports"))
"""Fields of the forms that are no cases: the tests, and what belongs to them."""

SYSTEM = "You are a careful programmer. You work in a Linux sandbox with the tools you are given."
SYSTEM_ALONE = "You are a careful programmer."
LEAVE_IT = " to {path}, try it out, then call finish."
SAY_IT = " as one block that begins with ```{fence} and ends with ```, at the end of your answer."


class CodeHandler(Handler):
    """Programming problems: HumanEval, MBPP, APPS, TACO, CodeContests, Codeforces and their like."""

    data_source = "code"
    aliases = ("deepcoder", "codecontests", "apps", "codeforces", "taco")

    def validate(self, instance: Mapping[str, Any]) -> None:
        problem_of(instance)

    def needs_sandbox(self, job: JobRequest) -> bool:
        """Whether one of the job's tools works in one; eval starts its own all the same."""
        tools = self.default_tools if job.agent.tools is None else job.agent.tools
        return not set(tools) <= set(TOOLS_ANYWHERE)

    def rollout(self, ctx: RolloutContext) -> dict[str, Any]:
        problem = problem_of(ctx.instance)
        if not self.needs_sandbox(ctx.job):
            said = ctx.run_agent(_messages(problem, None))
            found = last_fence(said["answer"] or "")
            return _solution(problem, None if found is None else found.encode("utf-8", "replace"), NO_FENCE)
        path = f"{WORKSPACE}/{NAMES[problem.language]}"
        ctx.run_agent(_messages(problem, path))
        try:
            return _solution(problem, ctx.sandbox.files.read(path, limit_bytes=SOLUTION_LIMIT_BYTES))
        except OSError as error:
            return _solution(problem, None, f"{path}: {error.strerror or error}")

    def eval(self, ctx: EvalContext) -> dict[str, Any]:
        problem, solution = problem_of(ctx.instance), ctx.rollout["solution"]
        if solution is None:
            return {"reward": 0.0, "resolved": False, "why": ctx.rollout["why"]}
        return grade(_starting(ctx, problem), problem, solution.encode()).to_json(problem.scoring)

    def solution(self, ctx: EvalContext) -> str:
        """The program, for a reward server; empty where there is none."""
        return ctx.rollout["solution"] or ""

    def ground_truth(self, instance: Mapping[str, Any]) -> Any:
        """For a reward server: the instance's own, else its tests as it has them: what stands in their field, or, where
        they take several, an object of these.
        """
        if instance.get("ground_truth") is not None:
            return instance["ground_truth"]
        parts = next((parts for parts in TEST_PARTS if instance.get(parts[0]) is not None), CODECONTESTS)
        name = next((name for name in FIELDS if instance.get(name) is not None), "tests")
        if parts is CODECONTESTS and name != "private_tests":
            return instance[name]
        return {part: instance[part] for part in parts if instance.get(part)}


def _starting(ctx: EvalContext, problem: Problem) -> Callable[[], Sandbox]:
    """How to start a sandbox with room for the program and what judges it."""
    if problem.memory_limit_bytes <= USUAL_MEMORY:
        return ctx.fresh_sandbox
    return partial(ctx.fresh_sandbox, SandboxRequest(memory_bytes=2 * problem.memory_limit_bytes))


NO_FENCE = "the answer has no fenced block of code that ends"


def _solution(problem: Problem, source: bytes | None, why: str = "") -> dict[str, Any]:
    """What rollout returns: the solution as text, or None and why there is none."""
    if source is not None:
        try:
            text = source.decode("utf-8")
        except UnicodeDecodeError as error:
            why = f"the solution is not UTF-8: {error.reason} at byte {error.start}"
        else:
            if len(source) <= SOLUTION_LIMIT_BYTES:
                return {"solution": text, "artifacts": {NAMES[problem.language]: text}}
            why = f"the solution is longer than {SOLUTION_LIMIT_BYTES} bytes"
    return {"solution": None, "why": why}


def _messages(problem: Problem, path: str | None) -> list[dict[str, str]]:
    """The conversation's beginning. Without a path, the solution is to be said."""
    where = SAY_IT.format(fence=problem.language) if path is None else LEAVE_IT.format(path=path)
    system = SYSTEM_ALONE if path is None else SYSTEM
    return [{"role": "system", "content": system}, {"role": "user", "content": task(problem) + where}]


def task(problem: Problem) -> str:
    """What is to be written, up to where to write it."""
    prompt, tests = problem.prompt.rstrip(), problem.tests
    if isinstance(tests, Check):
        begin = f"Complete this Python function.\n\n```python\n{prompt}\n```"
        return f"{begin}\n\nWrite the whole module, the lines above included,"
    begin = f"\n\nBegin with this:\n\n```{problem.language}\n{problem.starter.rstrip()}\n```" if problem.starter else ""
    if isinstance(tests, Cases) and tests.function is None:
        language = LANGUAGES[problem.language]
        return f"{prompt}{begin}\n\nWrite a {language} program that reads standard input and writes standard output"
    names = [tests.function] if isinstance(tests, Cases) else list(tests.names)
    return f"{prompt}{begin}\n\nWrite a Python module that defines {', '.join(map(str, names))}"
