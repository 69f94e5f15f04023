"""Backends that die under jobs: the jobs go on elsewhere, from their tokens, in the same attempt.

A stage process in the test's own threads, real Redis, real scripted backends that are killed and frozen.
"""

from __future__ import annotations

import threading
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import pairwise
from typing import Any

import pytest

from prorl_celery.handlers.base import Handler
from prorl_celery.handlers.registry import HandlerRegistry
from prorl_celery.jobs.models import JobRequest, Result
from prorl_celery.jobs.store import JobStore
from prorl_celery.llm import wire
from prorl_celery.node.pause import until
from prorl_celery.node.probe import Probe
from prorl_celery.scheduling.backends import Backend
from prorl_celery.testing import ScriptedBackend
from tasks.process import StageProcess
from tasks.stages import run_stage

GENEROUS_SECONDS = 60.0
TURNS = 6


class Thinks(Handler):
    """An agent that thinks aloud for some turns; needs no sandbox."""

    data_source = "thinks"
    uses_sandbox = False

    def rollout(self, ctx: Any) -> Any:
        return ctx.run_agent([{"role": "user", "content": "Go."}], tools=["think"])

    def eval(self, ctx: Any) -> Any:
        return {"reward": 1.0}


class Fleet:
    """Scripted backends, and jobs at work on them."""

    def __init__(self, process: StageProcess, stack: ExitStack) -> None:
        self.process = process
        self.backends: list[ScriptedBackend] = []
        self._stack = stack
        self._threads: list[threading.Thread] = []
        process.handlers = HandlerRegistry({"thinks": Thinks()})

    @property
    def store(self) -> JobStore:
        return self.process.store

    def add(self, **options: Any) -> ScriptedBackend:
        settings = {"policy": f"toy:{TURNS},8", "latency": 0.2, "record": 5000, **options}
        backend = self._stack.enter_context(ScriptedBackend(**settings))
        self.backends.append(backend)
        self.register(backend)
        return backend

    def register(self, backend: ScriptedBackend, **fields: Any) -> None:
        record = {"url": backend.url, "model": backend.model, "gives_ids": True, **fields}
        self.process.backends.put(Backend(tokenizer=str(backend.tokenizer_dir), **record))

    def submit(self, *ids: str, **fields: Any) -> None:
        """Start jobs, each on a thread of its own."""
        for job_id in ids:
            body = {"job_id": job_id, "instance": {"data_source": "thinks"}, "max_attempts": 1, **fields}
            message = self.store.create([JobRequest.model_validate(body)])[0].message
            self._threads.append(threading.Thread(target=self._drive, args=(message,), name=job_id))
            self._threads[-1].start()

    def results(self, *ids: str) -> list[Result]:
        """What the jobs came to, once all threads have ended."""
        for thread in self._threads:
            thread.join(GENEROUS_SECONDS)
            assert not thread.is_alive()
        return [self.store.result(job_id) for job_id in ids]

    def at(self, job_id: str) -> ScriptedBackend:
        """The backend that a job is at."""
        url = self.store.status(job_id).backend
        return next(backend for backend in self.backends if backend.url == url)

    def _drive(self, message: Any) -> None:
        while message is not None:
            box: list[Any] = []
            process = self.process
            publish_here(process, box)
            run_stage(process, message.stage, message.job_id, message.fence)
            message = box.pop() if box else None


class Boxes:
    """A publisher that gives each thread its own job's messages."""

    def __init__(self) -> None:
        self.of: dict[int, list[Any]] = {}

    def publish(self, message: Any) -> None:
        self.of[threading.get_ident()].append(message)


def publish_here(process: StageProcess, box: list[Any]) -> None:
    publisher: Any = process.publisher
    publisher.of[threading.get_ident()] = box


@pytest.fixture
def fleet(process: StageProcess, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    monkeypatch.setattr(wire, "FIRST_WAIT_SECONDS", 0.05)
    process.publisher = Boxes()  # type: ignore[assignment]
    probe = Probe(process.backends)
    with ExitStack() as stack:
        process.deadlines.start()
        stack.callback(process.deadlines.stop)
        process.beat.start()
        stack.callback(process.beat.stop)
        process.listener.start()
        stack.callback(process.listener.stop)
        probe.start()
        stack.callback(probe.stop)
        yield Fleet(process, stack)


def reaches(fleet: Fleet, job_id: str, turns: int) -> None:
    assert until(lambda: fleet.store.status(job_id).turns >= turns, GENEROUS_SECONDS, every=0.01)


def check_tokens(result: Result, backends: Sequence[ScriptedBackend]) -> None:
    """Each turn of the result is one reply of some backend to exactly the ids before it; nothing is there twice."""
    replies = {
        (array("i", call["prompt_ids"]).tobytes(), array("i", call["sampled_ids"]).tobytes())
        for backend in backends
        for call in backend.calls(5000)
    }
    (segment,) = result.segments
    ids = [*segment.prompt_ids, *segment.response_ids]
    mask = [0] * len(segment.prompt_ids) + list(segment.loss_mask)
    runs = 0
    at = 0
    while at < len(ids):
        if not mask[at]:
            at += 1
            continue
        end = at
        while end < len(ids) and mask[end]:
            end += 1
        assert (array("i", ids[:at]).tobytes(), array("i", ids[at:end]).tobytes()) in replies
        runs += 1
        at = end
    assert runs == len(result.turns) == TURNS


def moves(result: Result) -> int:
    urls = [turn.backend for turn in result.turns]
    return sum(one != other for one, other in pairwise(urls))


def registered(fleet: Fleet, backend: ScriptedBackend) -> Backend:
    record = fleet.process.backends.get(backend.url)
    assert record is not None
    return record


def test_a_job_goes_on_from_its_tokens_when_its_backend_hangs(fleet: Fleet) -> None:
    fleet.add()
    fleet.add()
    fleet.submit("a")
    reaches(fleet, "a", 2)
    hung = fleet.at("a")
    hung.freeze()
    (result,) = fleet.results("a")
    hung.thaw()
    assert (result.state, result.reward, len(result.turns)) == ("completed", 1.0, TURNS)
    assert moves(result) == 1
    assert fleet.store.status("a").attempt == 1
    hung.wait_until(live=0)  # the call that hung was closed, not left behind
    check_tokens(result, fleet.backends)


def test_jobs_of_a_killed_backend_move_once_and_lose_nothing(fleet: Fleet) -> None:
    """Public report: a router keeps sending to dead engines."""
    for _ in range(4):
        fleet.add()
    ids = [f"j{n}" for n in range(24)]
    fleet.submit(*ids)
    reaches(fleet, ids[-1], 1)
    victim = fleet.at(ids[0])
    theirs = [job_id for job_id in ids if fleet.at(job_id) is victim]
    victim.kill()
    left = [backend for backend in fleet.backends if backend is not victim]
    results = dict(zip(ids, fleet.results(*ids), strict=True))
    assert Counter(result.state for result in results.values()) == {"completed": 24}
    assert all(fleet.store.status(job_id).attempt == 1 for job_id in ids)
    for job_id, result in results.items():
        assert len(result.turns) == TURNS
        assert moves(result) <= (job_id in theirs)
        assert result.turns[-1].backend != victim.url or job_id in theirs
    assert any(moves(results[job_id]) for job_id in theirs)
    assert registered(fleet, victim).state == "down"
    assert {one.url: one.assigned for one in fleet.process.backends.list()} == dict.fromkeys(
        (backend.url for backend in fleet.backends), 0
    )
    for result in results.values():
        if moves(result) == 0 and result.turns[0].backend != victim.url:
            check_tokens(result, left)


def test_a_job_whose_only_backend_restarts_waits_and_goes_on(fleet: Fleet) -> None:
    backend = fleet.add()
    fleet.submit("a", timeouts={"rollout": 30})
    reaches(fleet, "a", 2)
    backend.kill()
    assert until(lambda: registered(fleet, backend).state == "down", GENEROUS_SECONDS, every=0.01)
    backend.start()
    (result,) = fleet.results("a")
    assert (result.state, len(result.turns)) == ("completed", TURNS)
    assert fleet.store.status("a").attempt == 1


@pytest.mark.slow
def test_a_job_without_any_backend_left_ends_after_the_wait(fleet: Fleet, process: StageProcess) -> None:
    process.settings = process.settings.with_(backend_wait_seconds=1.0)
    backend = fleet.add()
    fleet.submit("a")
    reaches(fleet, "a", 2)
    backend.kill()
    (result,) = fleet.results("a")
    assert result.state == "failed"
    assert result.error is not None
    assert (result.error.kind, result.error.retryable, result.reward) == ("backend", True, None)
    assert "no backend" in result.error.message
    assert len(result.turns) >= 2


def test_a_backend_taken_out_now_gives_up_its_calls_and_they_are_made_elsewhere(fleet: Fleet) -> None:
    slow = fleet.add(latency=600.0)
    fleet.submit("a")
    slow.wait_until(live=1, seconds=GENEROUS_SECONDS)
    quick = fleet.add()
    assert fleet.process.backends.remove(slow.url, "now")
    (result,) = fleet.results("a")
    assert result.state == "completed"
    assert {turn.backend for turn in result.turns} == {quick.url}
    assert slow.wait_until(live=0, seconds=GENEROUS_SECONDS)["aborts"] == 1


@pytest.mark.slow
def test_a_draining_backend_finishes_its_jobs(fleet: Fleet) -> None:
    first = fleet.add()
    fleet.submit("a")
    reaches(fleet, "a", 1)
    fleet.add()
    assert fleet.process.backends.remove(first.url, "drain")
    (result,) = fleet.results("a")
    assert {turn.backend for turn in result.turns} == {first.url}
    assert fleet.process.backends.get(first.url) is None


def test_a_backend_that_crashes_on_abort_is_dead_and_the_service_goes_on(fleet: Fleet) -> None:
    """Public report: an abort kills the engine."""
    sound = fleet.add()  # started before there is any hurry: on a busy machine that takes longer than the turns do
    assert fleet.process.backends.remove(sound.url, "now")
    fragile = fleet.add(latency=3.0)
    fragile.fail("crash", count=1)
    fleet.submit("victim")
    fragile.wait_until(live=1, seconds=GENEROUS_SECONDS)
    fleet.submit("neighbour")
    reaches(fleet, "neighbour", 1)
    fleet.register(sound)
    fleet.store.cancel("victim")
    victim, neighbour = fleet.results("victim", "neighbour")
    assert victim.state == "cancelled"
    assert (neighbour.state, len(neighbour.turns)) == ("completed", TURNS)
    assert (neighbour.turns[0].backend, neighbour.turns[-1].backend) == (fragile.url, sound.url)
    assert registered(fleet, fragile).state == "down"
    assert registered(fleet, sound).state == "up"


@pytest.mark.parametrize("mode", ["http500", pytest.param("close", marks=pytest.mark.slow)])
def test_a_turn_that_fails_at_a_backend_that_is_well_is_tried_at_one_other(fleet: Fleet, mode: str) -> None:
    """One bad request must not take out a fleet."""
    for _ in range(3):
        fleet.add().fail(mode, count=10_000)
    fleet.submit("a")
    (result,) = fleet.results("a")
    assert result.state == "failed"
    assert result.error is not None
    assert result.error.kind == "backend"
    records = [registered(fleet, backend) for backend in fleet.backends]
    assert [record.state for record in records] == ["up"] * 3
    assert sorted(record.errors for record in records) == [0, 1, 1]


@pytest.mark.slow
def test_a_turn_that_fails_once_costs_no_attempt(fleet: Fleet) -> None:
    backend = fleet.add()
    backend.fail("close", count=5)  # as many as a call is tried
    fleet.submit("a")
    (result,) = fleet.results("a")
    assert result.state == "completed"
    assert fleet.store.status("a").attempt == 1
    assert registered(fleet, backend).errors == 1


def test_a_busy_backend_is_obeyed_and_not_taken_for_dead(fleet: Fleet) -> None:
    busy = fleet.add()
    busy.fail("http429", count=1)
    fleet.submit("a")
    (result,) = fleet.results("a")
    assert result.state == "completed"
    assert {turn.backend for turn in result.turns} == {busy.url}
    assert (registered(fleet, busy).state, registered(fleet, busy).errors) == ("up", 0)


@pytest.mark.slow
def test_nonsense_is_counted_as_an_error_of_its_backend(fleet: Fleet) -> None:
    backend = fleet.add()
    backend.fail("no_ids", count=1)
    fleet.submit("a")
    (result,) = fleet.results("a")
    assert result.state == "failed"
    assert registered(fleet, backend).errors == 1


def test_a_pinned_job_moves_only_to_its_version(fleet: Fleet) -> None:
    backends = [fleet.add() for _ in range(3)]
    for backend, version in zip(backends, (1, 1, 2), strict=True):
        fleet.register(backend, policy_version=version)
    fleet.submit("a", policy_version=1)
    reaches(fleet, "a", 1)
    first = fleet.at("a")
    fleet.process.backends.change(first.url, policy_version=2)
    (result,) = fleet.results("a")
    assert result.state == "completed"
    assert result.turns[-1].backend == next(b.url for b in backends[:2] if b is not first)
    assert moves(result) == 1


@pytest.mark.slow
def test_a_process_that_cannot_reach_a_backend_leaves_it_to_the_others(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    shunned = fleet.add()
    shunned.fail("close", count=10_000)
    fleet.submit("a")
    shunned.wait_until(calls=1, seconds=GENEROUS_SECONDS)

    async def unreachable(session: Any, url: str) -> bool:
        return url != shunned.url

    monkeypatch.setattr("tasks.watch.well", unreachable)
    monkeypatch.setattr("tasks.watch.VERDICT_SECONDS", 1.0)
    other = fleet.add()
    (result,) = fleet.results("a")
    assert result.state == "completed"
    assert {turn.backend for turn in result.turns} == {other.url}
    assert registered(fleet, shunned).state == "up"


@pytest.mark.slow
def test_a_conversation_of_messages_moves_as_well(fleet: Fleet) -> None:
    fleet.add()
    fleet.add()
    fleet.submit("a", llm={"mode": "chat"})
    reaches(fleet, "a", 2)
    fleet.at("a").kill()
    (result,) = fleet.results("a")
    assert (result.state, len(result.turns), moves(result)) == ("completed", TURNS, 1)
