"""The shell and what goes on beside a command, or does not end: jobs, time-outs, a death between two commands."""

from __future__ import annotations

from collections import Counter

import pytest

from prorl_celery.sandbox.session import LiveSandbox


def run(sandbox: LiveSandbox, command: str, timeout: float = 20.0):
    return sandbox.shell.run(command, timeout=timeout)


def test_the_exit_code_carries_over_to_the_next_command(sandbox):
    for code in (0, 1, 42, 255):
        assert run(sandbox, f"(exit {code})").exit_code == code
        assert run(sandbox, "echo $?").output == f"{code}\n"
        assert run(sandbox, "echo $?").output == "0\n"


def test_an_error_trap_is_not_set_off_by_the_exit_code_of_the_command_before(sandbox):
    run(sandbox, "trap 'echo trapped' ERR; false")
    assert run(sandbox, "echo $?").output == "1\n"


def test_a_program_that_writes_to_a_closed_pipe_ends_in_silence(sandbox):
    assert run(sandbox, "yes | head -c 4").output == "y\ny\n"


def test_output_of_a_job_after_the_end_of_its_command_goes_to_a_later_one_and_leaves_exit_codes_alone(sandbox):
    # Not as fast as it can: more than is kept of an output would hide what the test looks for.
    spam = "printf '\\002\\003late\\r\\n\\004%s\\n' $__prorl_nonce; sleep 0.001"
    run(sandbox, f"while :; do {spam}; done & echo $! >/tmp/pid")
    for code in range(40):
        result = run(sandbox, f"echo mine {code}; (exit {code})")
        assert (result.exit_code, result.timed_out, result.shell_restarted) == (code, False, False)
        assert f"mine {code}\n" in result.output
    run(sandbox, "kill $(cat /tmp/pid); wait 2>/dev/null")
    assert run(sandbox, "echo quiet").output.endswith("quiet\n")
    assert run(sandbox, "echo quiet").output == "quiet\n"


@pytest.mark.parametrize(
    "command",
    [
        "sleep 1000 &",
        "sleep 1000 & disown",
        "nohup sleep 1000 >/dev/null 2>&1 &",
        "(setsid sleep 1000 &)",
        "sleep 1000 & kill -STOP $!",
        "cat </dev/tty &",
        "coproc cat",
        "coproc exit",
        "exec 9<>/dev/tty; (read -u 9 line) &",
        "trap 'echo child' CHLD; true | true",
        "set -b; true &",
    ],
)
def test_a_job_left_behind_is_no_trouble(sandbox, command):
    assert not run(sandbox, command).timed_out
    for code in (7, 0):
        result = run(sandbox, f"/bin/echo after; exit_with() {{ return {code}; }}; exit_with")
        assert "after\n" in result.output
        assert (result.exit_code, result.shell_restarted) == (code, False)


@pytest.mark.parametrize(
    "command",
    [
        "sleep 100 | cat",
        "(sleep 100; echo x)",
        "sleep 100 & wait",
        "while :; do sleep 0.05; done",
        "for i in 1 2 3; do sleep 100; done",
        "read line < <(sleep 100)",
        "python3 -c 'while 1: pass'",
        "setsid -w sleep 100",
        "bash -ic 'sleep 100'",
        "bash </dev/tty",
        "python3 -i </dev/tty",
        "vi /tmp/file </dev/tty",
        "cat </dev/tty",
        "select choice in a b; do :; done </dev/tty",
        "PS1=mine; sleep 100",
        "set -x; PROMPT_COMMAND='echo mine'; sleep 100",
        "exec 2>/dev/null; sleep 100",
    ],
)
def test_a_time_out_ends_the_command_and_keeps_the_shell(sandbox, command):
    run(sandbox, "x=kept")
    result = run(sandbox, f"echo begun\n{command}", timeout=0.3)
    assert (result.timed_out, result.exit_code) == (True, None)
    assert "begun\n" in result.output
    assert run(sandbox, "echo $x").output == "kept\n"


def test_a_shell_that_dies_at_any_moment_runs_no_command_twice_and_tells_of_none_that_it_did_not_run(sandbox):
    told: dict[int, int | None] = {}
    for number in range(60):
        if number % 3 == 0:
            run(sandbox, "{ sleep 0.00$((RANDOM % 10)); kill -9 $$; } >/dev/null 2>&1 &")
        told[number] = run(sandbox, f"echo {number} >>/tmp/done").exit_code
    run(sandbox, "sleep 0.1")
    done = Counter(run(sandbox, "cat /tmp/done").output.split())
    for number, code in told.items():
        assert done[str(number)] == 1 if code == 0 else done[str(number)] <= 1, (number, code)


def test_a_shell_that_dies_while_a_long_line_is_sent_runs_no_piece_of_it(sandbox):
    for delay in ("0.00", "0.01", "0.02", "0.03"):
        run(sandbox, f"{{ sleep {delay}; kill -9 $$; }} >/dev/null 2>&1 &")
        result = run(sandbox, "true " + "'; touch /tmp/piece; '" * 50_000, timeout=60)
        assert result.shell_restarted or result.exit_code == 0
        result = run(sandbox, "ls /tmp")
        assert (result.output, result.exit_code) == ("", 0)


def test_a_here_document_of_two_hundred_thousand_lines_is_read(sandbox):
    text = "".join(f"line {number}: it's $x `\n" for number in range(200_000))
    assert run(sandbox, f"wc -lc <<'END'\n{text}END", timeout=120).output.split() == ["200000", str(len(text))]


def test_commands_as_long_as_one_may_be_are_run(sandbox):
    for letter in ("x", "'\\''", "\\!", "\n"):
        command = ": '" + letter * ((1 << 20) // len(letter)) + "'; echo done"
        assert run(sandbox, command, timeout=120).output == "done\n"
