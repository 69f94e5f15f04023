"""A session in tmux as agents' harnesses drive it: type, sleep, copy the whole pane, look for the prompt, clear.

The times are theirs: the pane is looked at every half second, and cleared with a tenth of a second's wait before the
next command. The pane has 1,000 columns and rows; 10,000 lines above it are kept, so that of longer output only the end
is ever seen. The server is a child of ours that dies with this process.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from prorl_celery.bench.report import BenchFailed
from prorl_celery.bench.tools.companions import READY_SECONDS, companion
from prorl_celery.node.pause import until

POLL_SECONDS = 0.5
CLEAR_SECONDS = 0.1
PANE = "1000"
KEPT_LINES = "10000"
CALL_SECONDS = 30.0
PROMPT_END = "<prompt>"


class Tmux:
    """One pane of a server of its own."""

    def __init__(self, place: Path) -> None:
        self._program = ("tmux", "-S", str(place), "-f", "/dev/null")
        self._copied = 0

    @property
    def copied_bytes(self) -> int:
        """Each look at the pane copies all that it shows."""
        return self._copied

    def call(self, *arguments: str) -> str:
        """One tmux command. Raises `BenchFailed`."""
        try:
            done = subprocess.run(
                [*self._program, *arguments], capture_output=True, text=True, timeout=CALL_SECONDS, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise BenchFailed(f"tmux {arguments[0]} took over {CALL_SECONDS:g} s") from error
        if done.returncode != 0:
            raise BenchFailed(f"tmux {arguments[0]}: {done.stderr.strip()}")
        return done.stdout

    def run(self, command: str, *, timeout: float) -> str:
        """As `Way.run`."""
        deadline = time.monotonic() + timeout
        self.call("send-keys", "-l", command)
        self.call("send-keys", "Enter")
        while True:
            time.sleep(POLL_SECONDS)  # not ours to better: it is what is measured
            pane = self.look()
            if pane.endswith(PROMPT_END):
                break
            if time.monotonic() > deadline:
                raise BenchFailed(f"tmux: `{command}` did not end in time; the pane shows {pane[-200:]!r}")
        said, _, status = pane.removesuffix(PROMPT_END).rpartition("<")
        if status != "0":
            raise BenchFailed(f"tmux: `{command}` ended with {status}")
        self.clear()
        return said.partition(f"{PROMPT_END}{command}\n")[2]

    def look(self) -> str:
        """All that the pane shows and keeps."""
        pane = self.call("capture-pane", "-J", "-p", "-S", "-")
        self._copied += 2 * len(pane)  # joined from pieces, decoded
        return pane.rstrip()

    def clear(self) -> None:
        """Leave nothing in the pane but a prompt."""
        self.call("send-keys", "C-l")
        time.sleep(CLEAR_SECONDS)  # as above
        self.call("clear-history")


@contextmanager
def tmux(folder: str) -> Iterator[Tmux]:
    """A server and its pane, in a folder that can hold the socket too."""
    place = Path(folder, ".tmux")  # hidden from `ls`
    pane = Tmux(place)
    environment = {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "LANG": "C.UTF-8", "HOME": folder}
    environment |= {"PS1": f"<$?{PROMPT_END}", "TERM": "screen"}
    server = ["tmux", "-D", "-S", str(place), "-f", "/dev/null"]
    with companion(server, environment, folder, ready=lambda: _listens(place)):
        pane.call("set-option", "-g", "history-limit", KEPT_LINES)
        pane.call("new-session", "-d", "-x", PANE, "-y", PANE, "-c", folder, "bash", "--norc", "--noprofile")
        if not until(lambda: pane.look().endswith(PROMPT_END), READY_SECONDS, every=0.002):
            raise BenchFailed(f"no prompt in tmux, but {pane.look()[-200:]!r}")
        yield pane


def lacks_tmux() -> str | None:
    """Why tmux cannot be measured here; None when it can."""
    return None if shutil.which("tmux") else "there is no tmux: install the package tmux"


def _listens(place: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(place)) == 0
