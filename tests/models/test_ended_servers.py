"""A real vLLM leaves nothing behind, whether it is stopped or its owner is killed while it starts.

Slow: `make test-vllm`, with `VLLM_TEST_DIR`. In a file before the other real tests, so that one server runs at a time.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from prorl_celery.node.pause import until
from prorl_celery.node.vllm.install import Prepared
from prorl_celery.node.vllm.process_group import members
from prorl_celery.node.vllm.server import VllmServer

pytestmark = pytest.mark.slow

OWNER = """
import sys, signal
from pathlib import Path
from prorl_celery.node.vllm.install import places
from prorl_celery.node.vllm.server import VllmServer
server = VllmServer(places("smollm2", Path(sys.argv[1])), ready_seconds=float(sys.argv[2]))
server._wait = lambda process: None
with server:
    print(server.pid, server.spec.scratch, flush=True)
    signal.pause()
"""


@pytest.mark.parametrize("after", [4.0, 14.0, 24.0])
def test_a_server_whose_owner_is_killed_while_it_starts_leaves_nothing(prepared: Prepared, after: float) -> None:
    data_dir = prepared.model.parent.parent
    owner = subprocess.Popen(
        [sys.executable, "-P", "-c", OWNER, str(data_dir), "300"],
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": str(Path(__file__).parents[2]), "PATH": "/usr/bin:/bin"},
    )
    assert owner.stdout is not None
    with owner.stdout:
        pid, scratch = owner.stdout.readline().split()
    until(lambda: False, after, every=after)
    assert members(int(pid))
    owner.send_signal(signal.SIGKILL)
    owner.wait(10)
    assert until(lambda: not members(int(pid)) and not Path(scratch).exists(), 30.0, every=0.2)


def test_a_stopped_server_leaves_nothing(prepared: Prepared, tmp_path: Path) -> None:
    with VllmServer(prepared, log=tmp_path / "log", ready_seconds=300.0) as server:
        group = server.pid
        assert len(members(group)) >= 4
        shared = {path.name for path in Path("/dev/shm").glob("psm_*")}
    assert members(group) == []
    assert not server.spec.scratch.exists()
    assert len({path.name for path in Path("/dev/shm").glob("psm_*")} & shared) < len(shared)
