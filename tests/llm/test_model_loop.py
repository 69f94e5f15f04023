"""The loop thread: hundreds of calls at once, and callers that are let go."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from llm_stub import Signal, Stub

from prorl_celery.errors import BackendError, Cancelled, StageTimeout
from prorl_celery.llm.loop import ModelLoop


async def forever() -> None:
    await asyncio.Event().wait()


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_call_gives_what_the_coroutine_gives_and_raises_what_it_raises(model_loop: ModelLoop, cancel: Signal) -> None:
    async def give() -> int:
        return 5

    async def fail() -> None:
        raise BackendError("no")

    assert model_loop.call(give, cancel=cancel, timeout=10) == 5
    with pytest.raises(BackendError, match="no"):
        model_loop.call(fail, cancel=cancel, timeout=10)


def test_time_that_is_up_ends_the_coroutine_and_leaves_no_descriptor(model_loop: ModelLoop, cancel: Signal) -> None:
    ended = threading.Event()

    async def wait() -> None:
        try:
            await forever()
        finally:
            ended.set()

    with pytest.raises(StageTimeout):
        model_loop.call(wait, cancel=cancel, timeout=0.01)
    before = open_descriptors()
    for _ in range(20):
        with pytest.raises(StageTimeout):
            model_loop.call(wait, cancel=cancel, timeout=0.01)
    assert ended.is_set()
    assert open_descriptors() == before
    with pytest.raises(StageTimeout):
        model_loop.call(wait, cancel=cancel, timeout=0)


def test_a_cancel_frees_the_caller_and_closes_the_connection(model_loop: ModelLoop, cancel: Signal, stub: Stub) -> None:
    stub.answer = lambda body: forever()

    async def post() -> None:
        async with model_loop.session.post(stub.url + "/x", json={}):
            pass

    def press() -> float:
        assert stub.arrived.wait(10)
        cancel.set()
        return time.monotonic()

    with ThreadPoolExecutor(1) as pool:
        pressed = pool.submit(press)
        with pytest.raises(Cancelled):
            model_loop.call(post, cancel=cancel, timeout=60)
        assert time.monotonic() - pressed.result() < 1.0
    assert stub.aborted.wait(1.0)
    assert stub.live == 0


def test_a_signal_that_is_set_already_starts_no_call(model_loop: ModelLoop, cancel: Signal) -> None:
    cancel.set()
    with pytest.raises(Cancelled):
        model_loop.call(forever, cancel=cancel, timeout=10)


def test_stop_lets_waiting_callers_go_and_refuses_later_ones(cancel: Signal, stub: Stub) -> None:
    loop = ModelLoop()
    stub.answer = lambda body: forever()

    async def post() -> None:
        async with loop.session.post(stub.url + "/x", json={}):
            pass

    with ThreadPoolExecutor(4) as pool:
        calls = [pool.submit(loop.call, post, cancel=cancel, timeout=60) for _ in range(4)]
        assert stub.arrived.wait(10)
        loop.stop()
        for call in calls:
            with pytest.raises(BackendError):
                call.result(timeout=5)
    with pytest.raises(BackendError):
        loop.call(forever, cancel=cancel, timeout=10)
    loop.stop()
    assert stub.aborted.wait(5)


def test_three_hundred_calls_run_at_once(model_loop: ModelLoop, cancel: Signal, stub: Stub) -> None:
    together = asyncio.Event()

    async def gather() -> dict[str, int]:
        if stub.live == 300:
            together.set()
        await together.wait()
        return {}

    stub.answer = lambda body: gather()

    async def post() -> int:
        async with model_loop.session.post(stub.url + "/x", json={}) as response:
            return response.status

    with ThreadPoolExecutor(300) as pool:
        calls = [pool.submit(model_loop.call, post, cancel=cancel, timeout=30) for _ in range(300)]
        assert {call.result() for call in calls} == {200}


FORKS = """
import os
from prorl_celery.errors import InternalError
from prorl_celery.llm.loop import ModelLoop

class Never:
    fd = os.eventfd(0)
    def fileno(self): return self.fd
    def raise_if_set(self): pass

async def give(): return 5

loop = ModelLoop()

def forked():
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    try:
        os._exit(10 + loop.call(give, cancel=Never(), timeout=5))
    except InternalError:
        os._exit(1)

before = forked()
assert loop.call(give, cancel=Never(), timeout=5) == 5
print(before, forked())
loop.stop()
"""


def test_a_child_forked_after_the_first_call_is_told_and_one_forked_before_has_its_own() -> None:
    done = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "15 1\n"
