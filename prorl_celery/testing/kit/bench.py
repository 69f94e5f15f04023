"""Runs a case's job, again and again, and lets things happen to it on the way."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields
from types import TracebackType
from typing import Any, Self

from prorl_celery.jobs.models import Result, Stage
from prorl_celery.settings import Settings, variable_of
from prorl_celery.testing.kit.case import Case, ContractBroken, Words
from prorl_celery.testing.kit.remains import Before
from prorl_celery.testing.kit.watch import Happening, Visit, Watch, watched
from prorl_celery.testing.local import LocalRunner
from prorl_celery.testing.local.store import LocalStore, Seen

GRACE_SECONDS = 8.0
"""After this the slot of a stage that does not stop is given up; the kit's limit lies before it."""


@dataclass(frozen=True, slots=True)
class Run:
    """A job that was run: its result, and what the handler did in it."""

    result: Result
    visits: list[Visit]
    store: LocalStore
    ended_at: float
    """By the monotonic clock."""
    words: Words
    stuck: str | None
    left: list[str] = field(default_factory=list)

    def values(self, stage: Stage) -> list[Any]:
        """What the calls of a stage returned that did return."""
        return [visit.value for visit in self.visits if visit.stage == stage and visit.error is None]

    @property
    def story(self) -> str:
        """What came of the job, in a line or two."""
        result = self.result
        told = f"the job ended as {result.state} ({result.finish_reason}) with reward {result.reward}"
        if result.error is not None:
            told += f"; error of kind {result.error.kind}: {result.error.message}"
        if self.words.unknown:
            told += (
                f"; the oracle has no row whose prompt stands in the first user message, "
                f"which was {self.words.unknown[0][:400]!r}"
            )
        return told


class Bench:
    """A context manager around the runner of one case. One that was `lent` is left to who lent it."""

    def __init__(self, case: Case, lent: LocalRunner | None = None) -> None:
        self.case = case
        self._lent = lent
        self._watch = Watch()
        self._words = Words(case, wrong=False)
        self._plain: dict[bool, Run] = {}
        self._runner: LocalRunner | None = None
        self._environment = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the runner and all that it started."""
        self._environment.close()
        runner, self._runner = self._runner, None
        if runner is not None and runner is not self._lent:
            runner.__exit__(None, None, None)

    @property
    def runner(self) -> LocalRunner:
        """One that works: another where the last could not go on."""
        if self._runner is not None and self._runner.process.stuck:
            self.close()
        if self._runner is None:
            self._environment.enter_context(_settings_in_environment(self.case.settings))
            handler = watched(self.case.handler, self._watch)
            lent = self._lent if self._lent is not None and not self._lent.process.stuck else None
            self._runner = runner = lent or LocalRunner(handler, settings_of_kit(**self.case.settings)).__enter__()
            runner.serve(handler)
            runner.play(lambda conversation, seed: self._words(conversation, seed))
        return self._runner

    def plain(self, *, wrong: bool = False) -> Run:
        """The job as it goes when nothing happens to it; run once."""
        if wrong not in self._plain:
            self._plain[wrong] = self.run(wrong=wrong)
        return self._plain[wrong]

    def scored(self) -> Run:
        """The plain run of the right words. Raises `ContractBroken` where it has no reward: then nothing else can be
        checked.
        """
        run = self.plain()
        if run.result.reward is None:
            raise ContractBroken(f"a job with the oracle's right turns must be scored, but {run.story}")
        return run

    def run(
        self,
        *,
        wrong: bool = False,
        happenings: Mapping[Stage, Happening] | None = None,
        seen: Seen = lambda step: None,
        lose_before: str | None = None,
        until: Stage | None = None,
        fields: Mapping[str, Any] | None = None,
    ) -> Run:
        """Run the job to its end, or until a stage has its turn.

        `happenings`: by stage what happens when its method is called. `seen`: hears of each step that was written.
        `lose_before`: a step before which the job's process is lost.
        """
        runner = self.runner
        self._watch.reset()
        self._watch.happenings.update(happenings or {})
        words = self._words = Words(self.case, wrong=wrong)
        before = Before(runner.process.keeper, runner.keeper_pid)
        job = self.case.job.model_copy(update=dict(fields or {}))
        store = runner.store_of(job, seen=seen)
        if lose_before is not None:
            store.lose_before.add(lose_before)
        outcome = runner.work_off(store, until=until)
        ended_at = time.monotonic()
        if until is not None and store.message() is not None:
            return Run(_UNFINISHED, self._watch.visits, store, ended_at, words, outcome.stuck)
        left = [] if outcome.stuck else before.left()
        return Run(outcome.result, self._watch.visits, store, ended_at, words, outcome.stuck, left)

    def tell(self, act: Callable[[Any], None]) -> None:
        """Do something to the claim that is being worked on, if there is one."""
        for held in self.runner.process.beat.holding():
            act(held)


def settings_of_kit(**changes: Any) -> Settings:
    """Those of the environment, with times in which a check can tell."""
    return Settings.from_env().with_(wedge_grace_seconds=GRACE_SECONDS, backend_wait_seconds=10.0, **changes)


@contextmanager
def _settings_in_environment(changes: Mapping[str, Any]) -> Iterator[None]:
    """As the processes of a service have them, for a handler that reads the settings itself."""
    variables = {variable_of(field) for field in fields(Settings) if field.name in changes}
    before = {name: os.environ.get(name) for name in variables}
    wanted = Settings().with_(**changes).to_env()
    os.environ.update({name: wanted[name] for name in variables})
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


_UNFINISHED = Result.model_construct(job_id="kit", state="running", finish_reason="stop", messages=[], turns=[])
