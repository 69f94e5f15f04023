"""Runs in an eval's sandbox in place of `python -m pytest`, in the process that the library under test shares.

    python3 -s -S child.py PROGRAM ARGUMENTS...

The standard library and what came with the tests are found before the working directory and PYTHONPATH, whatever has
their names there. Each test's outcome goes to the guard over a pipe, each line with a token; after the last comes what
of pytest and the builtins is no longer what it was. All this happens beside the library's code, which could undo it:
what that is worth is told in `prorl_celery.grading.swe.pypi`.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.machinery
import importlib.util
import json
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
MESSAGE_CHARACTERS = 1500
PYTESTS = ("pytest", "py.test")
RUNNER = ("pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments", "py")
WATCHED = ("builtins", "pytest", "_pytest", "pluggy")
Sent = Callable[[dict[str, Any]], None]


def pytest_arguments(program: str, arguments: list[str]) -> list[str] | None:
    """What pytest is given by a command, or None for a command that runs something else. Options of Python's before
    `-m pytest` are dropped, but for `-W`, which counts.
    """
    if program in PYTESTS:
        return arguments
    at = 0
    while at < len(arguments) and arguments[at].startswith("-") and arguments[at] != "-":
        option = arguments[at]
        if option == "-m":
            return arguments[at + 2 :] if arguments[at + 1 : at + 2] == ["pytest"] else None
        if option == "-mpytest":
            return arguments[at + 1 :]
        if option == "-c":
            return None
        if option in ("-W", "-X"):
            at += 1
        if option.startswith("-W"):
            sys.warnoptions.append(arguments[at] if option == "-W" else option[2:])
        at += 1
    return None


class Trusted:
    """Finds modules that tests rely on where they belong, before any place that an agent could write to."""

    def __init__(self, names: set[str], paths: list[str]) -> None:
        self._names, self._paths = names, paths

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if path is None and name in self._names:
            return importlib.machinery.PathFinder.find_spec(name, self._paths, target)
        return None


def load_probe() -> Any:
    """The module that a control form imports."""
    spec = importlib.util.spec_from_file_location("_control_probe", HERE + "/probe.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["_control_probe"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def lay_path(facts: dict[str, Any], *, as_module: bool) -> None:
    """`sys.path`, and `Trusted` before it. `python -m pytest` has the working directory on it, `pytest` has not."""
    standard = [path for path in sys.path if path and os.path.abspath(path) != HERE]
    tools = [path for path in (facts["tools"],) if path]
    given = os.environ.pop("PRORL_PYTHONPATH", "")
    os.environ["PYTHONPATH"] = for_others(given, facts["tools"])
    # An empty entry is the working directory.
    wanted = [os.path.abspath(entry) for entry in given.split(os.pathsep)] if given else []
    here = [os.getcwd()] if as_module else []
    sys.path[:] = [*here, *wanted, *tools, *standard]
    stdlib = set(getattr(sys, "stdlib_module_names", ())) or top_level(standard)
    own = set(facts["base_names"])
    # Some package may bring a `tests` of its own; but what runs the tests is never the workspace's.
    came_with_tests = {name for name in top_level(tools) if name not in own or name in RUNNER}
    sys.meta_path.insert(0, Trusted(came_with_tests, tools))
    sys.meta_path.insert(1, Trusted(stdlib - own - came_with_tests, standard))
    sys.dont_write_bytecode = True


def for_others(given: str, tools: str) -> str:
    """PYTHONPATH of the programs that tests call: what they were given, and then what came with the tests."""
    return os.pathsep.join(entry for entry in (given, tools) if entry)


def top_level(paths: list[str]) -> set[str]:
    """Names of modules and packages in some folders."""
    found = set()
    for path in paths:
        if os.path.isdir(path):
            for name in os.listdir(path):
                stem, dot, rest = name.partition(".")
                if stem.isidentifier() and (not dot or rest.endswith(("py", "so"))):
                    found.add(stem)
    return found


class Reporter:
    """Tells what became of each test."""

    def __init__(self, send: Sent, escaped: list[str]) -> None:
        self._send, self._escaped = send, escaped
        self._config: Any = None

    def pytest_configure(self, config: Any) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: Any) -> None:
        node = str(report.nodeid)
        told: dict[str, Any] = {"id": node, "when": report.when, "outcome": report.outcome}
        told["also"] = self._seen_from_here(node)
        told["xfail"] = hasattr(report, "wasxfail")
        told["escaped"] = self._escaped[:1]
        self._escaped.clear()
        if report.outcome == "failed":
            told["message"] = str(report.longreprtext)[-MESSAGE_CHARACTERS:]
        self._send(told)

    def _seen_from_here(self, node: str) -> str:
        """A test's id as pytest prints it: its file relative to the folder that the command was called in."""
        path, colons, rest = node.partition("::")
        top, here = str(self._config.rootpath), str(self._config.invocation_params.dir)
        return os.path.relpath(os.path.join(top, path), here) + colons + rest

    def pytest_collectreport(self, report: Any) -> None:
        if report.outcome == "failed":
            self._send({"uncollected": str(report.nodeid), "message": str(report.longreprtext)[-MESSAGE_CHARACTERS:]})


def snapshot() -> dict[tuple[str, str], tuple[Any, Any]]:
    """What functions and classes pytest and the builtins consist of: by module and name, each with its code."""
    found: dict[tuple[str, str], tuple[Any, Any]] = {}
    for module in sorted(name for name in sys.modules if name.partition(".")[0] in WATCHED):
        for name, value in list(vars(sys.modules[module]).items()):
            if callable(value):
                found[module, name] = (value, getattr(value, "__code__", None))
            if isinstance(value, type) and value.__module__.partition(".")[0] in WATCHED[1:]:
                for inner, member in list(vars(value).items()):
                    if callable(member) or isinstance(member, (classmethod, staticmethod, property)):
                        found[module, name + "." + inner] = (member, getattr(member, "__code__", None))
    return found


def changed(before: dict[tuple[str, str], tuple[Any, Any]]) -> list[str]:
    """What is no longer as it was."""
    after = snapshot()
    gone = (None, None)
    return [
        ".".join(key) for key, (value, code) in before.items()
        if after.get(key, gone)[0] is not value or after.get(key, gone)[1] is not code
    ]  # fmt: skip


def sender() -> tuple[dict[str, Any], Sent]:
    """What the guard says of this run, and how to tell it something."""
    channel = int(os.environ.pop("PRORL_CHANNEL"))
    question = int(os.environ.pop("PRORL_QUESTION"))
    with os.fdopen(question, encoding="utf-8") as file:
        facts = json.loads(file.read())
    token, write = facts.pop("token"), os.write

    def send(told: dict[str, Any]) -> None:
        line = (token + json.dumps(told) + "\n").encode()
        while line:
            line = line[write(channel, line) :]

    return facts, send


def main() -> None:
    program, arguments = sys.argv[1], sys.argv[2:]
    given = pytest_arguments(program, list(arguments))
    tools = os.environ.pop("PRORL_TOOLS", "")
    if given is None or "PRORL_CHANNEL" not in os.environ:  # something before the tests, or called by them
        os.environ["PYTHONPATH"] = for_others(os.environ.pop("PRORL_PYTHONPATH", ""), tools)
        os.execv(sys.executable, [sys.executable, *(["-m", "pytest"] if program in PYTESTS else []), *arguments])
    facts, send = sender()
    lay_path(facts, as_module=program not in PYTESTS)
    with open(facts["test_file"], "rb") as file:
        if hashlib.sha256(file.read()).hexdigest() != facts["test_sha256"]:
            send({"end": None, "changed": ["the test file"]})
            os._exit(3)
    for option in sys.warnoptions:
        warnings._setoption(option)  # type: ignore[attr-defined]
    try:
        pytest = importlib.import_module("pytest")
        for name in importlib.import_module("_pytest.config").default_plugins:
            importlib.import_module("_pytest." + name)
    except ImportError as error:
        send({"no_pytest": str(error)})
        os._exit(4)
    probe = load_probe()  # in all runs, lest it tell them apart
    probe.report.append(lambda kinds: send({"alien": kinds}))
    if not any(argument.startswith("--confcutdir") for argument in given):
        # Else pytest may look through the folders above, which this process may not see.
        given.append("--confcutdir=" + facts["repository"])
    before, exit_now = snapshot(), os._exit
    sys.argv[:] = ["pytest", *given]
    code = int(pytest.main(given, plugins=[Reporter(send, probe.escaped)]))
    send({"end": code, "changed": changed(before)})
    sys.stdout.flush()
    sys.stderr.flush()
    exit_now(code)


if __name__ == "__main__":
    main()
