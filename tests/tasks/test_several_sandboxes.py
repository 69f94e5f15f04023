"""Jobs with several sandboxes, with a real keeper: which stage may use which, when each begins and ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any

import pytest
import redis
from redis_fixtures import claim

from prorl_celery.errors import EvalError, HandlerError
from prorl_celery.handlers.base import MOST_SANDBOXES, Handler, SandboxRequest
from prorl_celery.jobs.models import JobRequest, JobStatus
from prorl_celery.node.pause import until
from prorl_celery.sandbox.base import SandboxHandle
from prorl_celery.sandbox.client import KeeperClient
from prorl_celery.sandbox.waiting import NeverCancelled
from prorl_celery.scheduling.backends import Backend
from prorl_celery.testing import ScriptedBackend
from tasks import backends
from tasks.process import StageProcess
from tasks.stages import run_stage

Drive = Callable[..., JobStatus]
Act = Callable[[Any], Any]


def handler_with(
    sandboxes: Mapping[str, Any], *, main: bool = True, init: Act | None = None, rollout: Act | None = None,
    eval: Act | None = None,
) -> Handler:  # fmt: skip
    """A handler that asks for these sandboxes and acts so in its stages."""

    class Several(Handler):
        data_source = "several"
        uses_sandbox = main

        def sandboxes(self, job: JobRequest) -> Mapping[str, SandboxRequest]:
            return sandboxes

        def init(self, ctx: Any) -> Any:
            return (init(ctx) if init else None) or {}

        def rollout(self, ctx: Any) -> Any:
            return (rollout(ctx) if rollout else None) or {}

        def eval(self, ctx: Any) -> Any:
            return (eval(ctx) if eval else None) or {"reward": 1.0}

    return Several()


def mark(sandbox: Any, text: str) -> None:
    sandbox.files.write("/workspace/mark", text.encode())


def marked(sandbox: Any) -> str | None:
    """What `mark` left, or None."""
    try:
        return str(sandbox.files.read("/workspace/mark").decode())
    except FileNotFoundError:
        return None


def ended(drive: Drive, handler: Handler, **fields: Any) -> JobStatus:
    """The job's end, which must be a good one."""
    status = drive(handler, **fields)
    assert (status.state, status.reward) == ("completed", 1.0), status.error
    return status


def test_each_stage_finds_the_sandboxes_of_the_stages_before_it_by_name(drive: Drive, keeper: KeeperClient) -> None:
    live: list[int] = []

    def init(ctx: Any) -> None:
        assert list(ctx.sandboxes) == ["main", "attacker", "defender"]
        live.append(len(keeper.list()))
        for name, sandbox in ctx.sandboxes.items():
            mark(sandbox, name)

    def rollout(ctx: Any) -> None:
        assert {name: marked(sandbox) for name, sandbox in ctx.sandboxes.items()} == {
            name: name for name in ("main", "attacker", "defender")
        }
        assert ctx.sandbox is ctx.sandboxes["main"]
        assert ctx.sandboxes["attacker"] is ctx.sandboxes["attacker"]

    def evaluate(ctx: Any) -> None:
        live.append(len(keeper.list()))

    sandboxes = {"attacker": SandboxRequest(), "defender": SandboxRequest()}
    ended(drive, handler_with(sandboxes, init=init, rollout=rollout, eval=evaluate))
    assert live == [3, 0]


def test_a_sandbox_is_reached_by_its_own_stages_alone(drive: Drive, keeper: KeeperClient) -> None:
    """Tests that init lays down where the agent cannot see them, for eval to run."""

    def rollout(ctx: Any) -> None:
        assert "tests" not in ctx.sandboxes
        with pytest.raises(HandlerError, match=r"'tests' is not for rollout: its stages are \('init', 'eval'\)"):
            ctx.sandboxes["tests"]
        with pytest.raises(HandlerError, match="no sandbox 'other'; it has main, tests"):
            ctx.sandboxes["other"]

    def evaluate(ctx: Any) -> Any:
        assert list(ctx.sandboxes) == ["tests"]
        with pytest.raises(HandlerError, match="'main' is not for eval"):
            ctx.sandbox
        return {"reward": float(marked(ctx.sandboxes["tests"]) == "hidden")}

    handler = handler_with(
        {"tests": SandboxRequest(stages=("init", "eval"))},
        init=lambda ctx: mark(ctx.sandboxes["tests"], "hidden"),
        rollout=rollout,
        eval=evaluate,
    )
    ended(drive, handler)
    assert keeper.list() == []


def test_a_sandbox_ends_with_its_last_stage_whether_or_not_it_was_opened(drive: Drive, keeper: KeeperClient) -> None:
    live: list[set[str]] = []

    def look(ctx: Any) -> None:
        live.append({found["purpose"] for found in keeper.list()})

    sandboxes = {"builder": SandboxRequest(stages=("init",))}
    ended(drive, handler_with(sandboxes, main=False, init=look, rollout=look, eval=look))
    assert live == [{"rollout"}, set(), set()]


@pytest.mark.parametrize("main", [True, False], ids=["a main one and two more", "two without a main one"])
def test_one_of_a_jobs_sandboxes_takes_a_place(drive: Drive, keeper: KeeperClient, main: bool) -> None:
    room = [keeper.status()["room"]]
    two = {"a": SandboxRequest(), "b": SandboxRequest()}
    ended(drive, handler_with(two, main=main, init=lambda _: room.append(keeper.status()["room"])))
    assert room[1] == room[0] - 1
    assert keeper.status()["room"] == room[0]


@pytest.mark.parametrize(
    ("sandboxes", "said"),
    [
        ({f"s{n}": SandboxRequest() for n in range(MOST_SANDBOXES)}, f"a job may have {MOST_SANDBOXES}"),
        ({"main": SandboxRequest()}, "'main' is the name of the main sandbox"),
        ({"db": "python:3.12"}, "a SandboxRequest for each name"),
    ],
    ids=["too many", "main", "no request"],
)
def test_what_a_handler_cannot_ask_for_is_its_own_fault(
    drive: Drive, keeper: KeeperClient, sandboxes: Mapping[str, Any], said: str
) -> None:
    before = keeper.status()["starts"]
    status = drive(handler_with(sandboxes))
    assert status.error is not None
    assert (status.state, status.error.kind, status.error.stage, status.attempt) == ("failed", "handler", "init", 1)
    assert said in status.error.message
    assert keeper.status()["starts"] == before


def test_stages_that_are_none_are_refused_where_they_are_written() -> None:
    for stages in ((), ("init", "score")):
        with pytest.raises(ValueError, match="some of init, rollout, eval"):
            SandboxRequest(stages=stages)


@pytest.mark.parametrize(
    ("odd", "said"),
    [
        (SandboxRequest(disk_bytes=1), "disk"),
        (SandboxRequest(network="host"), "PRORL_SANDBOX_NETWORKS"),
        (SandboxRequest(binds=("/var:/mnt",)), "PRORL_SANDBOX_BINDS"),
        (SandboxRequest(fakeroot=True), "fakeroot needs an image"),
    ],
    ids=["no disk", "network", "binds", "fakeroot"],
)
def test_when_one_of_several_cannot_start_none_is_left_and_the_error_names_it(
    drive: Drive, keeper: KeeperClient, odd: SandboxRequest, said: str
) -> None:
    room = keeper.status()["room"]
    sandboxes = {"fine": SandboxRequest(), "odd": odd}
    status = drive(handler_with(sandboxes), max_attempts=1)
    assert status.error is not None
    assert (status.state, status.error.kind, status.error.stage) == ("failed", "sandbox", "init")
    assert status.error.message.startswith("the sandbox 'odd': ")
    assert said in status.error.message
    assert keeper.list() == []
    assert keeper.status()["room"] == room


AHEAD = {"grader": SandboxRequest(stages=("eval",))}


@pytest.mark.usefixtures("eval_works_here")
def test_what_eval_alone_uses_is_started_once_the_job_has_a_backend(
    drive: Drive, process: StageProcess, keeper: KeeperClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = keeper.status()["starts"]
    seen: dict[str, int] = {}

    def starts() -> int:
        return int(keeper.status()["starts"]) - before

    def acquire(work: Any, **asked: Any) -> Any:
        seen["waiting"] = starts()
        return backends.acquire(work, **asked)

    def append(*turn: Any) -> None:
        assert until(lambda: starts() == 2, 20.0, every=0.01)
        seen["turns"] = seen.get("turns", 0) + 1
        log(*turn)

    log = process.store.append_turn

    def rollout(ctx: Any) -> None:
        assert "grader" not in ctx.sandboxes
        ctx.run_agent([{"role": "user", "content": "Go."}], tools=["bash"])

    def evaluate(ctx: Any) -> None:
        assert marked(ctx.sandboxes["grader"]) is None
        seen["eval"] = starts()

    monkeypatch.setattr("tasks.moving.acquire", acquire)
    monkeypatch.setattr(process.store, "append_turn", append)
    with ScriptedBackend(policy="toy:3") as backend:
        tokenizer = str(backend.tokenizer_dir)
        process.backends.put(Backend(url=backend.url, model="scripted", tokenizer=tokenizer, gives_ids=True))
        ended(drive, handler_with(AHEAD, rollout=rollout, eval=evaluate))
    assert seen == {"waiting": 1, "turns": 3, "eval": 2}
    assert keeper.list() == []


@pytest.mark.usefixtures("eval_works_here")
def test_a_rollout_without_turns_starts_ahead_at_its_end(drive: Drive, keeper: KeeperClient) -> None:
    live: list[int] = []

    def evaluate(ctx: Any) -> None:
        live.append(len(keeper.list()))
        ctx.sandboxes["grader"]
        live.append(len(keeper.list()))

    ended(drive, handler_with(AHEAD, eval=evaluate))
    assert live == [1, 1]


def test_nothing_is_started_ahead_where_no_eval_works_and_eval_may_run_anywhere(
    drive: Drive, keeper: KeeperClient
) -> None:
    queues: list[str] = []

    def evaluate(ctx: Any) -> None:
        queues.append(ctx._work.claim.queue)
        assert keeper.list() == []
        mark(ctx.sandboxes["grader"], "by eval")

    ended(drive, handler_with(AHEAD, eval=evaluate))
    assert queues == ["eval"]
    assert keeper.list() == []


@pytest.mark.usefixtures("eval_works_here")
def test_a_sandbox_started_ahead_that_is_lost_is_no_fault_of_the_job(drive: Drive, keeper: KeeperClient) -> None:
    def evaluate(ctx: Any) -> None:
        (lost,) = keeper.list()
        keeper.stop(lost["sandbox_id"])
        assert ctx.sandboxes["grader"].shell.run("echo up", timeout=10).output == "up\n"
        assert keeper.list()[0]["sandbox_id"] != lost["sandbox_id"]

    status = ended(drive, handler_with(AHEAD, eval=evaluate))
    assert status.attempt == 1
    assert keeper.list() == []


@pytest.mark.usefixtures("eval_works_here")
@pytest.mark.parametrize("main_lives_on", [False, True], ids=["eval anywhere", "eval where the kept one is"])
def test_a_repeated_eval_gets_no_sandbox_that_the_first_has_touched(
    drive: Drive, keeper: KeeperClient, main_lives_on: bool
) -> None:
    seen: list[str | None] = []
    queues: list[str] = []

    def evaluate(ctx: Any) -> None:
        queues.append(ctx._work.claim.queue)
        seen.append(marked(ctx.sandboxes["grader"]))
        mark(ctx.sandboxes["grader"], "touched")
        if len(seen) == 1:
            raise EvalError("the grader stumbled")

    sandboxes = dict(AHEAD)
    if main_lives_on:
        sandboxes["kept"] = SandboxRequest(stages=("rollout", "eval"))
    ended(drive, handler_with(sandboxes, eval=evaluate))
    assert seen == [None, None]
    assert queues[0].startswith("eval.")
    assert (queues[1] == queues[0]) is main_lives_on
    assert keeper.list() == []


@pytest.mark.usefixtures("eval_works_here")
def test_an_eval_that_was_killed_leaves_what_it_touched_to_nobody(
    drive: Drive, process: StageProcess, keeper: KeeperClient, redis_client: redis.Redis
) -> None:
    """As after `kill -9`: its sandboxes live on, its lease lapses, and another eval follows."""
    sandboxes = {**AHEAD, "kept": SandboxRequest(stages=("rollout", "eval"))}
    seen: list[str | None] = []

    def evaluate(ctx: Any) -> None:
        seen.append(marked(ctx.sandboxes["grader"]))

    drive(handler_with(sandboxes, eval=evaluate), most=2)
    outbox: Any = process.publisher
    killed = claim(process.store, outbox.messages.pop())
    handle = SandboxHandle.from_json(killed.rollout["sandboxes"]["grader"])
    with NeverCancelled() as never, closing(keeper.attach(handle, cancel=never)) as touched:
        mark(touched, "touched")
    process.store.sweep()
    redis_client.zadd("prorl:leases", dict.fromkeys(redis_client.zrange("prorl:leases", 0, -1), 0))
    (again,) = process.store.sweep().messages
    run_stage(process, again.stage, again.job_id, again.fence)
    assert process.store.status("a").state == "completed"
    assert seen == [None]
    assert [left["sandbox_id"] for left in keeper.list()] == [handle.sandbox_id]
    assert process.store.live_on(process.settings.node) == {}, "so that the janitor ends it"


@pytest.mark.parametrize("stage", ["init", "rollout", "eval"])
def test_fresh_sandboxes_of_any_stage_end_with_it(drive: Drive, keeper: KeeperClient, stage: str) -> None:
    def act(ctx: Any) -> None:
        before = len(keeper.list())
        one, two = ctx.fresh_sandbox(), ctx.fresh_sandbox(SandboxRequest(memory_bytes=256 << 20))
        mark(one, "one")
        assert marked(two) is None
        assert len(keeper.list()) == before + 2
        two.stop()
        assert len(keeper.list()) == before + 1

    def look(ctx: Any) -> None:
        assert len(keeper.list()) == 1

    acts: dict[str, Act] = {"init": look, "rollout": look} | {stage: act}
    ended(drive, handler_with({}, **acts))
    assert keeper.list() == []


def test_so_many_fresh_sandboxes_are_there_at_a_time_and_no_more(drive: Drive, keeper: KeeperClient) -> None:
    def evaluate(ctx: Any) -> None:
        fresh = [ctx.fresh_sandbox() for _ in range(MOST_SANDBOXES)]
        with pytest.raises(HandlerError, match=f"{MOST_SANDBOXES} fresh sandboxes are there already"):
            ctx.fresh_sandbox()
        fresh[0].stop()
        ctx.fresh_sandbox()

    ended(drive, handler_with({}, main=False, eval=evaluate))
    assert keeper.list() == []
