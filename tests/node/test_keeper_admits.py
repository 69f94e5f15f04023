"""Places among a node's sandboxes: so many and no more, in line, never lost."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest
from keeper_help import LIMIT, eventually, spec
from set_cancel import SetCancel

from prorl_celery.errors import Cancelled
from prorl_celery.sandbox.waiting import NeverCancelled
from prorl_celery.testing.keeper import KeeperProcess


def test_admissions_are_limited_given_in_order_and_come_back(keeper, never):
    held = [keeper.client.admit(f"job-{n}", cancel=never, timeout=5) for n in range(LIMIT)]
    assert all(held)
    assert keeper.client.status()["room"] == 0
    assert keeper.client.admit("late", cancel=never, timeout=0.2) is None
    order: list[str] = []
    threads = []
    for name in ("first", "second"):
        threads.append(threading.Thread(target=wait_for_a_place, args=(keeper, name, order)))
        waiting = len(threads)
        threads[-1].start()
        assert eventually(lambda waiting=waiting: keeper.client.status()["waiting"] == waiting)
    held[0].release()
    assert eventually(lambda: order == ["first"])
    held[1].release()
    assert eventually(lambda: order == ["first", "second"])
    for thread in threads:
        thread.join(timeout=10)
    for admission in held:
        admission.release()
    assert eventually(lambda: keeper.client.status()["admitted"] == 0)


def wait_for_a_place(keeper: KeeperProcess, name: str, order: list[str]) -> None:
    with NeverCancelled() as never:
        admission = keeper.client.admit(name, cancel=never, timeout=30)
        assert admission is not None
        order.append(name)
        assert eventually(lambda: len(order) == 2)
        admission.release()


def test_an_admission_passes_to_its_sandbox_and_back_when_that_ends(keeper, never):
    admission = keeper.client.admit("job", cancel=never, timeout=5)
    sandbox = keeper.client.start(spec(), cancel=never, timeout=30, admission=admission)
    status = keeper.client.status()
    assert (status["admitted"], status["rollout_live"], status["room"]) == (0, 1, LIMIT - 1)
    admission.release()
    assert keeper.client.status()["room"] == LIMIT - 1
    evaluation = keeper.client.start(spec(purpose="eval"), cancel=never, timeout=30)
    assert keeper.client.status()["room"] == LIMIT - 1, "eval sandboxes do not count"
    sandbox.stop()
    assert keeper.client.status()["room"] == LIMIT
    evaluation.stop()


def test_an_admission_is_free_again_when_its_holder_is_killed(keeper, never):
    code = """
import signal
from prorl_celery.sandbox.client import KeeperClient
from prorl_celery.sandbox.waiting import NeverCancelled
from prorl_celery.settings import Settings
admissions = [KeeperClient(Settings.from_env()).admit("w", cancel=NeverCancelled(), timeout=5) for _ in range(4)]
print("held", flush=True)
signal.pause()
"""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PRORL_")}
    with subprocess.Popen(
        [sys.executable, "-c", code], env={**environment, **keeper.settings.to_env()}, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout.readline() == "held\n"
        assert keeper.client.status()["room"] == 0
        holder.kill()
    admission = keeper.client.admit("job", cancel=never, timeout=10)
    assert admission is not None
    admission.release()


def test_a_cancel_ends_the_wait_for_a_place(keeper, never):
    held = [keeper.client.admit(f"job-{n}", cancel=never, timeout=5) for n in range(LIMIT)]
    cancel = SetCancel()
    threading.Timer(0.2, cancel.set).start()
    with pytest.raises(Cancelled):
        keeper.client.admit("late", cancel=cancel, timeout=60)
    assert eventually(lambda: keeper.client.status()["waiting"] == 0)
    cancel.close()
    for admission in held:
        admission.release()
