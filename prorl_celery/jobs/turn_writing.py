"""Writing the turn log: each turn, and what each of its calls gave, as they end."""

from __future__ import annotations

from prorl_celery.errors import LogBehind, TooLarge
from prorl_celery.jobs.claims import Claim
from prorl_celery.jobs.history import HistoryReader
from prorl_celery.jobs.replies import fenced
from prorl_celery.jobs.turnlog import pack_observation, pack_turn
from prorl_celery.jobs.turns import Observation, Turn


class TurnWriter(HistoryReader):
    """Appends to turn logs."""

    def append_turn(self, claim: Claim, turn: Turn, goes_on: bool = False) -> None:
        """Append a turn to the job's log; the same turn again changes nothing. An attempt's first turn has index 0.

        Of a turn that is not `closed` the calls are still to be made: an observation follows for each. A turn that
        `goes_on` is of the same run as the one before, which must be closed by then.

        Raises: `FenceLost`, `TooLarge` (the turn or the whole log), `LogBehind`.
        """
        blob = pack_turn(turn, limit_bytes=self._limit, job_id=claim.job_id)
        calls = "" if turn.closed else "1"
        oldest = min((version for version in turn.versions if version >= 0), default="")
        word = self._run(
            "append_turn",
            claim.job_id,
            claim.fence,
            turn.index,
            blob,
            self._limit,
            calls,
            len(turn.sampled_ids),
            oldest,
            "1" if goes_on else "",
        )
        self._appended(word, claim, f"turn {turn.index}", len(blob))

    def append_observation(self, claim: Claim, seen: Observation) -> None:
        """Append what a call of the log's last, open turn gave; the same again changes nothing. They come in order.

        Raises: as `append_turn`; `LogBehind` also when the turn has no more calls.
        """
        blob = pack_observation(seen, limit_bytes=self._limit, job_id=claim.job_id)
        closes, note = ("1" if true else "" for true in (seen.closes, seen.ends_the_run_alone))
        word = self._run(
            "append_observation", claim.job_id, claim.fence, seen.index, seen.call, blob, self._limit, closes, note
        )
        self._appended(word, claim, f"call {seen.call} of turn {seen.index}", len(blob))

    def _appended(self, word: bytes, claim: Claim, what: str, size: int) -> None:
        job_id = claim.job_id
        if word == b"fenced":
            raise fenced(claim, "append to the turn log")
        if word == b"gap":
            raise LogBehind(f"{what} of {job_id} comes before what it follows", job_id=job_id)
        if word == b"closed":
            raise LogBehind(f"{what} of {job_id} comes after the turn's last call", job_id=job_id)
        if word == b"large":
            raise TooLarge(
                f"the log with {what} ({size} bytes packed) passes the limit of {self._limit} bytes", job_id=job_id
            )

    @property
    def _limit(self) -> int:
        return self._settings.max_blob_bytes
