"""A kernel whose holder is killed with a cell under way, and taken over. Real kernels in both kinds of sandbox."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from holders import Steps, Succession, after
from kernel_sandboxes import SECONDS, kernel_settings, skeleton_image
from sandbox_images import needs_singularity

from prorl_celery.errors import FenceLost
from prorl_celery.sandbox.base import RecoveredCell, SandboxSpec
from prorl_celery.sandbox.kernel import client, takeover
from prorl_celery.sandbox.session import LiveSandbox
from prorl_celery.sandbox.waiting import NeverCancelled
from prorl_celery.settings import Settings
from prorl_celery.testing.keeper import KeeperProcess

KINDS = ("bubblewrap", pytest.param("singularity", marks=needs_singularity))
RUNS = "/workspace/runs"
CELLS = (
    "open({runs!r}, 'a').write('{name}\\n'); print('out')",
    "import time; open({runs!r}, 'a').write('{name}\\n'); print('first'); time.sleep(0.05); print('out')",
    "open({runs!r}, 'a').write('{name}\\n'); print('x' * 100_000); 'out'",
    "open({runs!r}, 'a').write('{name}\\n'); print('out'); 1 / 0",
    "open({runs!r}, 'a').write('{name}\\n'); ''.join(['y' * 300_000]); print('out') # {long}",
)


@pytest.fixture(scope="module")
def sandbox_settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return kernel_settings(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module", params=KINDS)
def succession(keeper: KeeperProcess, request: pytest.FixtureRequest) -> Iterator[Succession]:
    """Of a sandbox whose kernel has a variable that is to outlive its holders."""
    with NeverCancelled() as never, skeleton_image() as image:
        spec = SandboxSpec(
            job_id="job", attempt=1, kernel=True, image=str(image) if request.param == "singularity" else None
        )
        with closing(keeper.client.start(spec, cancel=never, timeout=SECONDS)) as sandbox:
            sandbox.kernel.run(f"kept = 'yes'; open({RUNS!r}, 'w').close()", timeout=SECONDS)
        yield Succession(keeper, sandbox.handle)
        keeper.client.stop(sandbox.handle.sandbox_id)


def work(name: str, code: str, timeout: float = SECONDS) -> Callable[[LiveSandbox], object]:
    """What a holder does: one cell under a mark."""

    def run(sandbox: LiveSandbox) -> None:
        kernel = sandbox.kernel
        sandbox.mark(name)
        kernel.run(code, timeout=timeout)

    return run


def killed(succession: Succession, name: str, code: str, seconds: float, timeout: float = SECONDS) -> None:
    """A holder that is killed so long after it has begun to work."""
    holder = succession.holder(work(name, code, timeout))
    holder.await_ready()
    after(seconds)
    holder.kill()


def check(succession: Succession, name: str, code: str) -> bool | None:
    """Take over, and compare what is said of the cell with what it did; whether it is said to have begun."""
    with succession.taken_over() as sandbox:
        marked = sandbox.marked
        told = sandbox.kernel.recover(timeout=SECONDS)
        assert sandbox.kernel.recover(timeout=SECONDS) == told
        seen = sandbox.kernel.run(f"print(open({RUNS!r}).read().split().count({name!r}), kept)", timeout=SECONDS)
    times, kept = seen.output.split()
    assert kept == "yes"
    if marked != name:
        assert times == "0"
        return False
    assert int(times) in {None: (0, 1), False: (0,), True: (1,)}[told.begun], told
    if told.begun:
        assert (told.ended, told.complete, told.ok) == (True, True, "1 / 0" not in code)
        assert "out" in told.output
    return told.begun


@pytest.mark.slow
def test_a_cell_whose_holder_is_killed_at_any_moment_was_run_once_or_never_as_is_said(succession):
    chance = random.Random(1)
    begun = set()
    for number in range(40):
        name = f"n{number}"
        code = chance.choice(CELLS).format(runs=RUNS, name=name, long="l" * 400_000)
        killed(succession, name, code, chance.random() * chance.choice((0.01, 0.1)))
        begun.add(check(succession, name, code))
    assert True in begun


def test_a_cell_whose_holder_is_killed_at_any_step_was_run_once_or_never_as_is_said(succession):
    begun = []
    for step in itertools.count(1):
        name = f"s{step}"
        code = CELLS[1].format(runs=RUNS, name=name)
        end = succession.holder(work(name, code), Steps(step)).await_end()
        begun.append(check(succession, name, code))
        if end is not None:
            break
    assert set(begun) == {False, True}
    assert begun[-1]


def told_of(succession: Succession, timeout: float = SECONDS) -> RecoveredCell:
    with succession.taken_over() as sandbox:
        told = sandbox.kernel.recover(timeout=timeout)
        assert sandbox.kernel.run("print(6 * 7)", timeout=SECONDS).output == "42\n"
    return told


def test_all_that_a_cell_showed_is_told_also_what_came_while_nobody_listened(succession):
    killed(succession, "slow", "import time\nfor i in range(8): print(i); time.sleep(0.1)\n'end'", 0.3)
    told = told_of(succession)
    assert told.output == "".join(f"{number}\n" for number in range(8)) + "'end'\n"
    assert (told.begun, told.ended, told.ok, told.complete) == (True, True, True, True)


def test_of_much_that_a_cell_showed_the_start_and_the_end_are_told(succession):
    killed(succession, "much", "import time\nfor i in range(200_000): print(i)\ntime.sleep(0.5)", 0.2)
    told = told_of(succession)
    assert told.output.startswith("0\n1\n2\n")
    assert told.output.endswith("\n199999\n")
    assert told.omitted_bytes > 1_000_000


def test_a_cell_that_had_ended_is_told_as_it_was(succession):
    with succession.taken_over() as sandbox:
        sandbox.mark("ended")
        result = sandbox.kernel.run("print('shown'); [][1]", timeout=SECONDS)
    told = told_of(succession)
    assert (told.output, told.ok, told.begun, told.ended) == (result.output, False, True, True)


def test_a_cell_past_its_time_out_is_interrupted_by_whoever_takes_over(succession):
    killed(succession, "ever", "print('on'); [None for _ in iter(int, 1)]", 0.3, timeout=0.8)
    told = told_of(succession, timeout=0.8)
    assert (told.begun, told.ended, told.timed_out, told.ok) == (True, False, True, False)
    assert told.output.startswith("on\n")


def test_a_kernel_that_would_not_be_interrupted_is_replaced(succession, monkeypatch):
    for module in (client, takeover):
        monkeypatch.setattr(module, "INTERRUPT_SECONDS", 0.5)
    stubborn = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); print('on')\nwhile True: pass"
    killed(succession, "stubborn", stubborn, 0.3, timeout=0.6)
    told = told_of(succession, timeout=0.6)
    assert (told.begun, told.timed_out, told.kernel_ended, told.complete) == (True, True, 137, False)
    with succession.taken_over() as sandbox:
        assert sandbox.kernel.run("kept = 'yes'", timeout=SECONDS).ok


def test_a_kernel_that_ended_with_its_cell_while_nobody_looked_says_how(succession):
    killed(succession, "ends", "import os, time; time.sleep(0.4); os._exit(3)", 0.2)
    after(0.5)
    told = told_of(succession)
    assert (told.begun, told.ended, told.kernel_ended, told.complete) == (True, True, 3, False)
    with succession.taken_over() as sandbox:
        assert sandbox.kernel.run("kept = 'yes'", timeout=SECONDS).ok


def test_a_cell_that_was_never_sent_is_not_taken_for_the_one_before(succession):
    with succession.taken_over() as sandbox:
        sandbox.mark("one")
        sandbox.kernel.run("print('one')", timeout=SECONDS)
        sandbox.mark("two")
    told = told_of(succession)
    assert (told.begun, told.ended, told.output) == (False, False, "")


def test_a_kernel_of_a_later_claims_runs_no_cell_of_an_earlier_ones(succession, keeper):
    with succession.taken_over() as first:
        first.kernel.run("x = 1", timeout=SECONDS)
        with succession.taken_over() as second:
            with pytest.raises(FenceLost):
                first.kernel.run("x = 2", timeout=SECONDS)
            assert second.kernel.run("x", timeout=SECONDS).output == "1\n"
