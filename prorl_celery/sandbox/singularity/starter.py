"""A function in a forked process whose end can be waited for together with other things."""

from __future__ import annotations

import json
import os
from collections.abc import Callable

from prorl_celery.errors import SandboxError, sandbox_error


class Starter:
    """Runs `function`, which returns a number, in a child of the calling process.

    `pipe` becomes readable when it has ended. What it prints goes where the caller's output goes.
    """

    def __init__(self, function: Callable[[], int]) -> None:
        self.pipe, write = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            _run(function, write)
        os.close(write)

    def result(self) -> int:
        """Wait for its end. Raises `SandboxError` with the message of the one it raised."""
        with open(self.pipe, "rb") as pipe:  # noqa: PTH123
            said = pipe.read()
        os.waitpid(self._pid, 0)
        pid, error, message = json.loads(said) if said else (0, "", "the start was killed")
        if message:
            raise sandbox_error(error, message)
        return int(pid)


def _run(function: Callable[[], int], write: int) -> None:
    """The child's whole life."""
    answer = (0, "", "the start broke off")
    try:
        answer = (function(), "", "")
    except (SandboxError, OSError, ValueError, ImportError) as error:
        answer = (0, type(error).__name__, str(error) or "the start failed")
    finally:
        os.write(write, json.dumps(answer).encode())
        os._exit(0)
