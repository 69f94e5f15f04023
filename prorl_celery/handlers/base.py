"""The handler interface: a task kind is one class with three methods, one per stage. `docs/handlers.md` builds one;
`prorl handler new` writes one to begin with, `prorl handler try` runs it without a service, and
`prorl_celery.testing.kit` checks it against what stands here.

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
next stage as `ctx.init` and `ctx.rollout`, and nothing else passes between them but sandboxes. Keep nothing on the
handler, its class or its module.

Faults and scores
    `validate` refuses an instance that cannot be run, before it is accepted: it raises `BadInstance` with the field,
    and nothing else, whatever the fields hold. It runs in the API's process, so it must be quick and must run nothing
    of what it is given.

    A wrong answer, an empty one, one that hangs or crashes its own tests is scored: 0.0, with a `why`. What is not the
    agent's fault is raised, and never a reward: `SandboxError`, `BackendError` and their like pass through; what eval
    itself cannot tell is an `EvalError`. Catch what you expect, by its own name. Eval may be called again, by another
    process, when it raised or its score was lost: it must come to the same.

    Any wait through `ctx` (sandboxes, `run_agent`, `in_child`, `ask_model`) ends when the job is cancelled, its time is
    up or its process stops, by what it raises. A loop of your own calls `ctx.cancel.raise_if_set()`; code that blocks
    in C, or burns CPU, goes through `ctx.in_child`. What does not end in `PRORL_WEDGE_GRACE` costs its process.

Sandboxes
    By default a job has one, `ctx.sandbox`, from the start of init to the end of rollout; the agent's tools work in
    it. `uses_sandbox = False` (or `needs_sandbox`) says that there is none, `image` and `needs_kernel` what is in it,
    `sandbox_request` all there is to say of it. Further ones are asked for by name:

        def sandboxes(self, job):
            return {
                "defender": SandboxRequest(),                            # as long as the main one
                "tests": SandboxRequest(stages=("init", "eval")),        # init fills it, rollout cannot reach it
                "grader": SandboxRequest(image="...", stages=("eval",)), # started ahead, for eval alone
            }

    A stage opens them as `ctx.sandboxes["defender"]`, and lets an agent work in one by `run_agent(..., sandbox=
    "defender")`. `stages` are those that may use it; after the last of them it ends. Init starts all that init or
    rollout use, at the same time, and all or none. One that eval alone uses is started while rollout is at work, so
    that eval need not wait for it; if it is lost by then, eval gets another. For one that eval shares with an earlier
    stage, eval runs on the same node, and should that node be lost, the job starts over. To keep the main one for eval:

        def sandbox_request(self, job):
            return replace(super().sandbox_request(job), stages=("init", "rollout", "eval"))

    Whatever runs in a sandbox that the agent had may lie: it owns the shell, its programs and its files, and can forge
    an exit code. Score in one that it never touched, or score what it says by something it cannot know.

    `ctx.fresh_sandbox()` starts one more on the spot, in any stage; it ends with the stage, or with its `stop()`.
    What a node does not allow (`PRORL_SANDBOX_NETWORKS`, `PRORL_SANDBOX_BINDS`, `PRORL_SANDBOX_FAKEROOT`) ends the job
    with an error of kind `sandbox` that names the setting.

Going on
    A rollout outlives the process that runs it: when that dies, or is replaced by a newer one, another process of the
    node calls `rollout` again, from its start, with `ctx.going_on` true, the same `ctx.init`, and the same sandboxes as
    they were left. The k-th `ctx.run_agent` of that call goes on behind the turns that the k-th one had logged: the
    model is not asked again for what it said, no tool call is made twice, and a run that had ended returns at once what
    it returned then. A command that was under way is waited for, and is its call's observation; where something of it
    may be missing, that has one of the lines of `prorl_celery/tools/base.py` that say so.

    So `rollout` must run its agent in the same order again, and what it does itself before, between and behind must
    bear being done again (reading a patch does; `git commit`, or a fresh sandbox that the agent depends on, does not).
    A handler whose rollout cannot bear that says

        resumes = False

    and its jobs start over from init instead, uncharged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from prorl_celery.errors import BadInstance
from prorl_celery.jobs.models import STAGES, JobRequest, Stage
from prorl_celery.jobs.turns import Turn
from prorl_celery.sandbox.base import CancelSignal, Sandbox, check_wishes

MAIN = "main"
"""The name of `ctx.sandbox` among `ctx.sandboxes`."""

MOST_SANDBOXES = 8
"""Sandboxes of one job, the main one included; and fresh ones of one stage at a time. A node's memory has to do for
so many times its slots.
"""

JSON = Any


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxRequest:
    """A sandbox that a job asks for. Raises `ValueError` that names the field for what it cannot be."""

    image: str | None = None
    """A container image; None for a sandbox with the host's programs."""
    network: str = "none"
    """`none`, `host` or `bridge`."""
    binds: tuple[str, ...] = ()
    """Folders of the host to see inside: `SOURCE:TARGET`, or `SOURCE:TARGET:rw`."""
    fakeroot: bool = False
    """Look like root inside."""
    kernel: bool = False
    """An IPython kernel, up before the sandbox counts as started."""
    memory_bytes: int | None = None
    """Memory of all its processes together; None for the node's `PRORL_SANDBOX_MEMORY`."""
    disk_bytes: int | None = None
    """Size of its workspace; None for the node's `PRORL_SANDBOX_DISK`."""
    stages: tuple[Stage, ...] = ("init", "rollout")
    """The stages that may use it. It ends after the last of them."""

    def __post_init__(self) -> None:
        check_wishes(self)
        for name in ("memory_bytes", "disk_bytes"):
            if not isinstance(getattr(self, name), int | None):
                raise ValueError(f"{name} must be a whole number, not {getattr(self, name)!r}")
        if not self.stages or not set(self.stages) <= set(STAGES):
            raise ValueError(f"a sandbox's stages are some of {', '.join(STAGES)}, not {self.stages!r}")

    @property
    def last_stage(self) -> Stage:
        """After this one it ends."""
        return max(self.stages, key=STAGES.index)

    @property
    def for_eval_alone(self) -> bool:
        """Whether no stage before eval touches it: then eval can do with any sandbox like it, on any node."""
        return set(self.stages) == {"eval"}


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

    @property
    def sandbox(self) -> Sandbox:
        """The main sandbox: the same as `sandboxes["main"]`."""
        ...

    @property
    def sandboxes(self) -> Mapping[str, Sandbox]:
        """The job's sandboxes that this stage may use, by name; each is opened when it is first asked for.

        Raises: `HandlerError` for a name that is not among them, saying why; `SandboxError` when it is gone.
        """
        ...

    def fresh_sandbox(self, request: SandboxRequest | None = None) -> Sandbox:
        """Start a sandbox that nobody has touched; by default one like the main one, but without a kernel. It ends
        with this stage, or with its `stop()`. `request.stages` means nothing here.

        Raises: `SandboxError`, and `HandlerError` when `MOST_SANDBOXES` such are there already.
        """
        ...

    def remaining_seconds(self) -> float:
        """Seconds of work left in this stage."""
        ...

    def in_child(self, function: Callable[[Any], JSON], argument: JSON, *, timeout: float) -> JSON:
        """Call a module-level function in a killable child process: for code that may block in C or burn CPU.

        Raises: what the function raised as `HandlerError`, `StageTimeout`, and what `cancel` raises.
        """
        ...


class InitContext(StageContext, Protocol):
    """Init: the job's sandboxes are new, their shells ready."""


class RolloutContext(StageContext, Protocol):
    """Rollout: the same sandboxes, what init returned, and the model."""

    @property
    def init(self) -> JSON: ...

    @property
    def going_on(self) -> bool:
        """Whether an earlier call of `rollout`, in another process, began what this one goes on with."""
        ...

    def run_agent(
        self, messages: Sequence[Mapping[str, Any]], *, tools: Sequence[str] | None = None, sandbox: str = MAIN
    ) -> dict[str, Any]:
        """Run the multi-turn loop to its end and return `{"finish_reason", "answer", "turns"}`.

        `answer` is the `finish` tool's, else the last assistant text. Tools: the job's, else `tools`, else the
        handler's `default_tools`; they work in the sandbox of that name. Every turn is in the job's turn log when this
        returns. It may be called more than once: the log is one.
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

    def turns(self) -> list[Turn]:
        """The turn log of this attempt."""
        ...

    def ask_model(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        model: str | None = None,
        max_tokens: int,
        temperature: float = 0.0,
        seed: int | None = None,
        timeout: float,
    ) -> str:
        """One reply of another model, such as a judge; its thinking and calls are left out. `model` None is the one of
        `PRORL_JUDGE_MODEL`. `timeout` is in seconds of work: waits for a backend, and pauses of that model's policy
        or of all, do not count. From threads of a handler's own, one is asked at a time.

        Special tokens in the messages are text to a backend that is given token ids; one that renders messages itself
        may take them for what they are.
        Raises: `BackendError` when no backend gave a reply in time, `Unjudged` when no model is named or the messages
        do not fit it, `StageTimeout` when the stage's time is over, and what `cancel` raises.
        """
        ...


class Handler:
    """A task kind. Subclass it, name `data_source`, write the three methods."""

    data_source: ClassVar[str]
    """The value of `instance["data_source"]` that this handler serves; `reasoning_gym/*` serves a family."""

    aliases: ClassVar[tuple[str, ...]] = ()
    """Further values of `data_source` that it serves."""

    uses_sandbox: ClassVar[bool] = True
    """Whether jobs have a main sandbox. Where rollout has none at all, it may run on any node."""

    resumes: ClassVar[bool] = True
    """Whether another process may go on with a rollout by calling `rollout` again; else the job starts over."""

    default_tools: ClassVar[tuple[str, ...]] = ("bash", "str_replace_editor", "finish")

    def validate(self, instance: Mapping[str, Any]) -> None:
        """Refuse an instance that cannot be run, before it is accepted. Raises `BadInstance` with `field`."""

    def needs_sandbox(self, job: JobRequest) -> bool:
        """Whether this very job needs one; by default `uses_sandbox`."""
        return self.uses_sandbox

    def image(self, instance: Mapping[str, Any]) -> str | None:
        """The container image this instance wants; None for the default sandbox."""
        return None

    def needs_kernel(self, job: JobRequest) -> bool:
        """Whether the main sandbox has an IPython kernel, which is up before init begins; by default where `ipython`
        is among the job's tools, or else among `default_tools`.
        """
        return "ipython" in (self.default_tools if job.agent.tools is None else job.agent.tools)

    def sandbox_request(self, job: JobRequest) -> SandboxRequest:
        """What the main sandbox is, where `needs_sandbox`. Called in every stage: say the same each time."""
        return SandboxRequest(image=self.image(job.instance.data()), kernel=self.needs_kernel(job))

    def sandboxes(self, job: JobRequest) -> Mapping[str, SandboxRequest]:
        """Further sandboxes, by name, with the main one `MOST_SANDBOXES` at most. Called in every stage: say the same
        each time.
        """
        return {}

    def init(self, ctx: InitContext) -> JSON:
        """Make the job ready. What is returned is `ctx.init` of the later stages."""
        return {}

    def rollout(self, ctx: RolloutContext) -> JSON:
        """Let the model act. What is returned is `ctx.rollout` of eval; `artifacts` in it go into the result."""
        raise NotImplementedError(f"{type(self).__name__} has no method rollout(self, ctx)")

    def eval(self, ctx: EvalContext) -> JSON:
        """Score. Return `{"reward": float, "resolved": bool}` and whatever else the trainer should see.

        `reward_parts: {name: float}` beside it tells what the reward is made of, 64 parts at most. Not called for a
        job with a `reward_url`.
        """
        raise NotImplementedError(f"{type(self).__name__} has no method eval(self, ctx)")

    def solution(self, ctx: EvalContext) -> str:
        """What a reward server is to score: rollout's `answer`, else the last thing that the model said."""
        answer = ctx.rollout.get("answer") if isinstance(ctx.rollout, dict) else None
        if isinstance(answer, str):
            return answer
        said = (message for turn in reversed(ctx.turns()) for message in reversed(turn.messages))
        texts = (one.get("content") for one in said if one.get("role") == "assistant")
        return next((text for text in texts if isinstance(text, str) and text), "")

    def ground_truth(self, instance: Mapping[str, Any]) -> JSON:
        """What a reward server is to score by. Raises `BadInstance` where the instance has neither `ground_truth` nor
        `answer`.
        """
        for field in ("ground_truth", "answer"):
            if field in instance:
                return instance[field]
        raise BadInstance("the instance has no 'ground_truth', nor an 'answer'", field="ground_truth")


def require(instance: Mapping[str, Any], field: str, kind: type | tuple[type, ...] = str) -> Any:
    """The instance's field, or `BadInstance` that names it."""
    if field not in instance:
        raise BadInstance(f"the instance has no {field!r}", field=field)
    value = instance[field]
    if not isinstance(value, kind):
        names = kind.__name__ if isinstance(kind, type) else " or ".join(k.__name__ for k in kind)
        raise BadInstance(f"{field!r} must be {names}, not {type(value).__name__}", field=field)
    return value
