"""What a sandbox may not take: memory, processes. In both kinds, of root's keeper (which has control groups where the
machine gives it any) and of an ordinary user's (which as a rule watches).
"""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest
from jails import Jail

from prorl_celery.node.pause import until
from prorl_celery.sandbox.session import LiveSandbox

MEMORY = 192 << 20
one_kind = pytest.mark.parametrize("jail", ["bubblewrap-root", "bubblewrap-user"], indirect=True)
"""For what depends on how memory is counted and not on the kind."""
TOLD = "over the sandbox's memory of 192 MiB]"
DISK = 32 << 20


def small(jail: Jail) -> LiveSandbox:
    return jail.start(memory_bytes=MEMORY, disk_bytes=DISK)


def run(sandbox: LiveSandbox, code: str) -> str:
    """What a Python program and the look at its end print."""
    sandbox.files.write("/workspace/program.py", dedent(code).encode())
    return sandbox.shell.run("python3 /workspace/program.py; echo code $?", timeout=120).output


def test_a_program_over_the_sandboxs_memory_is_killed_and_the_agent_is_told_and_goes_on(jail: Jail):
    kills = jail.keeper.client.status()["memory_kills"]
    sandbox = small(jail)
    sandbox.shell.run("x=kept", timeout=10)
    said = run(sandbox, "import time\nx = bytearray(1 << 30)\ntime.sleep(100)")
    again = sandbox.shell.run("echo $x", timeout=10)
    assert "code 137\n" in said
    assert TOLD in said + again.output
    assert again.output.endswith("kept\n")
    assert not again.shell_restarted
    assert until(lambda: jail.keeper.client.status()["memory_kills"] > kills, 10, every=0.05)
    sandbox.stop()


def test_many_small_programs_are_counted_together(jail: Jail):
    sandbox = small(jail)
    said = run(
        sandbox,
        """
        import os, time
        for _ in range(8):
            if not os.fork():
                x = bytearray(48 << 20)
                time.sleep(100)
        codes = [os.wait()[1]]
        print(codes)
        """,
    )
    rest = sandbox.shell.run("pkill python3; echo there", timeout=10).output
    assert "[9]" in said
    assert TOLD in said + rest
    sandbox.stop()


@one_kind
def test_pages_that_forks_share_are_counted_once(jail: Jail):
    sandbox = small(jail)
    said = run(
        sandbox,
        """
        import mmap, os, time
        own, shared = bytearray(96 << 20), mmap.mmap(-1, 48 << 20)
        shared.write(bytes(48 << 20))
        for _ in range(6):
            if not os.fork():
                for at in range(0, 48 << 20, 4096):
                    shared[at] = 1
                time.sleep(1.8)
                os._exit(0)
        print(sorted(os.wait()[1] for _ in range(6)))
        """,
    )
    assert said == "[0, 0, 0, 0, 0, 0]\ncode 0\n"
    sandbox.stop()


@one_kind
def test_a_shared_mapping_without_a_file_counts(jail: Jail):
    sandbox = small(jail)
    said = run(
        sandbox,
        """
        import mmap, time
        x = mmap.mmap(-1, 1 << 30)
        for at in range(0, 1 << 30, 4096):
            x[at] = 1
        time.sleep(100)
        """,
    )
    assert "code 137\n" in said
    sandbox.stop()


@one_kind
def test_memory_that_is_only_set_aside_is_not_refused(jail: Jail):
    """Java, node and others set aside many times what they use."""
    sandbox = small(jail)
    said = run(
        sandbox,
        """
        import ctypes
        libc = ctypes.CDLL(None)
        libc.mmap.restype = ctypes.c_void_p
        kept = libc.mmap(None, ctypes.c_size_t(64 << 30), 0, 0x22, -1, ctypes.c_size_t(0))
        print(kept not in (None, ctypes.c_void_p(-1).value))
        """,
    )
    assert said == "True\ncode 0\n"
    sandbox.stop()


@one_kind
def test_files_in_the_workspace_are_not_the_programs_memory(jail: Jail):
    sandbox = jail.start(memory_bytes=96 << 20, disk_bytes=80 << 20)
    said = run(
        sandbox,
        """
        import time
        open("/workspace/big", "wb").write(bytes(72 << 20))
        x = bytearray(60 << 20)
        time.sleep(1.8)
        print("kept")
        """,
    )
    assert said == "kept\ncode 0\n"
    sandbox.stop()


def test_a_fork_bomb_meets_the_limit_of_processes_and_the_session_comes_back(jail: Jail):
    sandbox = jail.start(processes=40)
    (entry,) = [e for e in jail.keeper.client.list() if e["sandbox_id"] == sandbox.handle.sandbox_id]
    sandbox.shell.run("bomb() { bomb | bomb & }; bomb 2>/dev/null", timeout=2.0)
    assert len(descendants(entry["pid"])) < 80
    assert until(lambda: comes_back(sandbox), 60, every=0.05)
    sandbox.stop()


def comes_back(sandbox: LiveSandbox) -> bool:
    result = sandbox.shell.run("echo back", timeout=2.0)
    return result.exit_code == 0 and result.output.endswith("back\n")


def descendants(pid: int) -> list[int]:
    found: list[int] = []
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return found
    for child in children:
        found += [int(child), *descendants(int(child))]
    return found
