"""Rollouts whose process is killed at any instant, and that others go on with: what is played, and what must hold."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from aiohttp import web
from kept_log import KeptLog
from llm_stub import Signal, Stub

from prorl_celery.agents.loop import AgentOutcome, outcome_of, run_agent
from prorl_celery.jobs.turns import Observation, Turn
from prorl_celery.llm.conversation import Conversation
from prorl_celery.llm.reply import Reply
from prorl_celery.tools import base

MAX_TURNS = 4


class Killed(BaseException):
    """The process is gone: nothing of its own may catch this and go on."""


class Fuse:
    """Kills at the `at`-th step; None: never."""

    def __init__(self, at: int | None = None) -> None:
        self.at = at
        self.steps = 0

    def step(self) -> None:
        if self.steps == self.at:
            raise Killed
        self.steps += 1


@dataclass
class World:
    """What outlives a process: the log, and the sandbox with what was done there."""

    logs: list[KeptLog] = field(default_factory=list)
    mark: str = ""
    came: dict[str, str] = field(default_factory=dict)
    """Mark -> what its call came to; none is made twice."""

    def log(self, run: int) -> KeptLog:
        while len(self.logs) <= run:
            self.logs.append(KeptLog(len(self.logs)))
        return self.logs[run]

    @property
    def turns(self) -> list[Turn]:
        return [turn for log in self.logs for turn in log.turns]


class MortalLog:
    """Writes through, and is killed before or behind a write."""

    def __init__(self, log: KeptLog, fuse: Fuse) -> None:
        self.run = log.run
        self._log = log
        self._fuse = fuse

    def turn(self, turn: Turn) -> None:
        self._fuse.step()
        self._log.turn(turn)
        self._fuse.step()

    def observation(self, seen: Observation) -> None:
        self._fuse.step()
        self._log.observation(seen)
        self._fuse.step()


class Tools:
    """`bash` changes the world; `think` and `finish` touch nothing. Killed before, within or behind a call."""

    def __init__(self, world: World, fuse: Fuse) -> None:
        self._world = world
        self._fuse = fuse

    def at_once(self, name: str, arguments: dict[str, Any]) -> bool:
        return name != "bash"

    def call(self, name: str, arguments: dict[str, Any], *, mark: str = "") -> base.Observation:
        self._fuse.step()
        if name == "finish":
            return base.Observation("", ends=True, answer=arguments.get("answer"))
        if name != "bash":
            return base.Observation(f"There is no {name}.")
        self._world.mark = mark
        self._fuse.step()
        assert mark not in self._world.came, "the command ran twice"
        self._world.came[mark] = f"{mark}: {arguments.get('command')}"
        self._fuse.step()
        return base.Observation(self._world.came[mark])

    def recover(self, name: str, arguments: dict[str, Any], *, mark: str) -> base.Observation:
        if name == "bash" and self._world.mark == mark and mark in self._world.came:
            return base.Observation(self._world.came[mark])
        return self.call(name, arguments, mark=mark)


class MortalConversation:
    """Is killed when the reply is there, or before it is asked for."""

    def __init__(self, inner: Conversation, fuse: Fuse) -> None:
        self._inner = inner
        self._fuse = fuse
        self.observe, self.move, self.resume = inner.observe, inner.move, inner.resume

    def sample(self, *, max_tokens: int | None = None) -> Reply:
        self._fuse.step()
        reply = self._inner.sample(max_tokens=max_tokens)
        self._fuse.step()
        return reply


Open = Callable[[str], Conversation]


@dataclass
class Bench:
    """Plays a job of several runs against the stub, from its start to its end or its death."""

    open: Open
    cancel: Signal
    questions: list[str]

    def play(self, world: World, fuse: Fuse) -> list[AgentOutcome]:
        outcomes = []
        for run, question in enumerate(self.questions):
            logged = world.log(run).turns
            outcome = outcome_of(logged)
            if outcome is None:
                outcome = run_agent(
                    MortalConversation(self.open(question), fuse), Tools(world, fuse), max_turns=MAX_TURNS,
                    log=MortalLog(world.log(run), fuse), cancel=self.cancel, logged=logged,
                )  # fmt: skip
            outcomes.append(outcome)
        return outcomes


def timeless(turns: list[Turn]) -> list[Turn]:
    return [replace(turn, llm_s=0.0, tool_s=0.0, total_s=0.0) for turn in turns]


def asked(stub: Stub) -> Counter[str]:
    return Counter(json.dumps(body, sort_keys=True) for body in stub.bodies)


class Oracle:
    """Answers by a script the first time a request comes, and the same whenever that comes again; a request that the
    undisturbed rollout did not make has no answer."""

    def __init__(self, stub: Stub, script: Sequence[Any]) -> None:
        self._script = iter(script)
        self._known: dict[str, Any] = {}
        self.learning = True
        self.strange: list[str] = []
        stub.answer = self
        stub.bodies.clear()

    def __call__(self, body: dict[str, Any]) -> Any:
        key = json.dumps(body, sort_keys=True)
        if key not in self._known:
            if not self.learning:
                self.strange.append(key)
                return web.json_response({"error": {"message": "never asked before"}}, status=400)
            self._known[key] = next(self._script)(body)
        return self._known[key]


@dataclass
class Undisturbed:
    """A rollout that nobody killed: what it left, how its runs ended, what was asked for, in how many steps."""

    world: World
    outcomes: list[AgentOutcome]
    asked: Counter[str]
    steps: int


def undisturbed(stub: Stub, bench: Bench, oracle: Oracle) -> Undisturbed:
    """Play to the end; from then on the oracle knows all that may be asked."""
    world, fuse = World(), Fuse()
    outcomes = bench.play(world, fuse)
    oracle.learning = False
    return Undisturbed(world, outcomes, asked(stub), fuse.steps)


def killed_at(cuts: Sequence[int], plain: Undisturbed, stub: Stub, bench: Bench, oracle: Oracle) -> None:
    """Play with these kills, and then to the end; it must be as if there had been none."""
    world, kills = World(), 0
    stub.bodies.clear()
    try:
        for at in cuts:
            try:
                bench.play(world, Fuse(at))
            except Killed:
                kills += 1
        ended = bench.play(world, Fuse())
    finally:
        assert oracle.strange == [], "the resumed rollout asked for something else"
    assert ended == plain.outcomes
    assert timeless(world.turns) == timeless(plain.world.turns)
    assert world.came == plain.world.came
    again = asked(stub) - plain.asked
    assert again.total() <= kills, "a reply that was logged was asked for again"
