"""What a rollout that goes on in another process finds, and when it starts over instead."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from prorl_celery.errors import FenceLost, HandlerError, SandboxError, StoppedInDoubt, Stopping, StoreUnavailable
from prorl_celery.handlers.base import Handler, SandboxRequest
from prorl_celery.jobs.models import JobRequest, JobStatus
from prorl_celery.sandbox.client import KeeperClient
from prorl_celery.scheduling.backends import Backend
from prorl_celery.testing import ScriptedBackend
from tasks import backends
from tasks.process import StageProcess

Drive = Callable[..., JobStatus]


class Interrupted(Handler):
    """Its rollout is given back the first `times` times, after `before`; then it does `behind`."""

    data_source = "interrupted"
    default_tools = ("bash",)

    def __init__(self, before: Callable[[Any], Any], behind: Callable[[Any], Any], times: int = 1) -> None:
        self.before, self.behind, self.times = before, behind, times
        self.inits = 0
        self.calls: list[tuple[int, bool]] = []
        """The attempt and `going_on` of each call of rollout."""

    def init(self, ctx: Any) -> Any:
        self.inits += 1
        return {"inits": self.inits}

    def rollout(self, ctx: Any) -> Any:
        self.calls.append((ctx.attempt, ctx.going_on))
        if len(self.calls) <= self.times:
            self.before(ctx)
            raise Stopping("another takes over")
        return self.behind(ctx)

    def eval(self, ctx: Any) -> Any:
        return {"reward": 1.0, "init": ctx.init, "rollout": ctx.rollout}


def nothing(ctx: Any) -> Any:
    return {}


@pytest.fixture
def backend(process: StageProcess) -> Iterator[ScriptedBackend]:
    with ScriptedBackend(policy="obey", record=50) as backend:
        tokenizer = str(backend.tokenizer_dir)
        process.backends.put(Backend(url=backend.url, model="scripted", tokenizer=tokenizer, gives_ids=True))
        yield backend


def obey(ctx: Any, *commands: str) -> dict[str, Any]:
    outcome: dict[str, Any] = ctx.run_agent([{"role": "user", "content": "\n".join(f"$ {c}" for c in commands)}])
    return outcome


def test_it_has_the_same_init_and_the_same_sandboxes_as_they_were_left(drive: Drive, keeper: KeeperClient) -> None:
    handler = Interrupted(
        lambda ctx: ctx.sandbox.shell.run("cd /tmp; export X=5; echo left > /workspace/file", timeout=10.0),
        lambda ctx: {
            "said": ctx.sandbox.shell.run("pwd; echo $X", timeout=10.0).output,
            "file": ctx.sandbox.files.read("/workspace/file").decode(),
        },
    )
    starts = keeper.status()["starts"]
    status = drive(handler)
    assert (status.state, status.attempt) == ("completed", 1)
    assert handler.calls == [(1, False), (1, True)]
    assert handler.inits == 1
    assert keeper.status()["starts"] == starts + 1
    assert keeper.list() == []


def test_a_handler_that_does_not_bear_it_starts_over_uncharged(drive: Drive, keeper: KeeperClient) -> None:
    class Once(Interrupted):
        resumes = False

    handler = Once(nothing, nothing)
    status = drive(handler)
    assert (status.state, status.attempt) == ("completed", 1)
    assert handler.calls == [(1, False), (1, False)]
    assert handler.inits == 2
    assert keeper.list() == []


def ask_and_shrug(ctx: Any) -> Any:
    """What a careless handler does."""
    try:
        ctx.sandbox.shell.run("true", timeout=10.0)
    except SandboxError:
        return {"solution": None}
    return {"solution": "found"}


@pytest.mark.parametrize("behind", [lambda ctx: ctx.sandbox.files.read("/etc/passwd") and {}, ask_and_shrug])
def test_where_its_sandbox_is_gone_it_starts_over_uncharged_whatever_the_handler_makes_of_it(
    drive: Drive, keeper: KeeperClient, behind: Callable[[Any], Any]
) -> None:
    handler = Interrupted(lambda ctx: keeper.stop(ctx.sandbox.handle.sandbox_id), behind)
    status = drive(handler)
    assert (status.state, status.attempt) == ("completed", 1)
    assert handler.calls == [(1, False), (1, True), (1, False)]
    assert handler.inits == 2


def test_after_three_times_that_is_charged(drive: Drive, keeper: KeeperClient) -> None:
    class Cursed(Interrupted):
        def rollout(self, ctx: Any) -> Any:
            self.calls.append((ctx.attempt, ctx.going_on))
            if not ctx.going_on:
                keeper.stop(ctx.sandbox.handle.sandbox_id)
                raise Stopping("another takes over")
            return ask_and_shrug(ctx)

    handler = Cursed(nothing, nothing)
    status = drive(handler, most=100, max_attempts=2)
    assert status.state == "failed"
    assert status.error is not None
    assert (status.error.kind, status.error.stage) == ("sandbox", "rollout")
    assert "taken over" in status.error.message
    assert [attempt for attempt, going_on in handler.calls if going_on] == [1, 1, 1, 1, 2]


def test_what_the_agent_did_is_not_done_again_in_any_of_its_runs(
    drive: Drive, process: StageProcess, keeper: KeeperClient, backend: ScriptedBackend
) -> None:
    def first(ctx: Any) -> dict[str, Any]:
        return obey(ctx, "echo 1 >> /workspace/steps", "echo 2 >> /workspace/steps")

    def second(ctx: Any) -> dict[str, Any]:
        return obey(ctx, "echo 3 >> /workspace/steps")

    def steps(ctx: Any) -> str:
        return str(ctx.sandbox.files.read("/workspace/steps").decode())

    handler = Interrupted(
        lambda ctx: [first(ctx), second(ctx)],
        lambda ctx: {"first": first(ctx), "second": second(ctx), "third": first(ctx), "steps": steps(ctx)},
    )
    status = drive(handler)
    assert (status.state, status.attempt) == ("completed", 1)
    evaluated = process.store.result("a").eval
    assert evaluated["rollout"]["steps"].split() == ["1", "2", "3", "1", "2"]
    outcomes = [evaluated["rollout"][name] for name in ("first", "second", "third")]
    assert [(o["finish_reason"], o["answer"], o["turns"]) for o in outcomes] == [
        ("stop", "All 2 commands were run.", 3),
        ("stop", "All 1 commands were run.", 2),
        ("stop", "All 2 commands were run.", 3),
    ]
    assert [(turn.index, turn.run) for turn in process.store.turns("a")] == [
        (0, 0), (1, 0), (2, 0), (3, 1), (4, 1), (5, 2), (6, 2), (7, 2),
    ]  # fmt: skip
    assert len(backend.calls(50)) == 8


def test_a_run_whose_context_was_full_is_known_to_have_ended(
    drive: Drive, process: StageProcess, keeper: KeeperClient, backend: ScriptedBackend
) -> None:
    def both(ctx: Any) -> dict[str, Any]:
        return {"first": obey(ctx, "head -c 4000 /dev/zero | tr '\\0' x", "true"), "second": obey(ctx, "true")}

    status = drive(Interrupted(both, both), agent={"max_context_tokens": 900})
    assert status.state == "completed", status.error
    first = process.store.result("a").eval["rollout"]["first"]
    assert (first["finish_reason"], first["turns"]) == ("context_overflow", 1)
    assert [(turn.run, turn.outcome and turn.outcome["finish_reason"]) for turn in process.store.turns("a")] == [
        (0, "context_overflow"), (1, None), (1, "stop"),
    ]  # fmt: skip
    assert len(backend.calls(50)) == 3


def test_a_handler_that_does_otherwise_than_its_log_says_starts_over(
    drive: Drive, process: StageProcess, keeper: KeeperClient, backend: ScriptedBackend
) -> None:
    def caught(ctx: Any) -> dict[str, Any]:
        """A run breaks off, the handler makes another."""
        append, process.store.append_turn = process.store.append_turn, breaking  # type: ignore[method-assign]
        with pytest.raises(HandlerError):
            obey(ctx, "true")
        process.store.append_turn = append  # type: ignore[method-assign]
        return obey(ctx, "true")

    def breaking(*_: Any) -> None:
        raise HandlerError("broken off")

    handler = Interrupted(caught, lambda ctx: obey(ctx, "true"))
    status = drive(handler)
    assert (status.state, status.attempt) == ("completed", 1)
    assert handler.calls == [(1, False), (1, True), (1, False)]


def test_it_stays_with_the_model_and_the_form_that_it_began_with(
    drive: Drive, process: StageProcess, keeper: KeeperClient, backend: ScriptedBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job names neither, and by the time it goes on there are other models."""
    asked: list[tuple[Any, Any]] = []

    def acquire(work: Any, *, model: Any, mode: Any, **more: Any) -> Any:
        asked.append((model, mode))
        return backends.acquire(work, model=model, mode=mode, **more)

    def cut_short(ctx: Any) -> None:
        append = process.store.append_observation

        def stop(*arguments: Any) -> None:
            append(*arguments)
            process.store.append_observation = append  # type: ignore[method-assign]
            process.backends.put(Backend(url="http://127.0.0.1:1", model="another", kind="chat"))
            raise Stopping("another takes over")

        process.store.append_observation = stop  # type: ignore[method-assign]
        obey(ctx, "echo 1")

    monkeypatch.setattr("tasks.moving.acquire", acquire)
    status = drive(Interrupted(cut_short, lambda ctx: obey(ctx, "echo 1")))
    assert (status.state, status.attempt) == ("completed", 1), status.error
    assert asked == [(None, None), ("scripted", "tokens")]
    assert len(backend.calls(50)) == 2


@pytest.mark.parametrize("drained", [False, True])
def test_where_a_command_may_have_been_stopped_with_its_worker_it_starts_over_uncharged(
    drive: Drive, keeper: KeeperClient, drained: bool
) -> None:
    """Whoever went on would take what came of the command for the truth."""

    def stopped(ctx: Any) -> None:
        ctx.sandbox.shell.run("true", timeout=10.0)
        if drained:  # and the time to end by itself is over as well
            ctx.cancel.set(Stopping("the worker is stopping"))
        raise StoppedInDoubt("the worker was told to stop")

    handler = Interrupted(stopped, nothing)
    status = drive(handler)
    assert (status.state, status.attempt) == ("completed", 1)
    assert handler.calls == [(1, False), (1, False)]
    assert handler.inits == 2
    assert keeper.list() == []


class Lasting(Handler):
    """Has a sandbox for the agent, and one that eval alone uses; its rollout raises."""

    data_source = "lasting"

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def sandboxes(self, job: JobRequest) -> dict[str, SandboxRequest]:
        return {"second": SandboxRequest(), "grader": SandboxRequest(stages=("eval",))}

    def rollout(self, ctx: Any) -> Any:
        ctx.fresh_sandbox()
        assert len(ctx.sandboxes) == 2
        raise self.error

    def eval(self, ctx: Any) -> Any:
        return {"reward": 1.0}


@pytest.mark.parametrize(
    ("error", "left"),
    [
        (Stopping("another takes over"), 2),
        (FenceLost("another has it"), 2),
        (StoreUnavailable("nobody knows"), 2),
        (SandboxError("the attempt failed"), 0),
        (HandlerError("the job failed"), 0),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_its_sandboxes_are_kept_for_whoever_goes_on_and_for_nobody_else(
    drive: Drive, keeper: KeeperClient, error: BaseException, left: int
) -> None:
    drive(Lasting(error), most=2)
    assert len(keeper.list()) == left
    assert {one["purpose"] for one in keeper.list()} <= {"rollout", "further"}
