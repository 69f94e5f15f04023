"""Children for code that may block: they answer, they die when told, they leave nothing."""

import contextlib
import faulthandler
import os
import resource
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from signal import SIGKILL, SIGSEGV, SIGTERM, Signals

import pytest

from prorl_celery.errors import (
    Cancelled,
    ChildLost,
    HandlerError,
    InternalError,
    LostWorker,
    NodeExhausted,
    StageTimeout,
    Stopping,
)
from prorl_celery.node.janitor.counter import LeakCounter
from prorl_celery.node.janitor.removal import clear_left
from prorl_celery.settings import Settings
from tasks.nursery import Nursery
from tasks.signals import JobSignal


def double(value: int) -> int:
    return value * 2


def explode(value: object) -> None:
    raise ValueError(f"no {value}")


def spin(_: object) -> None:
    while True:
        pass


def leave_a_daemon(path: str) -> int:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    return child.pid


def leave_a_daemon_of_its_own(path: str) -> int:
    """A process that nobody waits for, in a session of its own."""
    program = (
        "import os, sys, time\nif os.fork(): os._exit(0)\nos.setsid(); print(os.getpid(), flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        return int(child.stdout.readline())


def spin_beside_a_daemon(path: str) -> None:
    Path(path).write_text(str(leave_a_daemon_of_its_own(path)))
    spin(None)


def not_json(_: object) -> object:
    return {1, 2}


def die(_: object) -> None:
    os._exit(3)


def end_by(number: int) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    faulthandler.disable()  # no report of what is meant to happen
    os.kill(os.getpid(), number)
    time.sleep(60)


def echo(value: object) -> object:
    return value


@pytest.fixture
def nursery() -> Iterator[Nursery]:
    made = Nursery()
    yield made
    made.close()


@pytest.fixture
def signal() -> Iterator[JobSignal]:
    made = JobSignal()
    yield made
    made.close()


def test_a_child_answers_with_json(nursery: Nursery, signal: JobSignal) -> None:
    assert nursery.call(double, 21, timeout=30, cancel=signal) == 42


def test_a_large_argument_and_a_large_reply_pass(nursery: Nursery, signal: JobSignal) -> None:
    text = "x" * 3_000_000
    assert nursery.call(echo, text, timeout=30, cancel=signal) == text


def test_what_the_function_raises_is_a_handler_error(nursery: Nursery, signal: JobSignal) -> None:
    with pytest.raises(HandlerError, match="ValueError: no luck"):
        nursery.call(explode, "luck", timeout=30, cancel=signal)


def test_a_reply_that_is_not_json_is_a_handler_error(nursery: Nursery, signal: JobSignal) -> None:
    with pytest.raises(HandlerError, match="TypeError"):
        nursery.call(not_json, None, timeout=30, cancel=signal)


def test_a_child_that_dies_is_a_handler_error(nursery: Nursery, signal: JobSignal) -> None:
    with pytest.raises(HandlerError, match="died before it answered"):
        nursery.call(die, None, timeout=30, cancel=signal)


@pytest.mark.parametrize("number", [SIGKILL, SIGTERM])
def test_a_child_that_somebody_killed_may_be_tried_again(nursery: Nursery, signal: JobSignal, number: int) -> None:
    with pytest.raises(ChildLost, match=Signals(number).name) as caught:
        nursery.call(end_by, number, timeout=30, cancel=signal)
    assert caught.value.retryable
    assert nursery.call(double, 21, timeout=30, cancel=signal) == 42


def test_a_child_that_crashed_is_the_functions_fault(nursery: Nursery, signal: JobSignal) -> None:
    with pytest.raises(HandlerError, match=f"signal {int(SIGSEGV)}"):
        nursery.call(end_by, SIGSEGV, timeout=30, cancel=signal)


def test_a_nursery_that_dies_is_told_from_a_child_that_does(signal: JobSignal, tmp_path: Path) -> None:
    path = tmp_path / "pid"
    nursery = Nursery()
    with ThreadPoolExecutor(1) as pool:
        going = pool.submit(nursery.call, spin_beside_a_daemon, str(path), timeout=60, cancel=signal)
        assert _comes_true_within(30.0, lambda: path.exists() and path.read_text() != "")
        assert not _readable(nursery.fileno(), 0)
        os.kill(nursery._pid, SIGKILL)
        with pytest.raises(LostWorker):
            going.result(30)
    assert _readable(nursery.fileno(), 10)
    with pytest.raises(Stopping):
        nursery.call(double, 1, timeout=30, cancel=signal)
    nursery.close()
    daemon = int(path.read_text())
    with contextlib.suppress(ProcessLookupError):
        os.kill(daemon, SIGKILL)


def test_a_process_without_descriptors_says_so(nursery: Nursery, signal: JobSignal) -> None:
    soft, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, most))
    try:
        with pytest.raises(NodeExhausted) as caught:
            nursery.call(double, 1, timeout=30, cancel=signal)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, most))
    assert caught.value.retryable
    assert nursery.call(double, 1, timeout=30, cancel=signal) == 2


def test_a_local_function_is_refused(nursery: Nursery, signal: JobSignal) -> None:
    with pytest.raises(HandlerError, match="not a module-level function"):
        nursery.call(lambda value: value, 1, timeout=30, cancel=signal)


def test_an_endless_loop_ends_at_its_time_out_and_the_child_is_gone(nursery: Nursery, signal: JobSignal) -> None:
    with pytest.raises(StageTimeout, match=r"within 0\.3 s"):
        nursery.call(spin, None, timeout=0.3, cancel=signal)
    assert _comes_true_within(5.0, lambda: _children_of(nursery._pid) == [])


def test_a_cancel_ends_a_child_at_once(nursery: Nursery, signal: JobSignal) -> None:
    threading.Timer(0.2, signal.set, [Cancelled("enough")]).start()
    with pytest.raises(Cancelled):
        nursery.call(spin, None, timeout=60, cancel=signal)
    assert _comes_true_within(5.0, lambda: _children_of(nursery._pid) == [])


def test_a_grandchild_does_not_outlive_the_call(nursery: Nursery, signal: JobSignal) -> None:
    pid = nursery.call(leave_a_daemon, "", timeout=30, cancel=signal)
    assert _comes_true_within(5.0, lambda: not _alive(pid))


def test_nothing_that_a_call_has_started_outlives_it(nursery: Nursery, signal: JobSignal, tmp_path: Path) -> None:
    pid = nursery.call(leave_a_daemon_of_its_own, "", timeout=30, cancel=signal)
    assert _comes_true_within(5.0, lambda: not _alive(pid))
    with pytest.raises(StageTimeout):
        nursery.call(spin_beside_a_daemon, str(tmp_path / "pid"), timeout=3, cancel=signal)
    assert _comes_true_within(5.0, lambda: not _alive(int((tmp_path / "pid").read_text())))


def test_the_daemon_of_one_call_is_left_alone_when_another_ends(
    nursery: Nursery, signal: JobSignal, tmp_path: Path
) -> None:
    path = tmp_path / "pid"
    other = JobSignal()
    with ThreadPoolExecutor(1) as pool, contextlib.closing(other):
        going = pool.submit(nursery.call, spin_beside_a_daemon, str(path), timeout=60, cancel=other)
        assert _comes_true_within(30.0, lambda: path.exists() and path.read_text() != "")
        nursery.call(double, 1, timeout=30, cancel=signal)
        daemon = int(path.read_text())
        assert Path(f"/proc/{daemon}").exists()
        other.set(Cancelled("enough"))
        with pytest.raises(Cancelled):
            going.result(30)
        assert _comes_true_within(5.0, lambda: not _alive(daemon))


def test_a_nursery_that_is_closed_ends_what_is_under_way(signal: JobSignal, tmp_path: Path) -> None:
    path = tmp_path / "pid"
    nursery = Nursery()
    with ThreadPoolExecutor(1) as pool:
        going = pool.submit(nursery.call, spin_beside_a_daemon, str(path), timeout=60, cancel=signal)
        assert _comes_true_within(30.0, lambda: path.exists() and path.read_text() != "")
        nursery.close()
        with pytest.raises((ChildLost, LostWorker)):
            going.result(30)
    assert _comes_true_within(5.0, lambda: not _alive(int(path.read_text())))


def test_what_a_call_has_started_when_everybody_was_killed_the_janitor_finds(tmp_path: Path) -> None:
    program = (
        "import sys; from test_nursery import spin_beside_a_daemon\n"
        "from tasks.nursery import Nursery; from tasks.signals import JobSignal\n"
        "Nursery().call(spin_beside_a_daemon, sys.argv[1], timeout=600, cancel=JobSignal())"
    )
    path = tmp_path / "pid"
    here = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    with subprocess.Popen([sys.executable, "-c", program, str(path)], env={**os.environ, "PYTHONPATH": here}) as stage:
        assert _comes_true_within(30.0, lambda: path.exists() and path.read_text() != "")
        daemon = int(path.read_text())
        stage.kill()
    settings = Settings(run_dir=tmp_path, node="n1")
    assert _comes_true_within(30.0, lambda: clear_left(settings) is not None and not _alive(daemon))
    assert LeakCounter(settings).value == 0, "it was no sandbox"


def test_many_calls_from_many_threads_get_their_own_answers(nursery: Nursery, signal: JobSignal) -> None:
    answers: dict[int, int] = {}

    def ask(number: int) -> None:
        answers[number] = nursery.call(double, number, timeout=60, cancel=signal)

    threads = [threading.Thread(target=ask, args=[n]) for n in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert answers == {n: 2 * n for n in range(40)}


def _children_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def _readable(descriptor: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def _comes_true_within(seconds: float, gone: object) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if gone():  # type: ignore[operator]
            return True
        threading.Event().wait(0.02)
    return False


@pytest.mark.parametrize("room", [0, 1, 2, 3, 4])
def test_a_nursery_that_ran_out_of_descriptors_serves_again_when_it_has_some(
    nursery: Nursery, signal: JobSignal, room: int
) -> None:
    assert nursery.call(double, 1, timeout=30, cancel=signal) == 2
    taken = {int(fd.name) for fd in Path(f"/proc/{nursery._pid}/fd").iterdir()}
    free = min(set(range(len(taken) + 1)) - taken)
    _, most = resource.prlimit(nursery._pid, resource.RLIMIT_NOFILE)
    resource.prlimit(nursery._pid, resource.RLIMIT_NOFILE, (free + room, most))
    with contextlib.suppress(InternalError):
        nursery.call(double, 1, timeout=30, cancel=signal)
    resource.prlimit(nursery._pid, resource.RLIMIT_NOFILE, (most, most))
    assert nursery.call(double, 21, timeout=30, cancel=signal) == 42
