"""The kind without isolation, for those who allow it."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from kernel_sandboxes import SECONDS, kernel_settings

from prorl_celery.sandbox.base import SandboxSpec
from prorl_celery.sandbox.waiting import NeverCancelled
from prorl_celery.settings import Settings
from prorl_celery.testing.keeper import KeeperProcess


def test_a_local_sandbox_works_where_it_is_allowed_and_takes_its_folder_with_it(tmp_path):
    settings = Settings(run_dir=tmp_path, node="n3", allow_unsafe_local=True)
    with KeeperProcess(settings) as keeper, NeverCancelled() as never:
        sandbox = keeper.client.start(SandboxSpec(job_id="j", attempt=1, kind="local"), cancel=never, timeout=30)
        workdir = Path(sandbox.handle.workdir)
        assert sandbox.shell.run("pwd; x=1", timeout=10).output == f"{workdir}\n"
        assert sandbox.shell.run("exit 3", timeout=10).exit_code == 3
        assert sandbox.shell.run("sleep 100", timeout=0.3).timed_out
        assert sandbox.shell.run("trap '' INT; while :; do :; done", timeout=0.3).timed_out
        sandbox.files.write(f"{workdir}/file", b"x")
        assert (workdir / "file").read_bytes() == b"x"
        sandbox.stop()
        assert not workdir.exists()


def test_a_local_sandbox_has_kernels_and_they_end_with_it(tmp_path):
    settings = kernel_settings(tmp_path, allow_unsafe_local=True)
    with KeeperProcess(settings) as keeper, NeverCancelled() as never:
        spec = SandboxSpec(job_id="j", attempt=1, kind="local", kernel=True)
        sandbox = keeper.client.start(spec, cancel=never, timeout=SECONDS)
        told = sandbox.kernel.run("import os; print(os.getcwd(), os.getpid())", timeout=SECONDS).output.split()
        assert told[0] == sandbox.handle.workdir
        assert sandbox.kernel.run("os._exit(2)", timeout=SECONDS).kernel_ended == 2
        pid = int(sandbox.kernel.run("import os; os.getpid()", timeout=SECONDS).output)
        assert pid != int(told[1])
        sandbox.stop()
        deadline = time.monotonic() + SECONDS
        while is_alive(pid):
            assert time.monotonic() < deadline
            threading.Event().wait(0.02)


def is_alive(pid: int) -> bool:
    """Whether it runs; one that was killed may not have been waited for yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
