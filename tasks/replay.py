"""The job's turn log as its rollout writes it, and reads what an earlier claim of the same attempt wrote.

A handler's rollout is called again by the process that goes on, and may run its agent several times. Its runs are told
apart by their number: of the k-th, what the log has of run k is not done again. Turns are counted through all runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from prorl_celery.agents.loop import AgentOutcome, outcome_of
from prorl_celery.errors import CannotGoOn, LogBehind
from prorl_celery.jobs.turns import Observation, Turn
from tasks.work import Work


class RunLog:
    """One run of the agent in the log. `logged` are its turns that an earlier claim wrote."""

    def __init__(self, work: Work, run: int, first: int, logged: Sequence[Turn]) -> None:
        self.run = run
        self.logged = logged
        self._work = work
        self._first = first
        self.turns = len(logged)

    @property
    def outcome(self) -> AgentOutcome | None:
        """How the run ended in an earlier claim; None when it goes on, or begins."""
        return outcome_of(self.logged)

    def turn(self, turn: Turn) -> None:
        """Append a turn.

        Raises: `FenceLost`, `TooLarge`, `StoreUnavailable`, `CannotGoOn` when the log has lost what comes before it,
        what the job's signal raises.
        """
        store, claim = self._work.process.store, self._work.claim
        placed = replace(turn, index=self._first + turn.index, run=self.run)
        self._write(lambda: store.append_turn(claim, placed, turn.index > 0))
        self.turns = turn.index + 1

    def observation(self, seen: Observation) -> None:
        """Append what a call of the last turn came to. Raises as `turn`."""
        store, claim = self._work.process.store, self._work.claim
        placed = replace(seen, index=self._first + seen.index)
        self._write(lambda: store.append_observation(claim, placed))

    def _write(self, step: Callable[[], None]) -> None:
        try:
            self._work.write(step)
        except LogBehind as error:
            # A Redis that came back had forgotten its last moment. What was done then is in the sandboxes.
            self._work.signal.set(CannotGoOn(f"the turn log was lost in part: {error}"))
            self._work.signal.raise_if_set()


class RolloutLog:
    """All runs of a rollout."""

    def __init__(self, work: Work) -> None:
        self._work = work
        going_on = work.claim.going_on
        self._logged = work.process.store.turns(work.job.job_id) if going_on else []
        self._runs: list[RunLog] = []

    def next_run(self) -> RunLog:
        """The handler runs its agent once more.

        Raises: `CannotGoOn` when the log has later runs than this one, and does not say how this one ended.
        """
        number = len(self._runs)
        logged = [turn for turn in self._logged if turn.run == number]
        run = RunLog(self._work, number, sum(run.turns for run in self._runs), logged)
        if run.outcome is None and self._logged and self._logged[-1].run > number:
            why = f"how run {number} of the agent ended is not in the turn log, which has later ones"
            self._work.signal.set(CannotGoOn(why))
            self._work.signal.raise_if_set()
        self._runs.append(run)
        return run
