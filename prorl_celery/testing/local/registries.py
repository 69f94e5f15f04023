"""The backends, the node and the policy of one job that runs alone: what the stages ask of their registries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from prorl_celery.errors import BackendError
from prorl_celery.scheduling.backends import Backend
from prorl_celery.scheduling.policy import PolicyState, Told


class LocalBackends:
    """A few backends, all up; a job gets the first that will do."""

    def __init__(self) -> None:
        self._backends: dict[str, Backend] = {}

    def put(self, backend: Backend) -> None:
        self._backends[backend.url] = backend

    def serve_only(self, *backends: Backend) -> None:
        """Forget all others."""
        self._backends = {backend.url: backend for backend in backends}

    def all(self) -> list[Backend]:
        return list(self._backends.values())

    def get(self, url: str) -> Backend | None:
        return self._backends.get(url)

    def serving(self, urls: Sequence[str]) -> dict[str, Backend | None]:
        return {url: self.get(url) for url in urls}

    def change(self, url: str, **changes: Any) -> Backend | None:
        """Counts errors; the rest is the health checks', which nobody makes here."""
        if (found := self.get(url)) is not None:
            found = found.model_copy(update={"errors": found.errors + changes.get("more_errors", 0)})
            self.put(found)
        return found

    def acquire(
        self,
        job_id: str,
        fence: int,
        *,
        model: str | None,
        mode: Literal["tokens", "chat"] | None,
        policy_version: int | None = None,
        exclude: Sequence[str] = (),
    ) -> Backend | None:
        """As `BackendRegistry.acquire`."""
        served = sorted({backend.model for backend in self._backends.values()})
        if model is None and len(served) > 1:
            raise BackendError(f"name a model: {', '.join(served)} are served", job_id=job_id)
        fitting = (b for b in self._backends.values() if b.url not in exclude)
        return next((b for b in fitting if _will_do(b, model, mode, policy_version)), None)

    def release(self, job_id: str, fence: int) -> bool:
        return True


def _will_do(backend: Backend, model: str | None, mode: str | None, version: int | None) -> bool:
    if model not in (None, backend.model) or version not in (None, backend.policy_version):
        return False
    if mode == "tokens":
        return backend.gives_ids and backend.kind != "chat"
    return mode is None or backend.kind in ("vllm", "chat")


class LocalNodes:
    """This node is the only one, and works on all stages."""

    def other_has_room(self, node: str) -> bool:
        return False

    def works_on(self, stage: str, node: str, boot: str) -> bool:
        return True


class LocalPolicy:
    """Nobody pauses."""

    def look(self, process: str, told: Told) -> PolicyState:
        return PolicyState(epoch=0, weights={}, pauses=())

    def leave(self, process: str) -> None:
        pass
