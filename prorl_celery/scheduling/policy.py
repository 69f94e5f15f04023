"""The policy's weights as the fleet knows them: pauses, the version of each backend's weights, who has heard of it.

A trainer pauses, loads its weights into the backends and resumes with a version. Every change raises the epoch. Each
process that makes model calls tells which epoch it obeys and what it has in flight (`tasks/gate.py`), in the script
that tells it the state: one that is not listed cannot have missed a pause, and one that is listed is waited for until
it has been silent for `PROCESS_TTL_SECONDS`. Pauses end by the server's time, told here as seconds left.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import redis
from pydantic import BaseModel, ConfigDict, Field

from prorl_celery.scheduling.nodes import NODE_TTL_SECONDS
from prorl_celery.settings import Settings
from prorl_celery.store.keys import Keys
from prorl_celery.store.scripts import Scripts

PauseMode = Literal["finish", "abort"]

PROCESS_TTL_SECONDS = NODE_TTL_SECONDS
"""How long a silent process is waited for, and how long it may believe what it was told."""

_EVERY_MODEL = "all"
_ONE_MODEL = "model:"


class Pause(BaseModel):
    """A pause of one model, or of all (`model` None) but those in `released`."""

    model_config = ConfigDict(frozen=True)

    model: str | None
    mode: PauseMode
    epoch: int
    seconds_left: float
    released: frozenset[str] = frozenset()

    def holds(self, model: str) -> bool:
        """Whether jobs of this model are held."""
        return model not in self.released if self.model is None else model == self.model


@dataclass(frozen=True, slots=True)
class Weights:
    """What a backend samples with. `epoch` tells two loads of the same version apart; 0 where nobody said when."""

    version: int | None
    epoch: int = 0

    @property
    def cache_salt(self) -> str | None:
        """What keeps these weights' prefix cache apart from that of others; None for an unknown version."""
        if self.version is None:
            return None
        return f"v{self.version}.{self.epoch}" if self.epoch else f"v{self.version}"


@dataclass(frozen=True, slots=True)
class PolicyState:
    """The state as of `epoch`. `weights` are by the backend's url."""

    epoch: int
    weights: Mapping[str, Weights]
    pauses: tuple[Pause, ...]


class Told(BaseModel):
    """What a process said last: the epoch that it obeys, its calls in flight and the jobs that it holds, by model."""

    model_config = ConfigDict(frozen=True)

    epoch: int
    in_flight: dict[str, int] = Field(default_factory=dict)
    held: dict[str, int] = Field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Heed:
    """How far the live processes obey an epoch, for one model or for all."""

    processes: int
    acknowledged: int
    in_flight: int
    held: int

    @property
    def complete(self) -> bool:
        return self.acknowledged == self.processes and self.in_flight == 0


@dataclass(frozen=True, slots=True)
class Resumed:
    """What a resume came to."""

    epoch: int
    pauses_ended: int
    backends_told: int


class PolicyRegistry:
    """Keeps all that. Safe to share between threads. Raises `StoreUnavailable`."""

    def __init__(self, client: redis.Redis, settings: Settings) -> None:
        self.keys = Keys(settings.key_prefix)
        self._run = Scripts(client, settings).run

    def pause(self, model: str | None, mode: PauseMode, ttl_seconds: float) -> int:
        """Hold the jobs of a model, or of all, before their next model call; the new epoch."""
        return int(self._run("policy_pause", model or "", mode, round(ttl_seconds * 1000), secrets.token_hex(8)))

    def resume(self, model: str | None, version: int | None) -> Resumed:
        """End the pause of a model, or all pauses, and tell which weights its backends have now (None: the same)."""
        told = "" if version is None else version
        return Resumed(*self._run("policy_resume", model or "", told, secrets.token_hex(8)))

    def renew(self, url: str) -> int:
        """Note that a backend has other weights than before, whatever their version is called; the new epoch."""
        return int(self._run("policy_renew", url, secrets.token_hex(8)))

    def look(self, process: str = "", told: Told | None = None) -> PolicyState:
        """The state; in the same step, what the process does is told to those who wait for it."""
        text = "" if told is None else told.model_dump_json()
        epoch, backends, pauses = self._run("policy_look", process, text, round(PROCESS_TTL_SECONDS * 1000))
        return PolicyState(
            epoch,
            {
                url.decode(): Weights(int(version) if version else None, int(loaded or 0))
                for url, version, loaded in _threes(backends)
            },
            tuple(_pause(scope.decode(), text, left) for scope, text, left in _threes(pauses)),
        )

    def leave(self, process: str) -> None:
        """Say that a process makes no more model calls."""
        self._run("policy_look", process, "", 0)

    def heed(self, epoch: int, model: str | None) -> Heed:
        """How far the live processes obey this epoch; calls and held jobs are those of the model (None: of all)."""
        _, *texts = self._run("policy_processes")
        told = [Told.model_validate_json(text) for text in texts]

        def count(what: Mapping[str, int]) -> int:
            return sum(what.values()) if model is None else what.get(model, 0)

        return Heed(
            processes=len(told),
            acknowledged=sum(one.epoch >= epoch for one in told),
            in_flight=sum(count(one.in_flight) for one in told),
            held=sum(count(one.held) for one in told),
        )


def _threes(flat: list[bytes]) -> list[tuple[bytes, bytes, bytes]]:
    return list(zip(flat[::3], flat[1::3], flat[2::3], strict=True))


def _pause(scope: str, text: bytes, left_ms: bytes) -> Pause:
    record = json.loads(text)
    return Pause(
        model=None if scope == _EVERY_MODEL else scope.removeprefix(_ONE_MODEL),
        mode=record["mode"],
        epoch=record["epoch"],
        seconds_left=int(left_ms) / 1000,
        released=frozenset(record.get("except", ())),
    )
