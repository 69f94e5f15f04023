"""A run's log in memory: packed and read again by the store's own functions."""

from __future__ import annotations

from prorl_celery.jobs.turnlog import pack_observation, pack_turn, unpack_turns
from prorl_celery.jobs.turns import Observation, Turn

LIMIT_BYTES = 1 << 24


class KeptLog:
    """Of one run of the agent, `run`."""

    def __init__(self, run: int = 0) -> None:
        self.run = run
        self.blobs: list[bytes] = []

    @property
    def turns(self) -> list[Turn]:
        return unpack_turns(self.blobs)

    def turn(self, turn: Turn) -> None:
        self.blobs.append(pack_turn(turn, limit_bytes=LIMIT_BYTES, job_id="a"))

    def observation(self, seen: Observation) -> None:
        self.blobs.append(pack_observation(seen, limit_bytes=LIMIT_BYTES, job_id="a"))
