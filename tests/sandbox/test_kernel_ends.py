"""How kernels end, and what follows: time-outs, deaths, cancels, restarts; in both kinds of sandbox."""

from __future__ import annotations

import os
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from kernel_sandboxes import SECONDS, kernel_settings, skeleton_image
from set_cancel import SetCancel

from prorl_celery.errors import Cancelled, SandboxError
from prorl_celery.sandbox.base import SandboxSpec
from prorl_celery.sandbox.kernel import client
from prorl_celery.sandbox.session import LiveSandbox
from prorl_celery.sandbox.singularity import command
from prorl_celery.sandbox.waiting import NeverCancelled
from prorl_celery.settings import Settings
from prorl_celery.testing.keeper import KeeperProcess

KILLED = 128 + signal.SIGKILL
LONG = 600.0
"""A time-out that is not to be reached."""

needs_singularity = pytest.mark.skipif(
    command() is None,
    reason="no singularity or apptainer on the PATH (deploy/images/install_apptainer.sh installs it on Debian 12)",
)


@pytest.fixture(autouse=True)
def _less_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "INTERRUPT_SECONDS", 1.0)


@pytest.fixture(scope="module")
def sandbox_settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return kernel_settings(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def image() -> Iterator[str]:
    with skeleton_image() as image:
        yield str(image)


@pytest.fixture(scope="module")
def boxes(keeper: KeeperProcess, request: pytest.FixtureRequest) -> Iterator[Callable[[str], LiveSandbox]]:
    """One sandbox of each kind, for tests after which its kernel or another is at work again."""
    made: dict[str, LiveSandbox] = {}
    with NeverCancelled() as never:

        def box(kind: str) -> LiveSandbox:
            if kind not in made:
                image = request.getfixturevalue("image") if kind == "singularity" else None
                spec = SandboxSpec(job_id="box", attempt=1, kernel=True, image=image)
                made[kind] = keeper.client.start(spec, cancel=never, timeout=SECONDS)
                assert made[kind].handle.kind == kind
            return made[kind]

        yield box
        for sandbox in made.values():
            sandbox.stop()


@pytest.fixture(params=["bubblewrap", pytest.param("singularity", marks=needs_singularity)])
def live(request: pytest.FixtureRequest, boxes: Callable[[str], LiveSandbox]) -> LiveSandbox:
    """A sandbox of either kind, with a kernel that knows a name."""
    sandbox = boxes(request.param)
    assert sandbox.kernel.run("kept = 1; kept", timeout=SECONDS).output == "1\n"
    return sandbox


@pytest.fixture
def sandbox(boxes: Callable[[str], LiveSandbox]) -> LiveSandbox:
    sandbox = boxes("bubblewrap")
    assert sandbox.kernel.run("1", timeout=SECONDS).ok
    return sandbox


def test_a_start_is_done_when_the_kernel_is_up(start: Callable[..., LiveSandbox]):
    fresh = start(kernel=True)
    assert fresh.kernel_life.fileno() >= 0
    assert not fresh.kernel_life.has_ended
    assert fresh.kernel.run("import time; time.perf_counter()", timeout=SECONDS).kernel_lost is None


def test_a_cell_past_its_time_out_is_interrupted_and_names_stay(live: LiveSandbox):
    result = live.kernel.run("print('begun', flush=True)\nimport time; time.sleep(600)", timeout=0.5)
    assert (result.timed_out, result.ok, result.kernel_ended) == (True, False, None)
    assert result.output.startswith("begun\n")
    assert "KeyboardInterrupt" in result.output
    assert live.kernel.run("kept", timeout=SECONDS).output == "1\n"


def test_a_command_that_a_cell_waits_for_is_interrupted_with_it(live: LiveSandbox):
    assert live.kernel.run("!echo begun; sleep 600", timeout=0.5).timed_out
    assert live.shell.run("pgrep -x sleep || echo none", timeout=SECONDS).output == "none\n"
    assert live.kernel.run("kept", timeout=SECONDS).output == "1\n"


def test_a_cell_that_swallows_the_interrupt_costs_its_kernel(live: LiveSandbox):
    code = "import time\nwhile True:\n    try: time.sleep(600)\n    except KeyboardInterrupt: print('no', flush=True)"
    result = live.kernel.run(code, timeout=0.5)
    assert (result.timed_out, result.kernel_ended) == (True, KILLED)
    assert result.output == "no\n"
    after = live.kernel.run("'kept' in dir()", timeout=SECONDS)
    assert (after.output, after.kernel_lost) == ("False\n", None)


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("import os; os._exit(3)", 3),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", KILLED),
        ("import ctypes; ctypes.string_at(0)", 128 + signal.SIGSEGV),
    ],
)
def test_a_kernel_that_dies_is_noticed_at_once_and_another_stands_in_its_place(
    sandbox: LiveSandbox, code: str, status: int
):
    result = sandbox.kernel.run(code, timeout=LONG)
    assert (result.kernel_ended, result.ok, result.timed_out) == (status, False, False)
    assert result.duration_s < SECONDS
    after = sandbox.kernel.run("6 * 7", timeout=SECONDS)
    assert (after.output, after.ok, after.kernel_lost) == ("42\n", True, None)


def test_a_death_in_singularity_is_noticed_too(live: LiveSandbox):
    assert live.kernel.run("import os; os._exit(5)", timeout=LONG).kernel_ended == 5
    assert live.kernel.run("2", timeout=SECONDS).output == "2\n"


def test_a_child_that_lives_on_does_not_hide_the_death(sandbox: LiveSandbox):
    code = "import os, time\nif os.fork() == 0:\n    time.sleep(600)\nos._exit(7)"
    result = sandbox.kernel.run(code, timeout=LONG)
    assert result.kernel_ended == 7
    assert sandbox.kernel.run("1", timeout=SECONDS).ok


def test_exit_ends_the_kernel_and_says_so(sandbox: LiveSandbox):
    sandbox.kernel.run("x = 1", timeout=SECONDS)
    result = sandbox.kernel.run("print('bye'); exit()", timeout=LONG)
    assert (result.kernel_ended, result.output) == (0, "bye\n")
    assert "NameError" in sandbox.kernel.run("x", timeout=SECONDS).output


def test_a_kernel_that_died_between_two_cells_is_told_with_the_second(live: LiveSandbox):
    kill_kernel(live)
    result = live.kernel.run("'kept' in dir()", timeout=SECONDS)
    assert (result.output, result.kernel_lost, result.kernel_ended) == ("False\n", KILLED, None)
    assert live.kernel.run("1", timeout=SECONDS).kernel_lost is None


def test_all_that_an_agent_can_kill_comes_back(live: LiveSandbox):
    live.shell.run("kill -9 -1", timeout=SECONDS)
    results = [live.kernel.run("'kept' in dir()", timeout=SECONDS) for _ in range(2)]
    assert KILLED in (results[0].kernel_lost, results[0].kernel_ended)  # it may still have been dying
    assert (results[1].output, results[1].kernel_lost, results[1].kernel_ended) == ("False\n", None, None)


def test_a_kernel_that_died_before_anybody_attached_is_told_too(keeper: KeeperProcess, sandbox: LiveSandbox):
    kill_kernel(sandbox)
    with NeverCancelled() as never:
        second = keeper.client.attach(sandbox.handle, cancel=never)
        try:
            assert second.kernel.run("1", timeout=SECONDS).kernel_lost == KILLED
        finally:
            second.close()


def test_who_attaches_finds_the_same_kernel(keeper: KeeperProcess, live: LiveSandbox):
    with NeverCancelled() as never:
        second = keeper.client.attach(live.handle, cancel=never)
        try:
            assert second.kernel.run("kept", timeout=SECONDS).output == "1\n"
        finally:
            second.close()
    assert live.kernel.run("kept", timeout=SECONDS).output == "1\n"


def test_a_restart_gives_a_fresh_kernel(live: LiveSandbox):
    live.kernel.restart()
    result = live.kernel.run("'kept' in dir()", timeout=SECONDS)
    assert (result.output, result.kernel_lost) == ("False\n", None)


@pytest.mark.parametrize("kind", ["bubblewrap", pytest.param("singularity", marks=needs_singularity)])
def test_a_cancel_is_raised_in_the_middle_of_a_cell(
    kind: str, start: Callable[..., LiveSandbox], cancel: SetCancel, request: pytest.FixtureRequest
):
    kernel = start(kernel=True, image=request.getfixturevalue("image") if kind == "singularity" else None).kernel
    timer = threading.Timer(0.3, cancel.set)
    timer.start()
    began = time.monotonic()
    with pytest.raises(Cancelled):
        kernel.run("import time; time.sleep(600)", timeout=LONG)
    assert time.monotonic() - began < SECONDS
    timer.join()
    with pytest.raises(Cancelled):
        kernel.run("1", timeout=SECONDS)


def test_the_agents_modules_do_not_reach_into_the_start_of_a_kernel(sandbox: LiveSandbox):
    for name in ("random", "zmq", "signal", "__future__"):
        sandbox.files.write(f"/workspace/{name}.py", b"raise SystemExit('not yours')\n")
    sandbox.kernel.restart()
    assert sandbox.kernel.run("1", timeout=SECONDS).output == "1\n"
    sandbox.shell.run("rm /workspace/*.py", timeout=SECONDS)


def test_a_start_up_file_of_the_agents_keeps_no_kernel_from_starting(sandbox: LiveSandbox):
    folder = "/home/agent/.ipython/profile_default"
    sandbox.files.write(f"{folder}/startup/00.py", b"import os; os._exit(1)\n")
    sandbox.files.write(f"{folder}/ipython_kernel_config.py", b"import os; os._exit(1)\n")
    sandbox.kernel.restart()
    assert sandbox.kernel.run("1", timeout=SECONDS).output == "1\n"
    sandbox.shell.run(f"rm -r {folder}", timeout=SECONDS)


def test_an_agent_that_spoils_its_python_is_told_and_may_mend_it(sandbox: LiveSandbox):
    """It is no fault of the machine's that ends the job without a reward."""
    packages = sandbox.kernel.run("import site; print(site.getusersitepackages())", timeout=SECONDS).output.strip()
    sandbox.files.write(f"{packages}/usercustomize.py", b"import os; os._exit(1)\n")
    assert sandbox.kernel.run("import os; os._exit(0)", timeout=LONG).kernel_ended == 0
    result = sandbox.kernel.run("1", timeout=SECONDS)
    assert (result.ok, result.output) == (False, "")
    assert "ended as" in str(result.no_kernel)
    sandbox.shell.run(f"rm {packages}/usercustomize.py", timeout=SECONDS)
    assert sandbox.kernel.run("1", timeout=SECONDS).output == "1\n"


def test_a_kernel_that_answers_nothing_more_is_ended_at_the_time_out(sandbox: LiveSandbox):
    """Whatever a cell does to the channels costs its kernel and nothing else."""
    code = "import os\nfor fd in range(3, 256):\n    try: os.close(fd)\n    except OSError: pass"
    result = sandbox.kernel.run(code, timeout=2.0)
    assert result.kernel_ended is not None
    assert sandbox.kernel.run("1", timeout=SECONDS).output == "1\n"


def test_a_message_that_is_too_long_is_not_taken_in(sandbox: LiveSandbox, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(client, "IDLE_SECONDS", 1.0)
    sandbox.kernel.run("kept = 1", timeout=SECONDS)
    code = "get_ipython().kernel.iopub_thread.send_multipart([b'x' * 200_000_000]); 'done'"
    before = _own_memory()
    result = sandbox.kernel.run(code, timeout=SECONDS)
    assert _own_memory() - before < 50 << 20
    assert result.ok
    assert result.output == "[some output was lost]\n"
    assert sandbox.kernel.run("kept", timeout=SECONDS).output == "1\n"


def test_a_message_of_endless_short_parts_is_not_taken_in(sandbox: LiveSandbox, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(client, "IDLE_SECONDS", 1.0)
    sandbox.kernel.run("kept = 1", timeout=SECONDS)
    code = "get_ipython().kernel.iopub_thread.send_multipart([b'x' * 1_000_000] * 200); 'done'"
    before = _own_memory()
    result = sandbox.kernel.run(code, timeout=SECONDS)
    assert _own_memory() - before < 50 << 20
    assert result.output == "[some output was lost]\n"
    assert sandbox.kernel.run("kept", timeout=SECONDS).output == "1\n"


def test_a_sandbox_without_a_kernel_says_why(start: Callable[..., LiveSandbox]):
    with pytest.raises(SandboxError, match="needs_kernel"):
        start().kernel


def test_no_socket_of_a_kernel_has_a_name(keeper: KeeperProcess, live: LiveSandbox, sandbox_settings: Settings):
    found = live.shell.run("find / -type s 2>/dev/null; grep / /proc/net/unix", timeout=SECONDS).output
    assert found == ""
    folder = sandbox_settings.run_dir / sandbox_settings.node
    assert [path.name for path in folder.iterdir() if path.is_socket()] == ["keeper.sock"]


def test_a_keeper_lets_go_of_the_sockets_with_the_sandbox(keeper: KeeperProcess, start: Callable[..., LiveSandbox]):
    def held() -> int:
        names = []
        for path in Path(f"/proc/{keeper.process.pid}/fd").iterdir():
            with suppress(OSError):  # closed meanwhile
                names.append(path.readlink().name)
        return names.count("kernel (deleted)")

    before = held()
    sandboxes = [start(kernel=True) for _ in range(2)]
    assert held() == before + 3 * len(sandboxes)
    for sandbox in sandboxes:
        sandbox.stop()
    assert held() == before


def test_a_worker_out_of_descriptors_is_told_so_and_loses_none(keeper: KeeperProcess, sandbox: LiveSandbox):
    sandbox.kernel.run("1", timeout=SECONDS)
    before = list(Path("/proc/self/fd").iterdir())
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with NeverCancelled() as never:
        for free in (1, 3, 5):
            taken = [os.dup(0) for _ in range(50)]
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(taken) + 1, limits[1]))
            for descriptor in taken[-free:]:
                os.close(descriptor)
            try:
                with pytest.raises(SandboxError):
                    keeper.client.attach(sandbox.handle, cancel=never)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, limits)
                for descriptor in taken[:-free]:
                    os.close(descriptor)
    assert len(list(Path("/proc/self/fd").iterdir())) == len(before)
    assert sandbox.kernel.run("2", timeout=SECONDS).output == "2\n"


def kill_kernel(sandbox: LiveSandbox) -> None:
    """As the agent could, from its shell; returns when it is gone."""
    pid = sandbox.kernel.run("import os; os.getpid()", timeout=SECONDS).output.strip()
    command = f"kill -9 {pid}; while [[ -e /proc/{pid} ]]; do sleep 0.01; done"
    assert sandbox.shell.run(command, timeout=SECONDS).exit_code == 0


def _own_memory() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
