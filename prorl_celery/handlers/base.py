"""The handler interface: a task kind is one class with three methods, one per stage.

    class Mine(Handler):
        data_source = "mine"

        def init(self, ctx):     # make ready; runs in an init worker
            ctx.sandbox.files.write("/workspace/data.txt", ctx.instance["data"].encode())
            return {}

        def rollout(self, ctx):  # let the model act; runs in a rollout worker of the same node
            return ctx.run_agent([{"role": "user", "content": ctx.instance["question"]}])

        def eval(self, ctx):     # score; any node
            return {"reward": float(ctx.rollout["answer"] == ctx.instance["answer"])}

The stages run in different processes. What `init` and `rollout` return must be JSON: it is stored and given to the
next stage as `ctx.init` and `ctx.rollout`, and nothing else passes between them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol

from prorl_celery.errors import BadInstance
from prorl_celery.jobs.models import JobRequest
from prorl_celery.jobs.turns import Turn
from prorl_celery.sandbox.base import CancelSignal, Sandbox

JSON = Any


class StageContext(Protocol):
    """What every stage has."""

    @property
    def job(self) -> JobRequest: ...
    @property
    def attempt(self) -> int: ...
    @property
    def instance(self) -> Mapping[str, Any]: ...
    @property
    def cancel(self) -> CancelSignal: ...

    def remaining_seconds(self) -> float:
        """Seconds of work left in this stage."""
        ...

    def in_child(self, function: Callable[[Any], JSON], argument: JSON, *, timeout: float) -> JSON:
        """Call a module-level function in a killable child process: for code that may block in C or burn CPU.

        Raises: what the function raised as `HandlerError`, `StageTimeout`, and what `cancel` raises.
        """
        ...


class InitContext(StageContext, Protocol):
    """Init: `sandbox` is the job's new sandbox (where the handler uses one), its shell ready."""

    @property
    def sandbox(self) -> Sandbox: ...


class RolloutContext(StageContext, Protocol):
    """Rollout: the same sandbox, what init returned, and the model."""

    @property
    def init(self) -> JSON: ...

    @property
    def sandbox(self) -> Sandbox: ...

    def run_agent(self, messages: Sequence[Mapping[str, Any]], *, tools: Sequence[str] | None = None) -> dict[str, Any]:
        """Run the multi-turn loop to its end and return `{"finish_reason", "answer", "turns"}`.

        `answer` is the `finish` tool's, else the last assistant text. Tools: the job's, else `tools`, else the
        handler's `default_tools`. Every turn is in the job's turn log when this returns.
        Raises: `ContextOverflow` when the first prompt does not fit, `BackendError`, `SandboxError`, `ToolError`,
        and what `cancel` raises.
        """
        ...


class EvalContext(StageContext, Protocol):
    """Eval: what init and rollout returned, and the trajectory."""

    @property
    def init(self) -> JSON: ...
    @property
    def rollout(self) -> JSON: ...

    @property
    def sandbox(self) -> Sandbox:
        """The rollout's sandbox; only where the handler says `eval_uses_rollout_sandbox`."""
        ...

    def fresh_sandbox(self) -> Sandbox:
        """A new sandbox that the agent never touched; ended by the stage runner when eval returns."""
        ...

    def turns(self) -> list[Turn]:
        """The turn log of this attempt."""
        ...


class Handler:
    """A task kind. Subclass it, name `data_source`, write the three methods."""

    data_source: ClassVar[str]
    """The value of `instance["data_source"]` that this handler serves; `reasoning_gym/*` serves a family."""

    uses_sandbox: ClassVar[bool] = True
    """Whether init makes a sandbox. Without one, rollout may run on any node."""

    eval_uses_rollout_sandbox: ClassVar[bool] = False
    """Keep the rollout's sandbox for eval, which then runs on the same node."""

    default_tools: ClassVar[tuple[str, ...]] = ("bash", "str_replace_editor", "finish")

    def validate(self, instance: Mapping[str, Any]) -> None:
        """Refuse an instance that cannot be run, before it is accepted. Raises `BadInstance` with `field`."""

    def needs_sandbox(self, job: JobRequest) -> bool:
        """Whether this very job needs one; by default `uses_sandbox`."""
        return self.uses_sandbox

    def image(self, instance: Mapping[str, Any]) -> str | None:
        """The container image this instance wants; None for the default sandbox."""
        return None

    def init(self, ctx: InitContext) -> JSON:
        """Make the job ready. What is returned is `ctx.init` of the later stages."""
        return {}

    def rollout(self, ctx: RolloutContext) -> JSON:
        """Let the model act. What is returned is `ctx.rollout` of eval; `artifacts` in it go into the result."""
        raise NotImplementedError

    def eval(self, ctx: EvalContext) -> JSON:
        """Score. Return `{"reward": float, "resolved": bool}` and whatever else the trainer should see."""
        raise NotImplementedError


def require(instance: Mapping[str, Any], field: str, kind: type | tuple[type, ...] = str) -> Any:
    """The instance's field, or `BadInstance` that names it."""
    if field not in instance:
        raise BadInstance(f"the instance has no {field!r}", field=field)
    value = instance[field]
    if not isinstance(value, kind):
        names = kind.__name__ if isinstance(kind, type) else " or ".join(k.__name__ for k in kind)
        raise BadInstance(f"{field!r} must be {names}, not {type(value).__name__}", field=field)
    return value
