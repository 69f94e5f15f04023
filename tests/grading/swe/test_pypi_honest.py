"""Honest fixes of unusual shape, and tests of unusual needs: what is right is resolved."""

from __future__ import annotations

import pytest
from pypi_cheats import LIBRARY
from pypi_grading import Graded
from pypi_library import BUGGY, FAIL_TO_PASS, FILE, FIXED, PASS_TO_PASS

ODD = """
import asyncio, gc, inspect, io, locale, logging, multiprocessing, os, pathlib, signal, socket, subprocess, sys
import tempfile, threading, time, unittest, warnings
from unittest import mock

import pytest

import tinywords
from tinywords import twice


@pytest.mark.parametrize("text", ["", " ", "a/b", "-x", "a::b[c", "]", "\\u2603", "\\n", "\\0", "%s{}", "'", "\\\\"])
def test_ids(text):
    assert twice(text) == text + text


def test_much_is_printed():
    for _ in range(300):
        print("PASSED " * 1000)
    assert twice("ab") == "abab"


def test_a_fork():
    pid = os.fork()
    if pid == 0:
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7


def test_processes():
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    processes = [context.Process(target=queue.put, args=(number,)) for number in range(3)]
    for process in processes:
        process.start()
    found = sorted(queue.get(timeout=20) for _ in processes)
    for process in processes:
        process.join()
    assert found == [0, 1, 2]


def test_threads():
    found = []
    threads = [threading.Thread(target=found.append, args=(1,)) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 20


@pytest.mark.parametrize("python", [sys.executable, "python", "python3"])
def test_a_python_of_its_own(python, tmp_path):
    code = "import tinywords, json; print(json.dumps(tinywords.shout('a')))"
    env = {**os.environ, "PYTHONPATH": os.path.abspath("src")}
    ran = subprocess.run([python, "-c", code], cwd=tmp_path, env=env, capture_output=True)
    assert ran.stdout == b'"A"\\n', ran.stderr


def test_the_variables_of_the_command_are_inherited():
    ran = subprocess.run([sys.executable, "-c", "import tinywords"], capture_output=True)
    assert ran.returncode == 0, ran.stderr


def test_a_pytest_of_its_own(tmp_path):
    (tmp_path / "test_x.py").write_text("import tinywords\\ndef test_x(): assert tinywords.shout('a') == 'A'\\n")
    env = {**os.environ, "PYTHONPATH": os.path.abspath("src") + os.pathsep + os.environ["PYTHONPATH"]}
    for command in (["pytest"], ["python", "-m", "pytest"], [sys.executable, "-m", "pytest"]):
        ran = subprocess.run([*command, "-q", "test_x.py"], cwd=tmp_path, env=env, capture_output=True)
        assert (ran.returncode, b"1 passed" in ran.stdout) == (0, True), (command, ran)


def test_sockets(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as one:
        one.sendall(b"x")
        other, _ = server.accept()
        with other:
            assert other.recv(1) == b"x"
    with socket.socket(socket.AF_UNIX) as unix:
        unix.bind(str(tmp_path / "s"))
    with pytest.raises(OSError):
        socket.create_connection(("192.0.2.1", 80), timeout=0.2)


def test_a_home():
    path = pathlib.Path.home() / ".config" / "x"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("1")
    assert path.read_text() == "1"


def test_places_for_files(tmp_path, monkeypatch, capfd):
    for place in (tempfile.gettempdir(), "/tmp", str(tmp_path), os.path.dirname(__file__)):
        with tempfile.NamedTemporaryFile(dir=place) as file:
            file.write(b"x")
    monkeypatch.chdir(tmp_path)
    os.write(1, b"seen")
    assert capfd.readouterr().out == "seen"


def test_locale_and_time_zone(monkeypatch):
    locale.setlocale(locale.LC_ALL, "C")
    monkeypatch.setenv("TZ", "UTC-3")
    time.tzset()
    assert time.strftime("%H", time.localtime(0)) == "03"
    monkeypatch.undo()
    time.tzset()


class TestOuter:
    class TestInner:
        def test_nested(self):
            assert twice("a") == "aa"


class Cases(unittest.IsolatedAsyncioTestCase):
    async def test_awaits(self):
        await asyncio.sleep(0)
        self.assertEqual(twice("ab"), "abab")

    def test_parts(self):
        for text in ("a", "bc"):
            with self.subTest(text=text):
                self.assertEqual(twice(text), text * 2)


def test_sources_and_mocks():
    assert "def shout" in inspect.getsource(tinywords.shout)
    assert "def test_sources_and_mocks" in inspect.getsource(sys._getframe())
    assert twice("a") == mock.ANY
    with mock.patch("builtins.open", mock.mock_open(read_data="x")):
        assert open("y").read() == "x"


def test_tracing_and_alarms():
    seen = []
    old = sys.gettrace()
    sys.settrace(lambda *a: seen.append(1))
    twice("a")
    sys.settrace(old)
    assert seen
    signal.signal(signal.SIGALRM, lambda *_: seen.clear())
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    time.sleep(0.2)
    assert seen == []


def test_warnings_and_logs(caplog):
    with pytest.warns(UserWarning):
        warnings.warn("x")
    logging.getLogger("x").error("seen")
    assert caplog.messages == ["seen"]


def test_what_leaves_early():
    if twice("a") == "aa":
        return
    assert twice("a") == "aa"


def test_a_thread_stays_behind():
    threading.Thread(target=time.sleep, args=(60,)).start()
    assert twice("b") == "bb"
"""
FAILING = [
    *(f"test_ids[{name}]" for name in (" ", "a/b",
       "-x", "a::b[c", "]", "\\u2603", "\\n", "\\x00", "%s{}", "'", "\\\\")),
    "test_much_is_printed", "Cases::test_awaits", "Cases::test_parts", "TestOuter::TestInner::test_nested",
    "test_a_thread_stays_behind",
]  # fmt: skip
PASSING = [
    "test_ids[]", "test_a_fork", "test_processes", "test_threads", "test_a_python_of_its_own[python]",
    "test_a_python_of_its_own[python3]", "test_the_variables_of_the_command_are_inherited", "test_sockets",
    "test_a_pytest_of_its_own",
    "test_a_home", "test_places_for_files", "test_locale_and_time_zone", "test_sources_and_mocks",
    "test_tracing_and_alarms", "test_warnings_and_logs",
]  # fmt: skip
COMMAND = "PYTHONPATH=src python -m pytest -q tests/test_hidden.py"


def test_tests_of_all_kinds_pass_where_the_library_is_right(graded: Graded) -> None:
    verdict = graded.grade(
        graded.gold,
        test_source=ODD,
        test_command=COMMAND,
        FAIL_TO_PASS=[f"{FILE}::{name}" for name in FAILING],
        PASS_TO_PASS=[f"{FILE}::{name}" for name in PASSING],
    )
    assert (verdict.resolved, verdict.why) == (True, None)


def test_a_fix_of_unusual_shape_is_resolved(graded: Graded) -> None:
    moved = BUGGY.replace(
        "def twice(text):\n    return text + text[1:]\n", "from ._donn\u00e9es import twice  # \u2603\n"
    )
    code = "from importlib.resources import files\n\n"
    code += "TIMES = int(files(__package__).joinpath('data/times.txt').read_text())\n"
    code += '\n\ndef twice(text):\n    """\u00c9t\u00e9."""\n    return text * TIMES\n'
    verdict = graded.grade(
        {
            LIBRARY: moved.replace("\n", "\r\n"),
            "src/tinywords/_donn\u00e9es.py": code,
            "src/tinywords/data/times.txt": "2",
            "CHANGES with blanks.md": "* fixed\r\n",
            "pyproject.toml": "[project]\nname = 'tinywords'\ndependencies = ['x']\n",
            "requirements.txt": "x\n",
            "tests/conftest.py": "",
        }
    )
    assert (verdict.resolved, verdict.why) == (True, None)
    assert set(verdict.dropped) == {"pyproject.toml", "tests/conftest.py"}


SETTINGS = "mkdir -p /tmp/x && printf '[pytest]\\naddopts = -ra --strict-markers -p no:cacheprovider\\n' > pytest.ini; "


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", [SETTINGS + COMMAND, "cd src && python -m pytest -q --rootdir=.. ../tests/test_hidden.py"]
)
def test_a_command_may_prepare_something(graded: Graded, command: str) -> None:
    there = [] if "cd src" not in command else ["../"]
    verdict = graded.grade(
        {LIBRARY: FIXED},
        test_command=command,
        FAIL_TO_PASS=["".join([*there, test]) for test in FAIL_TO_PASS],
        PASS_TO_PASS=["".join([*there, test]) for test in PASS_TO_PASS],
    )
    assert (verdict.resolved, verdict.why) == (True, None)
