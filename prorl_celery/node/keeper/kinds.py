"""The kinds of sandbox that this keeper can start.

Each is tried out before its first sandbox, by a child: a program that hangs holds up nobody but who waits for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, astuple
from pathlib import Path
from typing import Any

from prorl_celery.errors import SandboxError, SandboxUnavailable
from prorl_celery.node.keeper.entry import Entry
from prorl_celery.node.keeper.loop import Loop
from prorl_celery.node.keeper.work import ChildWork
from prorl_celery.sandbox.binds import Bind
from prorl_celery.sandbox.bubblewrap import PROBE_SECONDS, Bubblewrap
from prorl_celery.sandbox.launch import User, sandbox_user
from prorl_celery.sandbox.share import Share
from prorl_celery.sandbox.singularity import Program, Singularity, find
from prorl_celery.sandbox.singularity.program import VERSION_SECONDS
from prorl_celery.settings import Settings

BIND_SECONDS = 20.0
"""Longest look at the folders that a sandbox is to see."""
MARGIN_SECONDS = 5.0
"""What a child gets beyond the time-out of the program it runs."""

Ready = Callable[[SandboxError | None], None]


class Kinds:
    """What starts need of a kind, made when it is first asked for. Everything raises `SandboxError`, `OSError`."""

    def __init__(self, settings: Settings, boot: str, loop: Loop) -> None:
        self._settings = settings
        self._boot = boot
        self._loop = loop
        self._bubblewrap: Bubblewrap | None = None
        self._tried: SandboxUnavailable | bool = False
        self._singularity: Singularity | None = None
        self._share: Share | None = None
        self._trying: dict[str, ChildWork] = {}
        self._waiting: dict[str, dict[str, Ready]] = {}
        self._given_up: set[str] = set()
        """Those whose trial was killed because nobody waited for it."""

    @property
    def pids(self) -> set[int]:
        """Children of this process that are its own."""
        return {work.pid for work in self._trying.values()}

    def is_ready(self, kind: str, sandbox_id: str, ready: Ready) -> bool:
        """Whether a sandbox of a kind can be started. If not, `ready` is called when that has been found out.

        A bubblewrap that does not work is not tried again, a Singularity that does not is.
        """
        if kind == "local" or (kind == "singularity" and self._singularity is not None) or self._works(kind):
            return True
        if kind not in self._trying:
            self._try(kind)
        self._waiting.setdefault(kind, {})[sandbox_id] = ready
        return False

    def are_bound(self, entry: Entry, ready: Ready, stuck: Callable[[], None]) -> bool:
        """Whether an entry's binds need no look any more. If they do, `ready` is called when a child has looked: they
        may be on a disk that does not answer, and then `stuck` is called. Raises `OSError` when no child can be made.
        """
        if entry.kind != "bubblewrap" or not entry.spec.binds or entry.binds is not None:
            return True
        kind = self.bubblewrap()

        def looked(found: Any, error: SandboxError | None) -> None:
            entry.work = None
            if error is None:
                entry.binds = tuple(Bind(*each) for each in found)
            ready(error)

        entry.work = ChildWork(
            lambda: [astuple(bind) for bind in kind.binds(entry.spec)],
            self._loop,
            looked,
            timeout=BIND_SECONDS,
            stuck=stuck,
        )
        return False

    def gone(self, kind: str, sandbox_id: str) -> None:
        """A sandbox needs nothing more. What it alone has waited for is given up."""
        waiting = self._waiting.get(kind, {})
        if waiting.pop(sandbox_id, None) is not None and not waiting:
            self._given_up.add(kind)
            self._trying[kind].kill()

    def bubblewrap(self) -> Bubblewrap:
        """Of a keeper where it is ready."""
        if self._bubblewrap is None:
            self._bubblewrap = Bubblewrap(self._settings, self._user(), self.share())
        return self._bubblewrap

    def singularity(self) -> Singularity:
        """Of a keeper where it is ready."""
        if self._singularity is None:
            raise SandboxUnavailable("no Singularity has been found yet")
        return self._singularity

    def share(self) -> Path:
        """The folder of what sandboxes see of this keeper's."""
        if self._share is None:
            self._share = Share(self._settings, self._user())
        return self._share.path

    def close(self) -> None:
        """Remove what sandboxes shared."""
        if self._share is not None:
            self._share.close()

    def _works(self, kind: str) -> bool:
        if kind != "bubblewrap":
            return False
        if isinstance(self._tried, SandboxUnavailable):
            raise self._tried
        return self._tried

    def _user(self) -> User | None:
        return sandbox_user(self._settings)

    def _try(self, kind: str) -> None:
        self._trying[kind] = ChildWork(
            self.bubblewrap().probe if kind == "bubblewrap" else _find,
            self._loop,
            lambda found, error: self._found(kind, found, error),
            timeout=max(PROBE_SECONDS, VERSION_SECONDS) + MARGIN_SECONDS,
        )

    def _found(self, kind: str, found: Any, error: SandboxError | None) -> None:
        del self._trying[kind]
        given_up = kind in self._given_up
        self._given_up.discard(kind)
        if error is not None and given_up and self._waiting.get(kind):
            # Somebody has come since it was killed: its end says nothing of the kind.
            try:
                self._try(kind)
                return
            except OSError as failed:
                error = SandboxError(f"the sandbox could not be started: {failed}")
        if error is None and kind == "singularity":
            error = self._make_singularity(Program(**{**found, "version": tuple(found["version"])}))
        if kind == "bubblewrap" and (error is None or isinstance(error, SandboxUnavailable)):
            self._tried = True if error is None else error
        for ready in self._waiting.pop(kind, {}).values():
            ready(error)

    def _make_singularity(self, program: Program) -> SandboxError | None:
        try:
            self._singularity = Singularity(self._settings, self._user(), self.share(), self._boot, program)
        except SandboxError as error:
            return error
        except OSError as error:
            return SandboxUnavailable(str(error))
        return None


def _find() -> dict[str, Any]:
    return asdict(find())
