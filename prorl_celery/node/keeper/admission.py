"""Who may start a rollout sandbox: so many places on the node, given out in order of asking."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable

from prorl_celery.node.keeper.loop import Loop, Timer


class Admissions:
    """Places for rollout sandboxes. A place is held by an admission, then by the sandbox that was started on it."""

    def __init__(self, limit: int, loop: Loop) -> None:
        self.limit = limit
        self._loop = loop
        self._numbers = itertools.count(1)
        self._held: set[str] = set()
        self._sandboxes: set[str] = set()
        self._waiting: OrderedDict[str, tuple[Callable[[str, bool], None], Timer]] = OrderedDict()

    @property
    def admitted(self) -> int:
        """Places held by admissions that no sandbox has used yet."""
        return len(self._held)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def room(self) -> int:
        """Free places."""
        return max(0, self.limit - len(self._held) - len(self._sandboxes))

    def ask(self, timeout: float, answer: Callable[[str, bool], None]) -> str:
        """Get in line. `answer(id, True)` comes with the place, maybe at once; `answer(id, False)` at `timeout`."""
        admission = f"a{next(self._numbers)}"
        if self.room and not self._waiting:
            self._held.add(admission)
            answer(admission, True)
            return admission
        timer = self._loop.after(timeout, lambda: self._expire(admission))
        self._waiting[admission] = (answer, timer)
        return admission

    def give_back(self, admission: str) -> None:
        """The one who asked has gone or needs it no more. Idempotent."""
        waiting = self._waiting.pop(admission, None)
        if waiting is not None:
            waiting[1].cancel()
        self._held.discard(admission)
        self._serve()

    def use(self, admission: str | None, sandbox_id: str) -> None:
        """A sandbox takes the admission's place; without one it takes a place all the same, even over the limit."""
        if admission is not None:
            self._held.discard(admission)
        self._sandboxes.add(sandbox_id)

    def sandbox_gone(self, sandbox_id: str) -> None:
        """Idempotent; also for sandboxes that never counted."""
        self._sandboxes.discard(sandbox_id)
        self._serve()

    def _serve(self) -> None:
        while self._waiting and self.room:
            admission, (answer, timer) = self._waiting.popitem(last=False)
            timer.cancel()
            self._held.add(admission)
            answer(admission, True)

    def _expire(self, admission: str) -> None:
        answer, _ = self._waiting.pop(admission)
        answer(admission, False)
