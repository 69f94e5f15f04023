"""Twenty programming problems in Codeforces' form, with programs that solve them, fail, dawdle or cheat."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any


@dataclass
class Task:
    """A problem; `inputs` makes its hidden tests' inputs, whose outputs are what `right` prints."""

    name: str
    statement: str
    inputs: Callable[[random.Random], list[str]]
    right: str
    wrong: str
    fields: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def instance(self) -> dict[str, Any]:
        """The instance, with a dozen tests."""
        inputs = self.inputs(random.Random(self.name))
        tests = [{"input": text, "output": printed(self.right, text)} for text in inputs]
        return {
            "data_source": "codeforces",
            "instance_id": self.name,
            "prompt": f"{self.name}. {self.statement}",
            "tests": tests,
            **self.fields,
        }


def printed(source: str, text: str) -> str:
    """What a program prints, run bare."""
    return subprocess.run(
        [sys.executable, "-I", "-c", source], input=text, capture_output=True, text=True, check=True, timeout=30
    ).stdout


def numbers(count: int, low: int, high: int) -> Callable[[random.Random], list[str]]:
    """A dozen inputs of one line of so many numbers."""

    def make(rng: random.Random) -> list[str]:
        return [" ".join(str(rng.randint(low, high)) for _ in range(count)) + "\n" for _ in range(12)]

    return make


def listed(longest: int, low: int, high: int) -> Callable[[random.Random], list[str]]:
    """A dozen inputs: a count, then so many numbers. One count is the longest."""

    def make(rng: random.Random) -> list[str]:
        counts = [rng.randint(1, min(30, longest)) for _ in range(11)] + [longest]
        return [f"{n}\n{' '.join(str(rng.randint(low, high)) for _ in range(n))}\n" for n in counts]

    return make


def words(rng: random.Random) -> list[str]:
    """A dozen words, palindromes among them."""
    found = ["".join(rng.choices("abc", k=rng.randint(1, 12))) for _ in range(12)]
    return [(word + word[::-1] if rng.random() < 0.4 else word) + "\n" for word in found]


READ = "n = int(input())\na = list(map(int, input().split()))\n"
PAIR = "a, b = map(int, input().split())\n"
TWO_OF = """import sys
given, expected, output = (open(path).read().split() for path in sys.argv[1:])
good = len(output) == 2 and int(output[0]) * int(output[1]) == int(given[0]) and int(output[0]) > 0
sys.exit(0 if good else 1)
"""

TASKS = [
    Task(
        "Sum",
        "Print the sum of two numbers.",
        numbers(2, -(10**9), 10**9),
        PAIR + "print(a + b)",
        PAIR + "print(a - b)",
    ),
    Task(
        "Greatest",
        "Print the greatest of n numbers.",
        listed(2000, -(10**6), 10**6),
        READ + "print(max(a))",
        READ + "print(a[0])",
    ),
    Task("Order", "Print n numbers in order.", listed(2000, 0, 10**6), READ + "print(*sorted(a))", READ + "print(*a)"),
    Task(
        "Divisor",
        "Print the greatest common divisor.",
        numbers(2, 1, 10**12),
        "import math\n" + PAIR + "print(math.gcd(a, b))",
        PAIR + "print(min(a, b))",
    ),
    Task(
        "Power",
        "Print a to the power of b, modulo 10^9 + 7.",
        numbers(2, 0, 10**15),
        PAIR + "print(pow(a, b, 10**9 + 7))",
        PAIR + "print(a * b % (10**9 + 7))",
    ),
    Task(
        "Palindrome",
        "Print YES for a palindrome, else NO, in any case.",
        words,
        "s = input()\nprint('YES' if s == s[::-1] else 'NO')",
        "input()\nprint('yes')",
        {"checker": "case_insensitive"},
    ),
    Task(
        "Mean",
        "Print the mean of n numbers to six places.",
        listed(100, 0, 99),
        READ + "print(sum(a) / n)",
        READ + "print(sum(a) // n + 0.5)",
        {"checker": {"kind": "float", "tolerance": 1e-5}},
    ),
    Task(
        "Distinct",
        "Print the distinct numbers, in any order, one a line.",
        listed(300, 0, 40),
        READ + "print(*set(a), sep='\\n')",
        READ + "print(*a, sep='\\n')",
        {"checker": "any_order_lines"},
    ),
    Task(
        "Evens",
        "Print the even numbers, in any order.",
        listed(300, 0, 99),
        READ + "print(*[x for x in a if x % 2 == 0])",
        READ + "print(*a)",
        {"checker": "any_order_tokens"},
    ),
    Task(
        "Two factors",
        "Print two positive numbers with this product.",
        numbers(1, 1, 10**6),
        "n = int(input())\nprint(1, n)",
        "n = int(input())\nprint(1, n + 1)",
        {"checker": {"kind": "program", "source": TWO_OF}},
    ),
    Task(
        "Primes",
        "Print how many primes there are up to n.",
        numbers(1, 1, 5000),
        "from math import isqrt\nn = int(input())\n"
        "print(sum(all(p % d for d in range(2, isqrt(p) + 1)) for p in range(2, n + 1)))",
        "n = int(input())\nprint(n // 2)",
    ),
    Task(
        "Fibonacci",
        "Print the n-th Fibonacci number, F(0) = 0.",
        numbers(1, 0, 2000),
        "n = int(input())\na, b = 0, 1\nfor _ in range(n): a, b = b, a + b\nprint(a)",
        "n = int(input())\nprint(n)",
    ),
    Task(
        "Inversions",
        "Print how many pairs are out of order.",
        listed(400, 0, 999),
        READ + "print(sum(a[i] > a[j] for i in range(n) for j in range(i + 1, n)))",
        READ + "print(sum(x > y for x, y in zip(a, a[1:])))",
    ),
    Task(
        "Run",
        "Print the greatest sum of a run of numbers.",
        listed(3000, -99, 99),
        READ + "b = c = a[0]\nfor x in a[1:]:\n    c = max(x, c + x)\n    b = max(b, c)\nprint(b)",
        READ + "print(sum(a))",
    ),
    Task(
        "Change",
        "Print the fewest coins of 1, 5, 12 that make n.",
        numbers(1, 1, 3000),
        "c = [0]\nfor i in range(1, int(input()) + 1): c.append(1 + min(c[i - k] for k in (1, 5, 12) if k <= i))\n"
        "print(c[-1])",
        "n = int(input())\nprint(n // 12 + n % 12 // 5 + n % 12 % 5)",
    ),
    Task(
        "Digits",
        "Print the sum of the digits.",
        numbers(1, 0, 10**18),
        "print(sum(map(int, input().strip())))",
        "print(len(input()))",
    ),
    Task(
        "Longest",
        "Print the length of the longest rising subsequence.",
        listed(2000, 0, 10**6),
        "from bisect import bisect_left\n"
        + READ
        + "t = []\nfor x in a:\n    i = bisect_left(t, x)\n    t[i:i + 1] = [x]\nprint(len(t))",
        READ + "print(len(set(a)))",
    ),
    Task("Reversed", "Print a word backwards.", words, "print(input()[::-1])", "print(input())", {"checker": "exact"}),
    Task(
        "Squares",
        "Print how many squares there are from a to a + b.",
        numbers(2, 1, 10**9),
        "from math import isqrt\n" + PAIR + "print(isqrt(a + b) - isqrt(a - 1))",
        PAIR + "print(b)",
    ),
    Task(
        "Deep",
        "Print how many numbers there are; recursion is welcome.",
        listed(20000, 0, 9),
        READ + "import sys\nsys.setrecursionlimit(10**6)\nf = lambda i: 0 if i == n else 1 + f(i + 1)\nprint(f(0))",
        READ + "print(n - 1)",
    ),
]

DAWDLES = "import time\n{right}\nend = time.process_time() + 60\nwhile time.process_time() < end: pass"
MISDEEDS = {
    "time limit": (DAWDLES, "import time\ntime.sleep(600)\n{right}", "import sys\nwhile True: sys.stdin.read()"),
    "output limit": ("while True: print('x' * 10_000)",),
    "memory limit": ("x = bytearray(100 << 30)\n{right}",),
    "runtime error": (
        "{right}\nraise SystemExit(1)",
        "{right}\nimport os, sys\nsys.stdout.flush()\nos.kill(os.getppid(), 9)",
        "{right}\nimport os, sys\nsys.stdout.flush()\nos.kill(-1, 9)",
        "{right}\nx = (",
    ),
    "wrong answer": ("import os\nos._exit(0)", "", "print(open('/workspace/case/answer').read() if 0 else 'cheat')"),
}
"""By the kind of failure: what is made of a right program."""
