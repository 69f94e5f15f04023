"""A programming problem as its instance states it: form of the tests, limits, checker, scoring.

Tests, in the first of these fields that is there and not null; JSON text of each is read too:

    test                       HumanEval: the source of `check(candidate)`, with `entry_point`
    test_list                  MBPP: assertions; `test_setup_code`, `test_imports` before them
    input_output, tests, official_tests, private_tests, ground_truth
                               `[{"input", "output"}]`, or `{"inputs": [...], "outputs": [...]}` (or without the s);
                               with `fn_name` the inputs are lists of arguments, and the outputs what is returned

Of several of CodeContests' (`public_tests`, `private_tests`, `generated_tests`) all count. Limits hold for each case:

    time_limit                 seconds of CPU, 4 by default, 30 for a whole `check`; a number, or "2.0 seconds", or
                               `{"seconds", "nanos"}`
    memory_limit               megabytes (2^20 bytes), 512 by default; a number, or "256 megabytes"
    memory_limit_bytes         bytes
    total_time_limit           seconds for all cases together, 300 by default

`checker` is a name or `{"kind": ..., "tolerance": ..., "source": ...}` (`checkers`; `program`: `checker_program`),
`scoring` is `all` (the default) or `fraction`, `language` `python` (the default) or `cpp`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from prorl_celery.errors import BadInstance
from prorl_celery.grading.code.checkers import DEFAULT_TOLERANCE, KINDS
from prorl_celery.grading.code.forms import Asserts, Cases, Check, tests_of

TIME_LIMIT_SECONDS = 4.0
CHECK_SECONDS = 30.0
MEMORY_LIMIT_MB = 512.0
TOTAL_SECONDS = 300.0
MOST_SECONDS = 3600.0
SMALLEST_MEMORY = 16 << 20
LARGEST_MEMORY = 1 << 40
LANGUAGES = ("python", "cpp")
PROMPTS = ("prompt", "problem", "question", "description", "text", "problem_statement")
_QUANTITY = re.compile(
    r"\s*([0-9.]+)\s*(s|sec|seconds?|ms|milliseconds?|b|bytes|kb|kilobytes|mb|megabytes|gb|gigabytes)?\s*"
)
_UNITS = {"ms": 1e-3, "mi": 1e-3, "s": 1.0, "se": 1.0, "b": 2.0**-20, "by": 2.0**-20, "kb": 2.0**-10, "ki": 2.0**-10,
          "mb": 1.0, "me": 1.0, "gb": 1024.0, "gi": 1024.0}  # fmt: skip


@dataclass(frozen=True, slots=True)
class CheckerSpec:
    """Which checker, with what it needs."""

    kind: str
    tolerance: float = DEFAULT_TOLERANCE
    source: str = ""
    """The checker's program, of kind `program`."""


@dataclass(frozen=True, slots=True)
class Problem:
    """An instance, read."""

    prompt: str
    starter: str
    tests: Check | Asserts | Cases
    time_limit_seconds: float
    memory_limit_bytes: int
    total_seconds: float
    checker: CheckerSpec
    scoring: Literal["all", "fraction"]
    language: str


def problem_of(instance: Mapping[str, Any]) -> Problem:
    """Read an instance. Raises `BadInstance` that names the field."""
    memory = _memory(instance)
    tests = tests_of(instance)
    scoring = instance.get("scoring") or "all"
    if scoring not in ("all", "fraction"):
        raise BadInstance("'scoring' must be 'all' or 'fraction'", field="scoring")
    language = instance.get("language") or "python"
    if not isinstance(language, str) or language.lower() not in LANGUAGES:
        raise BadInstance(f"'language' must be one of {', '.join(LANGUAGES)}", field="language")
    language = language.lower()
    if language != "python" and not (isinstance(tests, Cases) and tests.function is None):
        raise BadInstance("tests of a function are for Python alone", field="language")
    return Problem(
        prompt=_prompt(instance),
        starter=_text(instance, "starter_code"),
        tests=tests,
        time_limit_seconds=_limit(
            instance, "time_limit", CHECK_SECONDS if isinstance(tests, Check) else TIME_LIMIT_SECONDS, MOST_SECONDS
        ),
        memory_limit_bytes=memory,
        total_seconds=_limit(instance, "total_time_limit", TOTAL_SECONDS, MOST_SECONDS * 24),
        checker=_checker(instance, tests),
        scoring="all" if scoring == "all" else "fraction",
        language=language,
    )


def _prompt(instance: Mapping[str, Any]) -> str:
    for name in PROMPTS:
        value = instance.get(name)
        if value is not None:
            if not isinstance(value, str) or not value.strip():
                raise BadInstance(f"{name!r} must be text, and say something", field=name)
            return value
    raise BadInstance("the instance has no 'prompt'", field="prompt")


def _text(instance: Mapping[str, Any], name: str) -> str:
    value = instance.get(name) or ""
    if not isinstance(value, str):
        raise BadInstance(f"{name!r} must be text", field=name)
    return value


def _limit(instance: Mapping[str, Any], name: str, default: float, most: float) -> float:
    """A positive number of the field's unit. Raises `BadInstance`."""
    value = instance.get(name)
    if value is None:
        return default
    number: float | None = None
    if isinstance(value, Mapping):
        seconds, nanos = value.get("seconds", 0), value.get("nanos", 0)
        if _is_number(seconds) and _is_number(nanos):
            number = seconds + nanos / 1e9
    elif isinstance(value, str):
        found = _QUANTITY.fullmatch(value.lower())
        if found and found[1].count(".") < 2 and found[1] != ".":
            number = float(found[1]) * _UNITS.get((found[2] or "")[:2], 1.0)
    elif _is_number(value):
        number = float(value)
    if number is None or not 0 < number <= most:
        raise BadInstance(f"{name!r} must be a positive number, at most {most:g}, not {str(value)[:80]!r}", field=name)
    return number


def _memory(instance: Mapping[str, Any]) -> int:
    if instance.get("memory_limit_bytes") is not None:
        name, size = "memory_limit_bytes", _limit(instance, "memory_limit_bytes", 0.0, LARGEST_MEMORY)
    else:
        name, size = "memory_limit", _limit(instance, "memory_limit", MEMORY_LIMIT_MB, LARGEST_MEMORY / 2**20) * 2**20
    if size < SMALLEST_MEMORY:
        raise BadInstance(f"{name!r} is {size:.0f} bytes; a program needs {SMALLEST_MEMORY}", field=name)
    return int(size)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _checker(instance: Mapping[str, Any], tests: Check | Asserts | Cases) -> CheckerSpec:
    value = instance.get("checker") or "tokens"
    if isinstance(value, str):
        value = {"kind": value}
    kind = value.get("kind") if isinstance(value, Mapping) else None
    if kind not in (*KINDS, "program"):
        raise BadInstance(f"'checker' must be one of {', '.join(KINDS)}, program", field="checker")
    if isinstance(tests, Check | Asserts) and kind != "tokens":
        raise BadInstance("tests that are Python check by themselves", field="checker")
    if isinstance(tests, Cases) and tests.function and kind in ("program", "case_insensitive"):
        raise BadInstance(f"what a function returns cannot be checked by {kind!r}", field="checker")
    tolerance, source = value.get("tolerance", DEFAULT_TOLERANCE), value.get("source", "")
    if not _is_number(tolerance) or not 0 <= tolerance < 1e9:
        raise BadInstance("'tolerance' must be a number, and not negative", field="checker.tolerance")
    if kind == "program" and (not isinstance(source, str) or not source.strip()):
        raise BadInstance("a checker of kind 'program' has its program in 'source'", field="checker.source")
    return CheckerSpec(kind, float(tolerance), source if kind == "program" else "")
