"""The shell against everything an agent does to it. Real bubblewrap."""

from __future__ import annotations

import shlex
import time

import pytest

from prorl_celery.errors import Cancelled
from prorl_celery.sandbox.session import LiveSandbox


def run(sandbox: LiveSandbox, command: str, timeout: float = 20.0):
    return sandbox.shell.run(command, timeout=timeout)


def alive(sandbox: LiveSandbox) -> bool:
    result = run(sandbox, "echo still here")
    return result.exit_code == 0 and result.output.endswith("still here\n")


def test_variables_functions_and_folder_last_from_command_to_command(sandbox):
    run(sandbox, "x=5; f() { echo f$x; }; cd /tmp")
    result = run(sandbox, "f")
    assert (result.output, result.exit_code, result.cwd) == ("f5\n", 0, "/tmp")


@pytest.mark.parametrize(
    ("command", "output", "code"),
    [
        ("true", "", 0),
        ("false", "", 1),
        ("exit_code() { return 42; }; exit_code", "", 42),
        ("echo 'a' \"b\" \\c !x $((1+1))", "a b c !x 2\n", 0),
        ("cat <<'END'\nhere $x\n'\nEND", "here $x\n'\n", 0),
        ("cat", "", 0),
        ("read line; echo $?", "1\n", 0),
        ("echo ünïcode 漢字 🙂", "ünïcode 漢字 🙂\n", 0),
        ("printf 'a\\r\\nb\\n'", "a\nb\n", 0),
        ("printf '50%%\\r100%%\\n'", "100%\n", 0),
        ("printf 'a\\0b\\377c\\n'", "a\ufffdb\ufffdc\n", 0),
        ("printf 'no newline'", "no newline", 0),
        ("if true; then\n  echo many\n  echo lines\nfi", "many\nlines\n", 0),
        ("# only a comment", "", 0),
        ("", "", 0),
        ("stty size < /dev/tty", "24 250\n", 0),
        ("set -x; echo traced", "++ echo traced\ntraced\n", 0),
        ("exec > /tmp/elsewhere", "", 0),
        ("exec 2>/dev/null", "", 0),
    ],
)
def test_a_command_gives_its_output_and_exit_code(sandbox, command, output, code):
    result = run(sandbox, command)
    assert (result.output, result.exit_code) == (output, code)
    assert alive(sandbox)


@pytest.mark.parametrize(
    "command", ["echo 'open", 'echo "open', "echo $(", "if true; then", "cat <<END\nnever ended", ")"]
)
def test_a_command_that_is_not_finished_is_an_error_and_not_a_prompt(sandbox, command):
    result = run(sandbox, command, timeout=10.0)
    assert not result.timed_out
    assert alive(sandbox)


@pytest.mark.parametrize(
    ("command", "code"),
    [("exit 3", 3), ("exec false", 1), ("kill -9 $$", 137), ("set -e; false; echo no", 1), ("exec bash", 0)],
)
def test_a_shell_that_ends_is_replaced_and_its_exit_code_told(sandbox, command, code):
    run(sandbox, "x=5")
    result = run(sandbox, command)
    assert (result.exit_code, result.shell_restarted) == (code, True)
    assert run(sandbox, "echo [$x]").output == "[]\n"


@pytest.mark.parametrize(
    "command",
    [
        "set -e", "set -u", "set -o pipefail", "set -x", "set -v", "set +m", "set -o posix", "set -o noglob",
        "PS1='(venv) $ '; PS2=x", "PROMPT_COMMAND='echo prompt'", "unset PROMPT_COMMAND PS1 PS2", "unset PWD",
        "stty raw -echo < /dev/tty", "stty -isig < /dev/tty", "stty sane < /dev/tty", "trap '' INT TERM HUP",
        "trap 'echo bye' EXIT", "unset __p_id __prorl_nonce", "__p_id=x", "shopt -s extglob", "cd /nowhere",
        "alias echo='echo aliased'", "echo ${none?message}", "echo $((1/0))", "history; fc -l", "kill -STOP $$",
        "printf '\\033[?1049h\\033c'", "enable -n test", "ulimit -n 20", "IFS=", "export LC_ALL=C", "umask 777",
    ],
)  # fmt: skip
def test_the_session_survives(sandbox, command):
    result = run(sandbox, command, timeout=10.0)
    assert not result.timed_out
    result = run(sandbox, "false || true; echo after")
    assert "after" in result.output
    assert (result.exit_code, result.timed_out) == (0, False)


def test_an_unset_variable_under_set_u_does_not_end_the_session(sandbox):
    run(sandbox, "set -u")
    assert run(sandbox, "echo $nothing").exit_code == 1
    assert alive(sandbox)


def test_a_background_job_that_keeps_writing_does_not_hold_up_commands(sandbox):
    run(sandbox, "(while :; do echo spam; sleep 0.001; done) &")
    result = run(sandbox, "echo mine")
    assert "mine\n" in result.output
    assert run(sandbox, "kill %1; wait 2>/dev/null; echo killed").output.count("killed") == 1
    assert alive(sandbox)


def test_a_background_job_survives_the_time_out_of_another_command(sandbox):
    run(sandbox, "sleep 1000 & echo $! > /tmp/pid")
    assert run(sandbox, "sleep 100", timeout=0.3).timed_out
    assert run(sandbox, "kill -0 $(cat /tmp/pid)").exit_code == 0


def test_a_time_out_interrupts_and_keeps_what_was_printed(sandbox):
    run(sandbox, "x=kept")
    result = run(sandbox, "echo before; sleep 100; echo after", timeout=0.5)
    assert result.timed_out
    assert result.exit_code is None
    assert result.output.startswith("before\n")
    assert "after" not in result.output
    assert result.duration_s < 5
    assert not result.shell_restarted
    assert run(sandbox, "echo $x").output == "kept\n"


@pytest.mark.parametrize(
    "command",
    [
        "bash -c 'trap \"\" INT TERM; sleep 100 & wait; sleep 100'",
        "trap '' INT; while :; do :; done",
        "trap '' INT; sleep 100; sleep 100; sleep 100",
        "python3 -c 'import signal, time; signal.signal(2, signal.SIG_IGN); time.sleep(100)'",
    ],
)
def test_a_command_that_ignores_the_interrupt_is_killed_and_the_session_stays(sandbox, command):
    assert run(sandbox, command, timeout=0.5).timed_out
    assert alive(sandbox)


def test_a_command_that_reads_the_terminal_is_ended_by_its_time_out(sandbox):
    assert run(sandbox, "read answer < /dev/tty", timeout=0.5).timed_out
    assert alive(sandbox)


@pytest.mark.parametrize(
    "command", ["kill -9 -1; kill -9 $$", "kill -9 $PPID $$", "kill -9 $PPID; sleep 0.1; kill -9 $$"]
)
def test_killing_everything_in_the_sandbox_leaves_a_sandbox(sandbox, command):
    result = run(sandbox, command, timeout=15.0)
    assert result.shell_restarted
    assert alive(sandbox)


def test_a_fork_bomb_is_bounded_and_the_session_comes_back(start):
    sandbox = start(processes=40)
    run(sandbox, "bomb() { bomb | bomb & }; bomb 2>/dev/null", timeout=2.0)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        result = run(sandbox, "echo back", timeout=2.0)
        if result.output.endswith("back\n") and result.exit_code == 0:
            return
    pytest.fail("the shell did not come back from a fork bomb")


def test_the_limit_of_processes_holds(start):
    sandbox = start(processes=20)
    forks = "import os, time\nfor i in range(30):\n    if not os.fork():\n        time.sleep(3)\n        os._exit(0)"
    assert "Resource temporarily unavailable" in run(sandbox, f"python3 -c '{forks}'").output


def test_the_marker_printed_by_a_command_does_not_wedge_the_session(sandbox):
    for marker in (
        "0:$__p_id:$__p_id:0:h:/x",
        "0:::0:h:/x",
        "0:shell:$$:0:h:/x",
        "1:2:3:4:5:6:7",
        "$(seq -s 9 5000)",
        "",
    ):
        run(sandbox, f"printf '\\002%s:%s\\003%s\\004' $__prorl_nonce \"{marker}\" $__prorl_nonce; sleep 0.2")
        run(sandbox, "true")
        assert alive(sandbox)
    run(sandbox, "printf '\\002'")
    run(sandbox, "printf '\\002%s:' $__prorl_nonce")
    assert alive(sandbox)


@pytest.mark.parametrize(
    "name", ["a:b\n'c d", '$x`date`\\n%s"', "\x01\x02\x7f\x1b[K\r", "\\w\\$\\!\\u", "ünïcode 漢字", " -e ", "x" * 200]
)
def test_a_working_directory_may_have_any_name(sandbox, name):
    sandbox.files.write(f"/tmp/{name}/file", b"")
    assert run(sandbox, f"cd /tmp; cd -- {shlex.quote(name)}").cwd == f"/tmp/{name}"
    assert run(sandbox, "ls").output == "file\n"


def test_a_nul_in_a_command_is_refused(sandbox):
    assert run(sandbox, "echo a\0b").exit_code == 2
    assert alive(sandbox)


def test_a_cancel_is_noticed_in_the_middle_of_a_command(sandbox, cancel):
    import threading

    threading.Timer(0.2, cancel.set).start()
    started = time.monotonic()
    with pytest.raises(Cancelled):
        run(sandbox, "sleep 100", timeout=100)
    assert time.monotonic() - started < 5
