"""Solutions that would rather not be judged. Each is scored for what it is, and the next case knows nothing of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from program_sandboxes import Start, graded, kind_of, sandboxes

FORK = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass\n"
DAEMON = """
import os, time
word = input()
time.sleep(0.05)  # for what the case before may have left
try: print(open("word").read(), flush=True)
except OSError: print(word, flush=True)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for n in range(500):
            time.sleep(0.01)
            if n > 50: print("late", flush=True)
            try: os.write(os.open("/workspace/case/word", os.O_WRONLY | os.O_CREAT), b"wrong")
            except OSError: pass
    os._exit(0)
"""
LEAVES_FILES = """
import os
word = input()
places = [".", os.environ["HOME"], "/tmp", "/var/tmp", "/dev/shm", "/workspace", "/home/agent"]
seen = [place for place in places if os.path.exists(place + "/seen")]
for place in dict.fromkeys(map(os.path.realpath, places)):
    os.makedirs(place + "/seen/below/deeper")
    open(place + "/seen/below/deeper/file", "w").write("x")
    os.chmod(place + "/seen/below/deeper", 0)
    os.chmod(place + "/seen", 0)
print(seen or word)
"""
SEARCHES = """
import os
word = input()
found = []
me = os.getpid()
for pid in filter(str.isdigit, os.listdir("/proc")):
    for name in ("mem", "environ", "maps", "fd", "task/" + pid + "/mem"):
        path = f"/proc/{pid}/{name}"
        try:
            if name == "fd":
                ours = [os.readlink(f"{path}/{n}") for n in os.listdir(path)]
            else:
                ours = open(path, "rb").read(1) if not name.endswith("mem") else open(path, "rb")
        except OSError:
            continue
        line = open(f"/proc/{pid}/cmdline", "rb").read()
        if int(pid) != me and b".zip" in line: found.append((path, line))
print(found or word)
"""
NO_END = "import sys\nsys.setrecursionlimit(10**9)\nf = lambda n: sorted([n], key=f)\nf(1)"
ANSWERS = "import glob\npaths = glob.glob('/workspace/*.answers')\n"
SAYS = "import os\nprint(input(), flush=True)\n"
THREADS = """
import threading, time
while True: threading.Thread(target=time.sleep, args=(9,), daemon=True).start()
"""
RECURSES = """
import sys
sys.setrecursionlimit(10**6)
def f(n): return 0 if n == 0 else 1 + f(n - 1)
assert f(10**5) == 10**5
print(input())
"""
BIG_STACK = """
import threading
threading.stack_size(256 << 20)
thread = threading.Thread(target=lambda: print(input()))
thread.start()
thread.join()
"""
INHERITS = """
import os
print(input(), flush=True)
for fd in range(3, 256):
    try: os.write(fd, b"1\\n{}")
    except OSError: pass
"""
CROWDS = """
import os
input()
for _ in range(40):
    if os.fork() == 0:
        if os.fork() == 0:
            while True: pass
        os._exit(0)
while True: pass
"""
REPEATS = """
import glob, os
input()
print(0, flush=True)
path = glob.glob("/workspace/*.answers")[0]
data, frames = open(path, "rb").read(), []
while data:
    line, _, rest = data.partition(b"\\n")
    end = len(line) + 1 + 32 + int(line)
    frames.append(data[:end])
    data = data[end:]
if len(frames) > 1:  # says of each further case what was said of the first
    with open(path, "r+b") as file: file.write(frames[0] + frames[1] * 99)
    os.kill(-1, 9)
"""
SHARES = """
import ctypes
libc = ctypes.CDLL(None)
word = input()
seen = [libc.shmget(7, 9, 0), libc.semget(7, 1, 0), libc.msgget(7, 0), libc.mq_open(b"/seen", 0)]
print(word if max(seen) < 0 else seen)
libc.shmget(7, 9, 0o1600), libc.semget(7, 1, 0o1600), libc.msgget(7, 0o1600), libc.mq_open(b"/seen", 0o102, 0o600, None)
"""
EXPECTED = {
    "prints without end": ("while True: print('x' * 10_000)", "output limit"),
    "says errors without end": ("import sys\nwhile True: sys.stderr.write('x' * 10_000)", "time limit"),
    "forks without end": (FORK, "time limit"),
    "forks and leaves": ("import os\nfor _ in range(7): os.fork()\nos._exit(0)", "wrong answer"),
    "reads for ever": ("import sys\nwhile True: sys.stdin.read()", "time limit"),
    "crowds the machine with what has left it": (CROWDS, "time limit"),
    "never reads": ("print(0)", "wrong answer"),
    "exits early": ("import os\nos._exit(0)", "wrong answer"),
    "exits politely": ("raise SystemExit", "wrong answer"),
    "sleeps": ("import time\ntime.sleep(60)", "time limit"),
    "takes 100 GB": ("x = bytearray(100 << 30)\nprint(input())", "memory limit"),
    "grows": ("x = []\nwhile True: x.append(bytearray(1 << 20))", "memory limit"),
    "ends its parent": (SAYS + "os.kill(os.getppid(), 9)", "runtime error"),
    "ends everybody": (SAYS + "os.kill(-1, 9)", "runtime error"),
    "ends its group": (SAYS + "os.killpg(0, 9)", "runtime error"),
    "fails when done": ("print(input())\nraise SystemExit(3)", "runtime error"),
    "says why it exits": ("print(input())\nraise SystemExit('no')", "runtime error"),
    "dies by a signal": (SAYS + "os.kill(os.getpid(), 11)", "runtime error"),
    "recurses without end": (NO_END, "runtime error"),
    "opens files without end": ("x = [open('/dev/null') for _ in range(10_000)]\nprint(0)", "runtime error"),
    "starts threads without end": (THREADS, "runtime error"),
    "fills the disk": ("for n in range(100): open(str(n), 'wb').write(bytes(32 << 20))\nprint(0)", "runtime error"),
    "is empty": ("", "wrong answer"),
    "is no Python": ("def f(:", "runtime error"),
    "is not UTF-8": ("print(input()) # \udcff", "runtime error"),
    "holds a NUL": ("print(input())\0", "runtime error"),
    "is nested too deep": ("x = " + "(" * 5000 + ")" * 5000, "runtime error"),
    "is huge": ("x = [" + "1," * 100_000 + "]\nprint(x[0])", "wrong answer"),
    "spoils its answers": (SAYS + ANSWERS + "for p in paths: os.unlink(p)", "runtime error"),
    "prints beside the pipe": ("print(open('/dev/tty', 'w'))", "runtime error"),
}  # fmt: skip
HARMLESS = {
    "closes what it prints to": "import os\nos.write(1, input().encode())\nos.close(1)",
    "closes its own output": "import sys\nprint(input())\nsys.stdout.close()",
    "ignores signals": "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint(input())",
    "reads by file": "print(open('/dev/stdin').read())",
    "reads by descriptor": "print(open(0).read())",
    "prints in a thread": "import threading\nw = input()\nthreading.Thread(target=lambda: print(w)).start()",
    "prints at its end": "import atexit\nw = input()\natexit.register(lambda: print(w))",
    "runs a program": "import subprocess\nprint(subprocess.run(['cat'], capture_output=True).stdout.decode())",
    "recurses": RECURSES,
    "recurses in C": "f = lambda n: n and sorted([n - 1], key=f)[0]\nassert f(15_000) == 14_999\nprint(input())",
    "has a big stack": BIG_STACK,
    "writes behind the answers": SAYS + ANSWERS + "for p in paths: open(p, 'ab').write(b'9' * 99)",
    "is a main program": "if __name__ == '__main__': print(input())",
    "leaves a daemon": DAEMON,
    "leaves files": LEAVES_FILES,
    "looks for secrets": SEARCHES,
    "leaves shared memory": SHARES,
    "writes to what it has inherited": INHERITS,
}  # fmt: skip


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    with sandboxes(tmp_path_factory.mktemp("run")) as made:
        yield made


SLOW = {
    "forks without end",
    "starts threads without end",
    "sleeps",
    "is nested too deep",
    "ends its group",
    "says why it exits",
    "dies by a signal",
    "recurses in C",
    "ignores signals",
    "reads by file",
    "closes its own output",
    "says errors without end",
    "grows",
    "reads for ever",
    "forks and leaves",
    "never reads",
    "exits politely",
    "is huge",
}


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in EXPECTED])
def test_a_solution_that_does_what_none_may_fails_for_it(start: Start, name: str) -> None:
    solution, kind = EXPECTED[name]
    said = graded(start, solution)
    assert (said["reward"], said["resolved"]) == (0.0, False)
    assert kind_of(said) == kind, said["why"]
    assert len(said["why"]) <= 2000


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in HARMLESS])
def test_a_solution_that_is_right_passes_whatever_else_it_does(start: Start, name: str) -> None:
    said = graded(start, HARMLESS[name])
    assert said == {"reward": 1.0, "resolved": True, "passed": 12, "of": 12}


def test_cases_after_one_that_ended_its_judge_are_judged_too(start: Start) -> None:
    kills = "import os\nword = input()\nprint(word, flush=True)\nif word in ('3', '7'): os.kill(-1, 9)"
    said = graded(start, kills, scoring="fraction")
    assert (said["passed"], said["of"], said["failed"]["case"]) == (10, 12, 3)


def test_what_was_said_of_a_case_is_not_said_of_others(start: Start) -> None:
    said = graded(start, REPEATS, scoring="fraction")
    assert (said["passed"], said["of"]) == (1, 12)


def test_a_solution_that_always_ends_its_judge_costs_few_sandboxes(start: Start) -> None:
    started = []

    def counted() -> object:
        started.append(start())
        return started[-1]

    said = graded(counted, "import os\nos.kill(os.getppid(), 9)", scoring="fraction")  # type: ignore[arg-type]
    assert said["reward"] == 0.0
    assert len(started) <= 4


@pytest.mark.slow
def test_a_judge_that_was_stopped_is_no_hang(start: Start) -> None:
    said = graded(start, "import os, signal\nprint(input(), flush=True)\nos.kill(os.getppid(), signal.SIGSTOP)")
    assert (said["reward"], kind_of(said)) == (0.0, "runtime error")
