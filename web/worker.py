"""gunicorn's threaded worker, which also lets waiting long-polls go when it stops.

Without that a stop would wait for the longest long-poll: the interpreter joins a pool's threads when it exits.
"""

from __future__ import annotations

from typing import Any

from gunicorn.workers.gthread import ThreadWorker

from web.services import EXTENSION


class ApiWorker(ThreadWorker):  # type: ignore[misc]
    """One API process."""

    def handle_exit(self, sig: int, frame: Any) -> None:
        """TERM: answer what is in work, and every long-poll with what is known now."""
        super().handle_exit(sig, frame)
        # On the main loop rather than in the signal's frame: closing takes a lock.
        self.method_queue.defer(self._let_waiters_go)

    def handle_quit(self, sig: int, frame: Any) -> None:
        """INT or QUIT: end now, from the main loop. gunicorn would shut its pool down in the signal's frame, and wait
        for ever for a lock that the same thread holds where the signal met it handing a request to the pool.
        """
        self.alive = False
        self.method_queue.defer(self._quit, sig)

    def _quit(self, sig: int) -> None:
        self._let_waiters_go()
        super().handle_quit(sig, None)

    def _let_waiters_go(self) -> None:
        application = getattr(self, "wsgi", None)
        if application is not None:
            application.extensions[EXTENSION].waiters.close()
            application.extensions[EXTENSION].following.close()
