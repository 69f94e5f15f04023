"""Starts that are given up, at any moment: nothing is left of them."""

from __future__ import annotations

import random
import threading
import time

import pytest
from keeper_help import LIMIT, eventually, marked_processes, spec, states_of_children
from set_cancel import SetCancel

from prorl_celery.errors import Cancelled, SandboxError
from prorl_celery.sandbox import wire
from prorl_celery.testing.keeper import KeeperProcess


def test_cancels_at_random_moments_of_a_start_leave_nothing(keeper):
    randomness = random.Random(7)
    outcomes = set()
    for n in range(60):
        cancel = SetCancel()
        timer = threading.Timer(randomness.random() * 0.06, cancel.set)
        timer.start()
        try:
            keeper.client.start(spec(f"job-{n}"), cancel=cancel, timeout=30).stop()
            outcomes.add("started")
        except Cancelled:
            outcomes.add("cancelled")
        timer.join()
        cancel.close()
    assert "cancelled" in outcomes
    assert eventually(lambda: keeper.client.status()["live"] == 0)
    assert keeper.client.status()["room"] == LIMIT


def left_of(keeper: KeeperProcess) -> list[int]:
    """Processes that carry the name of this keeper's sandboxes."""
    return marked_processes(f"prorl-init-{keeper.process.pid}-")


def test_ends_in_the_first_moments_of_bubblewrap_leave_no_process(keeper):
    message = {"op": "start", "spec": spec().to_json(), "timeout": 30}
    for n in range(60):
        with keeper.client._connect() as channel:
            wire.send(channel, message)
            keeper.client.status(timeout=30)
            time.sleep(0.00005 * (n % 30))
    assert eventually(lambda: keeper.client.status()["live"] == 0)
    assert eventually(lambda: left_of(keeper) == [], 5.0)
    assert eventually(lambda: "Z" not in states_of_children(keeper.process.pid), 5.0)


def test_a_start_that_hangs_ends_at_its_time_out_and_the_keeper_answers_meanwhile(keeper, never):
    with keeper.client._connect() as channel:
        wire.send(channel, {"op": "start", "spec": spec(job_id="hang").to_json(), "timeout": 30})
        assert eventually(lambda: keeper.client.status()["live"] == 1)
        # This client never reads what the sandbox says nor keeps it: the same as one whose shell does not come up.
        started = time.monotonic()
        keeper.client.status()
        assert time.monotonic() - started < 2
    assert eventually(lambda: keeper.client.status()["live"] == 0)
    with pytest.raises(SandboxError):
        keeper.client.start(spec(), cancel=never, timeout=0.0)
    assert eventually(lambda: keeper.client.status()["live"] == 0)
