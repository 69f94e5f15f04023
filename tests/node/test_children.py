"""A supervisor's children, from the moment of their fork."""

from __future__ import annotations

import subprocess
import sys

TELLS_AT_ONCE = """
import os, signal, time
from prorl_celery.node.children import Call, launch
from prorl_celery.node.signals import SignalPipe

with SignalPipe(signal.SIGTERM) as signals:
    for _ in range(200):
        child = launch(Call(signal.pause), name="x", close=signals.descriptors)
        child.tell(signal.SIGTERM, kill_at=time.monotonic() + 60)
        assert os.WTERMSIG(os.waitpid(child.pid, 0)[1]) == signal.SIGTERM
    print(len(signals.wait(0)))
"""


def test_a_signal_for_a_child_that_was_only_just_forked_is_not_taken_for_its_supervisors() -> None:
    told = subprocess.run(
        [sys.executable, "-P", "-c", TELLS_AT_ONCE], capture_output=True, text=True, timeout=120, check=False
    )
    assert (told.stdout.strip(), told.stderr) == ("0", "")
