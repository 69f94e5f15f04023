"""Starts that are given up, at any moment: nothing is left of them."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from keeper_help import (
    LIMIT,
    descriptors,
    eventually,
    groups_of,
    marked_processes,
    spec,
    states_of_children,
    things_of,
)
from set_cancel import SetCancel

from prorl_celery.errors import Cancelled, SandboxError
from prorl_celery.sandbox import wire
from prorl_celery.testing.keeper import KeeperProcess

AT_ONCE = 4
ENOUGH = 60.0


def cancelled_start(keeper: KeeperProcess, after: float, **changes: Any) -> str:
    """Start a sandbox, cancel that so many seconds later, and end it if it was started all the same."""
    cancel = SetCancel()
    timer = threading.Timer(after, cancel.set)
    timer.start()
    try:
        keeper.client.start(spec(**changes), cancel=cancel, timeout=ENOUGH).stop()
    except Cancelled:
        return "cancelled"
    finally:
        timer.join()
        cancel.close()
    return "started"


def cancel_starts(keeper: KeeperProcess, count: int, never: Any, **changes: Any) -> set[str]:
    """So many, some at once, each cancelled at any moment between its beginning and a while after its usual end."""
    keeper.client.start(spec(**changes), cancel=never, timeout=ENOUGH).stop()
    began = time.monotonic()
    keeper.client.start(spec(**changes), cancel=never, timeout=ENOUGH).stop()
    took = time.monotonic() - began
    before = descriptors(keeper.process.pid)
    randomness = random.Random(count)
    moments = [randomness.uniform(0.0, AT_ONCE * took) for _ in range(count)]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        outcomes = set(
            pool.map(lambda n: cancelled_start(keeper, moments[n], job_id=f"job-{n}", **changes), range(count))
        )
    assert eventually(lambda: keeper.client.status()["live"] == 0, ENOUGH)
    assert eventually(lambda: [t for t in things_of(keeper) if t.kind == "process"] == [], ENOUGH)
    assert eventually(lambda: groups_of(keeper) == [], ENOUGH)
    assert eventually(lambda: "Z" not in states_of_children(keeper.process.pid))
    assert eventually(lambda: descriptors(keeper.process.pid) <= before)
    status = keeper.client.status()
    assert (status["room"], status["admitted"], status["stuck"], status["leaked"]) == (LIMIT, 0, 0, 0)
    return outcomes


@pytest.mark.parametrize("count", [100, pytest.param(450, marks=pytest.mark.slow)])
def test_cancels_at_random_moments_of_a_bubblewraps_start_leave_nothing(keeper, never, count):
    assert "cancelled" in cancel_starts(keeper, count, never)


@pytest.mark.parametrize("count", [12, pytest.param(50, marks=pytest.mark.slow)])
def test_cancels_at_random_moments_of_an_instances_start_leave_nothing(keeper, never, image, count):
    assert "cancelled" in cancel_starts(keeper, count, never, image=image)


def test_ends_in_the_first_moments_of_bubblewrap_leave_no_process(keeper):
    message = {"op": "start", "spec": spec().to_json(), "timeout": 30}
    for n in range(60):
        with keeper.client._connect() as channel:
            wire.send(channel, message)
            keeper.client.status(timeout=30)
            time.sleep(0.00005 * (n % 30))
    assert eventually(lambda: keeper.client.status()["live"] == 0)
    assert eventually(lambda: marked_processes(f"prorl-init-{keeper.process.pid}-") == [])
    assert eventually(lambda: "Z" not in states_of_children(keeper.process.pid))


def test_one_job_with_two_attempts_at_once_and_the_same_again_have_a_sandbox_each(keeper, never, image):
    """A job id may be used again once it was forgotten, while the sandbox of its forerunner has not ended yet."""
    for changes in ({}, {"image": image}):
        starts: list[Callable[[], Any]] = [
            lambda attempt=attempt, changes=changes: keeper.client.start(
                spec("same", attempt=attempt, **changes), cancel=never, timeout=ENOUGH
            )
            for attempt in (1, 2, 1)
        ]
        with ThreadPoolExecutor(3) as pool:
            sandboxes = [future.result() for future in [pool.submit(start) for start in starts]]
        for n, sandbox in enumerate(sandboxes):
            sandbox.files.write("/workspace/which", str(n).encode())
        assert [sandbox.files.read("/workspace/which") for sandbox in sandboxes] == [b"0", b"1", b"2"]
        sandboxes[0].stop()
        assert [sandbox.shell.run("cat which", timeout=20).output for sandbox in sandboxes[1:]] == ["1", "2"]
        for sandbox in sandboxes[1:]:
            sandbox.stop()
    assert eventually(lambda: [t for t in things_of(keeper) if t.kind == "process"] == [])


def test_a_start_without_time_is_an_error_and_leaves_nothing(keeper, never):
    with pytest.raises(SandboxError):
        keeper.client.start(spec(), cancel=never, timeout=0.0)
    assert eventually(lambda: keeper.client.status()["live"] == 0)
