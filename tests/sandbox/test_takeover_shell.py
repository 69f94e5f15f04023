"""A shell whose holder is killed, at every step and at any moment, and taken over. Real processes, real sandboxes."""

from __future__ import annotations

import itertools
import os
import random
import signal
import time
from collections.abc import Callable, Iterator

import pytest
from holders import SECONDS, Steps, Succession, after
from sandbox_images import needs_singularity

from prorl_celery.sandbox import shell
from prorl_celery.sandbox.base import Recovered
from prorl_celery.sandbox.notes import ShellNotes
from prorl_celery.sandbox.session import LiveSandbox
from prorl_celery.sandbox.terminal import Terminal
from prorl_celery.testing.keeper import KeeperProcess

KINDS = ("bubblewrap", pytest.param("singularity", marks=needs_singularity))
RUNS = "/workspace/runs"
COMMANDS = {
    "short": f"echo {{name}} >> {RUNS}; echo out",
    "within the shell": f"printf '{{name}}\\n' >> {RUNS}; for ((i = 0; i < 9999; i++)); do :; done; echo out",
    "slow": f"echo {{name}} >> {RUNS}; sleep 0.03; echo out; sleep 0.01; (exit 7)",
    "floods": f"echo {{name}} >> {RUNS}; seq 9000; echo out",
    "a long line": f"echo {{name}} >> {RUNS}; : '{'é' * 3000}'; echo out",
    "a very long line": f"echo {{name}} >> {RUNS}; : '{'x' * 60_000}'; echo out",
    "a wrong line": f"echo {{name}} >> {RUNS}\nfi",
    "ends its shell": f"echo {{name}} >> {RUNS}; exit 3",
    "traced": f"set -x; echo {{name}} >> {RUNS}; echo out",
    "untidy": f"echo {{name}} >> {RUNS}; set -e; PS1=mine; echo out",
}
STUBBORN = f"trap '' INT; echo {{name}} >> {RUNS}; while :; do :; done"


@pytest.fixture
def succession(keeper: KeeperProcess, start: Callable[..., LiveSandbox], jail_parts, request) -> Succession:
    """Of a sandbox whose shell has a variable that is to outlive its holders."""
    kind = getattr(request, "param", "bubblewrap")
    sandbox = start(image=str(jail_parts.image)) if kind == "singularity" else start()
    sandbox.shell.run(f"kept=yes; touch {RUNS}", timeout=SECONDS)
    return Succession(keeper, sandbox.handle)


def work(name: str, command: str, timeout: float = SECONDS) -> Callable[[LiveSandbox], int | None]:
    """What a holder does: one command under a mark."""

    def run(sandbox: LiveSandbox) -> int | None:
        sandbox.mark(name)
        return sandbox.shell.run(command.format(name=name), timeout=timeout).exit_code

    return run


def check(sandbox: LiveSandbox, name: str, timeout: float = SECONDS) -> Recovered | None:
    """Take over, and compare what is said of the command with what it did. None when it was never spoken of."""
    marked = sandbox.marked
    told = sandbox.shell.recover(timeout=timeout)
    assert sandbox.shell.recover(timeout=timeout) == told
    seen = sandbox.shell.run(f"grep -c '^{name}$' {RUNS}; echo ${{kept-lost}}", timeout=SECONDS).output.split()
    times, kept = int(seen[0]), seen[1]
    assert kept == ("lost" if told.shell_restarted else "yes")
    if told.shell_restarted:
        sandbox.shell.run("kept=yes", timeout=SECONDS)
    if marked != name:
        assert times == 0
        return None
    assert times in {None: (0, 1), False: (0,), True: (1,)}[told.begun], told
    return told


def each_step(succession: Succession, command: str) -> Iterator[tuple[int, int | None, Recovered | None]]:
    """Kill a holder at its first step, the next at its second, and so on until one ends; what is said of each."""
    for step in itertools.count(1):
        exit_code = succession.holder(work(f"n{step}", command), Steps(step)).await_end()
        with succession.taken_over() as sandbox:
            yield step, exit_code, check(sandbox, f"n{step}")
        if exit_code is not None:
            return


@pytest.mark.parametrize("what", COMMANDS)
def test_a_command_whose_holder_is_killed_at_any_step_was_run_once_or_never_as_is_said(succession, what):
    begun = set()
    for _step, exit_code, told in each_step(succession, COMMANDS[what]):
        if told is None:
            continue
        begun.add(told.begun)
        assert what == "ends its shell" or not told.shell_restarted
        if told.begun:
            assert (told.ended, told.timed_out) == (True, False)
            assert told.exit_code == {"slow": 7, "a wrong line": 2, "ends its shell": 3}.get(what, 0)
        if told.begun and told.complete and what not in ("a wrong line", "ends its shell"):
            assert told.output.endswith("out\n")
        if exit_code is not None:
            assert (told.begun, told.exit_code, told.complete) == (True, exit_code, True)
    assert begun >= {False, True}


@pytest.mark.parametrize("succession", KINDS, indirect=True)
def test_a_command_whose_holder_is_killed_at_any_moment_was_run_once_or_never_as_is_said(succession):
    kill_at_random_moments(succession, 60, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("succession", KINDS, indirect=True)
@pytest.mark.parametrize("seed", [2, 3])
def test_hundreds_of_holders_are_killed(succession, seed):
    kill_at_random_moments(succession, 400, seed=seed)


def kill_at_random_moments(succession: Succession, times: int, *, seed: int) -> None:
    chance = random.Random(seed)
    begun = []
    for number in range(times):
        name, command = f"m{number}", chance.choice(list(COMMANDS.values()))
        holder = succession.holder(work(name, command))
        holder.await_ready()
        after(chance.random() * chance.choice((0.0005, 0.005, 0.05)))
        holder.kill()
        with succession.taken_over() as sandbox:
            told = check(sandbox, name)
        begun.append(told.begun if told else False)
    assert set(begun) >= {False, True}


@pytest.mark.parametrize("every", [9, pytest.param(1, marks=pytest.mark.slow)])
def test_a_command_past_its_time_out_is_stopped_by_whoever_takes_over_amid_that(succession, monkeypatch, every):
    monkeypatch.setattr(shell, "FORCE", (("", 0.1), ("interrupt", 0.3), ("restart", 0.5), ("killall", 10.0)))
    outcomes = set()
    for step in itertools.count(every, every):
        name = f"n{step}"
        exit_code = succession.holder(work(name, STUBBORN, 0.2), Steps(step)).await_end()
        with succession.taken_over() as sandbox:
            told = check(sandbox, name, timeout=0.2)
        if told is not None and told.begun:
            assert (told.timed_out, told.ended, told.exit_code) == (True, False, None)
        outcomes.add(None if told is None else told.begun)
        if exit_code is not None:
            break
    assert True in outcomes


def test_a_command_that_is_blocked_since_nobody_reads_goes_on_and_is_told_as_ever(succession):
    command = f"echo {{name}} >> {RUNS}; seq 1000000; echo out; (exit 5)"
    holder = succession.holder(work("big", command))
    holder.await_ready()
    after(0.02)
    holder.kill()
    with succession.taken_over() as sandbox:
        told = check(sandbox, "big")
    assert told is not None
    assert (told.begun, told.ended, told.exit_code) == (True, True, 5)
    assert told.output.endswith("\n1000000\nout\n")
    assert told.omitted_bytes > 1_000_000


def test_what_a_dead_holder_had_read_is_told_with_the_rest(succession):
    holder = succession.holder(work("both", "echo first; sleep 0.5; echo second"))
    holder.await_ready()
    after(0.25)
    holder.kill()
    with succession.taken_over() as sandbox:
        told = sandbox.shell.recover(timeout=SECONDS)
    assert (told.output, told.exit_code, told.complete) == ("first\nsecond\n", 0, True)


def test_what_is_read_along_with_the_end_of_a_command_is_not_its_output(succession, monkeypatch):
    """It was sent and not noted as such, so a probe is sent behind it; and the shell, traced, talks about that."""

    def killed_once_it_has_sent(sandbox: LiveSandbox) -> None:
        ShellNotes.sent = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        work("sent", "set -x; echo out")(sandbox)

    receive, heard = Terminal.receive, []

    def receive_all(self: Terminal, deadline: float) -> bytes | None:
        monkeypatch.setattr(Terminal, "receive", receive)
        data: bytes | None = b""
        while data is not None and b"\n++ :\n" not in b"".join(heard):
            data = receive(self, time.monotonic() + SECONDS)
            heard.append(data or b"")
        return b"".join(heard)

    assert succession.holder(killed_once_it_has_sent).await_end() is None
    with succession.taken_over() as sandbox:
        monkeypatch.setattr(Terminal, "receive", receive_all)
        told = sandbox.shell.recover(timeout=SECONDS)
    assert heard
    assert (told.begun, told.exit_code, told.complete) == (True, 0, True)
    assert told.output == "++ echo out\nout\n"


def test_time_for_which_nobody_held_the_shell_is_not_the_commands(succession):
    """It could not go on: nobody read what it printed."""
    holder = succession.holder(work("slow", "seq 99999; sleep 1.5; echo out", 3.0))
    holder.await_ready()
    after(0.05)
    holder.kill()
    after(3.1)
    with succession.taken_over() as sandbox:
        told = sandbox.shell.recover(timeout=3.0)
    assert told.output.endswith("\n99999\nout\n")
    assert (told.exit_code, told.ended) == (0, True)


def test_a_successor_that_is_killed_as_it_takes_over_has_a_successor(succession):
    killed = 0
    for step in itertools.count(1):
        name = f"n{step}"
        holder = succession.holder(work(name, COMMANDS["slow"]))
        holder.await_ready()
        after(0.004 + 0.002 * (step % 8))
        holder.kill()
        second = succession.holder(
            lambda sandbox: sandbox.shell.recover(timeout=SECONDS).exit_code or 0, Steps(step)
        ).await_end()
        with succession.taken_over() as sandbox:
            check(sandbox, name)
        killed += second is None
        # One that finds no command, since its holder was killed before it had begun, has little to do.
        if second is not None and step > 8:
            break
    assert killed > 2


def test_a_shell_that_was_not_recovered_runs_the_next_command_behind_the_one_under_way(succession):
    holder = succession.holder(work("first", f"sleep 0.3; echo {{name}} >> {RUNS}; x=after"))
    holder.await_ready()
    after(0.1)
    holder.kill()
    with succession.taken_over() as sandbox:
        result = sandbox.shell.run(f"cat {RUNS}; echo $x", timeout=SECONDS)
    assert (result.output, result.exit_code) == ("first\nafter\n", 0)


def test_a_command_of_another_mark_is_not_told_as_the_present_ones(succession):
    with succession.taken_over() as sandbox:
        sandbox.mark("one")
        sandbox.shell.run("echo one", timeout=SECONDS)
        sandbox.mark("two")
    with succession.taken_over() as sandbox:
        assert sandbox.marked == "two"
        told = sandbox.shell.recover(timeout=SECONDS)
    assert (told.begun, told.ended, told.output, told.exit_code) == (False, False, "", None)
