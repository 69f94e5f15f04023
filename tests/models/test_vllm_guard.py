"""Nothing of a model's server outlives its owner: neither processes, nor sockets, nor shared memory.

The server here is a stand-in that does what vLLM was seen to do: it ignores SIGTERM, its worker survives it, and both
hold shared memory.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from prorl_celery.node.pause import until
from prorl_celery.node.vllm.process_group import members

STUBBORN = """
import os, signal, subprocess, sys
from multiprocessing.shared_memory import SharedMemory
shared = SharedMemory(create=True, size=4096)
if sys.argv[1] == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.pause()"
worker = subprocess.Popen([sys.executable, "-c", deaf])
open(os.path.join(os.environ["TMPDIR"], "socket"), "w").close()
with open(sys.argv[2] + ".new", "w") as told:
    told.write(shared.name)
os.replace(sys.argv[2] + ".new", sys.argv[2])
if sys.argv[1] == "dies":
    os._exit(7)
signal.pause()
"""

OWNER = """
import os, subprocess, sys, signal
guard = subprocess.Popen([sys.executable, "-P", "-m", "prorl_celery.node.vllm.guard", str(os.getpid()), sys.argv[1]],
                         process_group=0)
print(guard.pid, flush=True)
signal.pause()
"""


class Scene:
    """A guard with its stand-in, and an owner of the guard."""

    def __init__(self, tmp_path: Path, manner: str) -> None:
        self.scratch = tmp_path / "scratch"
        self.told = tmp_path / "told"
        argv = [sys.executable, "-c", STUBBORN, manner, str(self.told)]
        environ = {"PATH": os.environ["PATH"], "TMPDIR": str(self.scratch)}
        spec = json.dumps({"argv": argv, "environ": environ, "scratch": str(self.scratch)})
        self.owner = subprocess.Popen(
            [sys.executable, "-c", OWNER, spec], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
        )
        assert self.owner.stdout is not None
        self.guard = int(self.owner.stdout.readline())
        assert until(self.told.exists, 30.0, every=0.05)
        self.shared = Path("/dev/shm") / self.told.read_text()

    def all_gone(self) -> bool:
        return not members(self.guard) and not self.scratch.exists() and not self.shared.exists()

    def close(self) -> None:
        for pid in [*members(self.guard), self.owner.pid]:
            os.kill(pid, signal.SIGKILL)
        self.owner.wait(10)
        if self.owner.stdout:
            self.owner.stdout.close()


@pytest.fixture(params=["stubborn", "willing"])
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path, request.param)
    yield made
    made.close()


def test_a_guard_that_is_told_to_end_leaves_nothing(scene: Scene) -> None:
    os.kill(scene.guard, signal.SIGTERM)
    assert until(scene.all_gone, 30.0, every=0.1)


def test_a_guard_whose_owner_is_killed_leaves_nothing(scene: Scene) -> None:
    scene.owner.kill()
    assert until(scene.all_gone, 30.0, every=0.1)


def test_a_server_that_dies_takes_its_worker_with_it(tmp_path: Path) -> None:
    scene = Scene(tmp_path, "dies")
    try:
        assert until(scene.all_gone, 30.0, every=0.1)
    finally:
        scene.close()
