"""A conversation that outlives its backend: when that goes, another takes over, and the turn is asked again.

A prompt is ids (or messages): any backend of the same model, and of the same version where the job is pinned to one,
can go on from them. What was sampled before stays; nothing of a call that failed is kept, so nothing is there twice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from types import TracebackType
from typing import Any, Self

from prorl_celery.errors import BackendError, BackendGone
from prorl_celery.jobs.turns import Turn
from prorl_celery.llm.calls.base import ToolCall
from prorl_celery.llm.conversation import Conversation
from prorl_celery.llm.endpoint import Endpoint
from prorl_celery.llm.reply import Reply
from tasks.backends import Wanted, acquire, endpoint_of, wait_for_backend
from tasks.watch import CallSignal
from tasks.work import Work

log = logging.getLogger(__name__)

IN_VAIN = 1
"""How often a turn is asked again after it failed at a backend that is well: the fault may be the turn's own."""
PAUSE_SECONDS = 0.5
"""Before a backend that failed a turn, and is well, is asked again because there is no other."""


class MovingConversation:
    """A `Conversation` at the job's backend; a context manager.

    `begin(endpoint, signal)` opens the conversation at its first backend, which is as `wanted` says; `signal` is what
    its calls must watch.
    Raises when made: `NoBackend` after `PRORL_BACKEND_WAIT`, what the job's signal and `begin` raise.
    """

    def __init__(self, work: Work, begin: Callable[[Endpoint, CallSignal], Conversation], wanted: Wanted) -> None:
        self._work = work
        self._watch = work.process.watch
        self._signal = CallSignal(work.signal, wanted.policy_version)
        self._wanted = wanted
        try:
            endpoint = self._take()
            # From here on only such a backend will do: an open conversation changes neither model nor form.
            mode = wanted.mode or ("chat" if endpoint.kind == "chat" or not endpoint.tokenizer else "tokens")
            self._wanted = replace(wanted, model=endpoint.model, mode=mode)
            self._inner = begin(endpoint, self._signal)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Watch no more. The backend stays the job's until the stage ends."""
        self._watch.discard(self._signal)
        self._signal.close()

    def sample(self, *, max_tokens: int | None = None) -> Reply:
        vain = 0
        while True:
            try:
                self._signal.raise_if_set()
                with self._work.act(f"model call {self._endpoint.url}"):
                    return self._inner.sample(max_tokens=max_tokens)
            except BackendGone as error:
                url = self._endpoint.url
                if not self._signal.lost:
                    self._watch.count_error(url)
                    if not self._watch.has_gone(url, self._work.signal):
                        vain += 1
                        if vain > IN_VAIN:
                            raise
                log.info("%s moves away: %s", self._work.job.job_id, error)
                self._move(url)
            except BackendError as error:
                if error.url is not None:
                    self._watch.count_error(error.url)
                raise

    def observe(self, observations: Sequence[tuple[ToolCall, str]]) -> list[dict[str, Any]]:
        return self._inner.observe(observations)

    def move(self, endpoint: Endpoint) -> None:
        self._inner.move(endpoint)

    def resume(self, turns: Sequence[Turn]) -> Reply | None:
        return self._inner.resume(turns)

    def _move(self, url: str) -> None:
        self._inner.move(self._take(but_for=url))

    def _take(self, but_for: str | None = None) -> Endpoint:
        """The job's backend, from now on watched. Raises as the constructor."""
        heard = self._watch.changes
        ask: dict[str, Any] = asdict(self._wanted)
        backend = acquire(self._work, **ask, exclude=() if but_for is None else (but_for,))
        if backend is None and but_for is not None:
            self._work.signal.wait(PAUSE_SECONDS)
            backend = acquire(self._work, **ask)
        if backend is None:
            with self._work.clock.paused(), self._work.act("waiting for a backend", waiting=True):
                backend = wait_for_backend(self._work, **ask)
        self._endpoint = endpoint_of(backend)
        self._signal.at(backend)
        self._watch.add(self._signal)
        if self._watch.changes != heard:
            self._watch.look()
        return self._endpoint
