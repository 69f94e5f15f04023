"""Memory that no process shows, counted from outside."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

from prorl_celery.sandbox import memory, unseen
from prorl_celery.sandbox.session import LiveSandbox

HOLD = """
import os, sys
held = os.memfd_create("x")
os.write(held, bytes(3_000_000))
if os.fork() == 0: os.read(0, 1)
else: print(os.getpid(), flush=True); os.read(0, 1)
"""


def test_a_memory_file_that_nobody_has_mapped_is_counted_once_and_goes_with_its_holder():
    with subprocess.Popen(
        [sys.executable, "-S", "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    ) as holder:
        assert holder.stdout is not None
        parent = int(holder.stdout.readline())
        (child,) = memory.children(parent)
        assert 3_000_000 <= unseen.memory_files([os.getpid(), parent, child])[parent] < 3_100_000
        assert unseen.memory_files([child, parent]).keys() == {child}
        os.killpg(parent, 9)
        holder.wait(timeout=30)
        assert unseen.memory_files([parent]) == {}


def test_files_without_a_byte_cost_something(start: Callable[..., LiveSandbox], keeper):
    sandbox = start()
    (entry,) = [e for e in keeper.client.list() if e["sandbox_id"] == sandbox.handle.sandbox_id]
    (inner,) = memory.children(entry["pid"])
    before = unseen.kept_for_files(inner, 256 << 20)
    sandbox.shell.run("for i in {1..500}; do : >/workspace/$i; : >/tmp/$i; done", timeout=60)
    assert unseen.kept_for_files(inner, 256 << 20) == before + 1000 * unseen.FILE_BYTES
    assert unseen.kept_for_files(inner, 1 << 20) == 0, "larger than any of the sandbox's"
