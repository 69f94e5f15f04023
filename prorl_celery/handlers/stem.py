"""`stem`: questions of science, with a Python kernel, a shell, and a search where the node has one.

Instance: `problem` (or `question`), and how it is graded.

    {"choices": [...] or {label: text}, "answer": label, text or place}          grading/stem/choices.py has the rules
    {"answer": 9.81 or "9.81 m/s^2", "unit"?, "tolerance"?, "unit_required"?}    grading/stem/quantity.py
    {"judge": true, "answer": reference, "rubric"?}                              grading/stem/judge.py

What is graded is the agent's answer: what it gave to `finish`, else its last text. The judge is the model of
`PRORL_JUDGE_MODEL`, at a backend of its own. `search` is not among the default tools: a job asks for it in
`agent.tools`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prorl_celery.errors import BadInstance
from prorl_celery.grading.stem import judge
from prorl_celery.grading.stem.choices import Choices
from prorl_celery.grading.stem.grade import NO_ANSWER
from prorl_celery.grading.stem.quantity import Key
from prorl_celery.handlers.base import EvalContext, Handler, InitContext, RolloutContext, require
from prorl_celery.jobs.models import JobRequest
from prorl_celery.settings import Settings

SYSTEM = "You are a careful scientist. Use the tools you are given where they help, and check what you find."

CHOICE = """{problem}

{choices}

Exactly one of these is right. Give the letter of your choice as the answer."""

NUMBER = """{problem}

Give one number{unit} as the answer."""

FREE = """{problem}

Give a short answer in words."""

END = """ When you know it, call finish with the answer and nothing else; without that tool, end with a line
"Answer: " and the answer."""

WITHOUT_SANDBOX = frozenset({"finish", "think", "search"})


class StemHandler(Handler):
    """Multiple choice, numbers with units, free answers by a judge."""

    data_source = "stem"
    default_tools = ("ipython", "bash", "finish")

    def validate(self, instance: Mapping[str, Any]) -> None:
        question(instance)
        judged = instance.get("judge") or False
        if not isinstance(judged, bool):
            raise BadInstance("'judge' must be true or false", field="judge")
        if judged and _has_choices(instance):
            raise BadInstance("a choice needs no judge", field="judge")
        if judged:
            judge.check(instance)
        elif _has_choices(instance):
            Choices.of(instance)
        elif instance.get("answer") is not None:
            _key(instance)
        else:
            raise BadInstance("the instance has no 'answer'", field="answer")

    def needs_sandbox(self, job: JobRequest) -> bool:
        """Not where no tool of the job works in one."""
        return not set(self.default_tools if job.agent.tools is None else job.agent.tools) <= WITHOUT_SANDBOX

    def init(self, ctx: InitContext) -> dict[str, Any]:
        if ctx.instance.get("judge"):
            # Here and not in eval: a rollout that nobody can judge is not worth its tokens.
            settings = Settings.from_env()
            if not settings.judge_model:
                raise BadInstance("this node has no judge: PRORL_JUDGE_MODEL names none", field="judge")
            judge.Prompt(settings.judge_prompt)
        return {}

    def rollout(self, ctx: RolloutContext) -> dict[str, Any]:
        messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": task(ctx.instance)}]
        return ctx.run_agent(messages)

    def eval(self, ctx: EvalContext) -> dict[str, Any]:
        reply = (ctx.rollout["answer"] or "").strip()
        if not reply:
            return NO_ANSWER.as_eval()
        if _has_choices(ctx.instance):
            return Choices.of(ctx.instance).grade(reply).as_eval()
        if ctx.instance.get("judge"):
            return _judged(ctx, reply)
        return _key(ctx.instance).grade(reply).as_eval()


def question(instance: Mapping[str, Any]) -> str:
    """The question. Raises `BadInstance`."""
    text: str = require(instance, "question" if "problem" not in instance and "question" in instance else "problem")
    if not text.strip():
        raise BadInstance("the problem is empty", field="problem")
    return text.strip()


def _has_choices(instance: Mapping[str, Any]) -> bool:
    """A table has the column in each of its rows, empty where there are none."""
    return instance.get("choices") is not None


def task(instance: Mapping[str, Any]) -> str:
    """What the agent is told."""
    problem = question(instance)
    if _has_choices(instance):
        return CHOICE.format(problem=problem, choices=Choices.of(instance).shown()) + END
    if instance.get("judge"):
        return FREE.format(problem=problem) + END
    key = _key(instance)
    if key.unit is None:
        return NUMBER.format(problem=problem, unit="") + END
    unit = " with its unit" if key.unit_required else f" in {key.unit:~P}, or with its unit"
    return NUMBER.format(problem=problem, unit=unit) + END


def _key(instance: Mapping[str, Any]) -> Key:
    try:
        return Key.of(instance)
    except BadInstance as error:
        if error.field == "answer":
            said = f"{error}; without choices it must be a number, unless 'judge' is true"
            raise BadInstance(said, field="answer") from error
        raise


def _judged(ctx: EvalContext, reply: str) -> dict[str, Any]:
    settings = Settings.from_env()
    prompt = judge.Prompt(settings.judge_prompt)

    def ask(messages: list[dict[str, str]], temperature: float, seed: int) -> str:
        return ctx.ask_model(
            messages,
            max_tokens=settings.judge_tokens,
            temperature=temperature,
            seed=seed,
            timeout=settings.judge_timeout_seconds,
        )

    return judge.judge(prompt, ctx.instance, question(ctx.instance), reply, ask).as_eval()
