"""The tests of a problem, in the forms that data sets have them in."""

from __future__ import annotations

import ast
import builtins
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prorl_celery.errors import BadInstance

FIELDS = ("input_output", "tests", "official_tests", "private_tests", "ground_truth")
CODECONTESTS = ("public_tests", "private_tests", "generated_tests")
MOST_CASES = 100_000


@dataclass(frozen=True, slots=True)
class Check:
    """`check(candidate)`, which raises when a test fails."""

    source: str
    entry_point: str
    helpers: str
    """Source of what the tests use beside the candidate: the prompt."""


@dataclass(frozen=True, slots=True)
class Asserts:
    """Statements that raise when a test fails, and call functions of the solution by name."""

    statements: tuple[str, ...]
    setup: str
    names: tuple[str, ...]
    """The solution's functions."""


@dataclass(frozen=True, slots=True)
class Cases:
    """Inputs and what is expected: text, or, for a function, arguments and what it returns."""

    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    function: str | None = None
    wrapped: bool = False
    """Each output is a list of one, which may mean what is in it."""


def tests_of(instance: Mapping[str, Any]) -> Check | Asserts | Cases:
    """Find and read the tests. Raises `BadInstance` that names the field."""
    if instance.get("test") is not None:
        return _check(instance)
    if instance.get("test_list") is not None:
        return _asserts(instance)
    name = next((name for name in FIELDS if instance.get(name) is not None), None)
    if name is None:
        raise BadInstance("the instance has neither 'test', 'test_list' nor 'tests'", field="tests")
    names = [n for n in CODECONTESTS if instance.get(n)] if name == "private_tests" else [name]
    cases = [_cases(_unpacked(instance[n], n), n, instance) for n in names or [name]]
    inputs = tuple(value for part in cases for value in part.inputs)
    if not inputs:
        raise BadInstance(f"{name!r} is empty", field=name)
    if len(inputs) > MOST_CASES:
        raise BadInstance(f"{len(inputs)} cases are too many: {MOST_CASES} at most", field=name)
    outputs = tuple(value for part in cases for value in part.outputs)
    return Cases(inputs, outputs, cases[0].function, all(part.wrapped for part in cases))


def _check(instance: Mapping[str, Any]) -> Check:
    source, entry_point = instance["test"], instance.get("entry_point")
    if not isinstance(source, str) or not source.strip():
        raise BadInstance("'test' must be the source of check(candidate)", field="test")
    if not isinstance(entry_point, str) or not entry_point.isidentifier():
        raise BadInstance("'entry_point' is not a Python name", field="entry_point")
    prompt = instance.get("prompt")
    return Check(source, entry_point, prompt if isinstance(prompt, str) else "")


def _asserts(instance: Mapping[str, Any]) -> Asserts:
    statements = _unpacked(instance["test_list"], "test_list")
    if not isinstance(statements, list) or not statements or not all(isinstance(s, str) for s in statements):
        raise BadInstance("'test_list' must be a list of assertions", field="test_list")
    setup = [instance.get("test_setup_code") or "", *(instance.get("test_imports") or [])]
    if not all(isinstance(part, str) for part in setup):
        raise BadInstance("'test_setup_code' must be text, 'test_imports' a list of it", field="test_setup_code")
    source = "\n".join(setup)
    defined = _names(_parsed(source, "test_setup_code"), ast.Store) | set(dir(builtins))
    wanted: dict[str, None] = {}
    for number, statement in enumerate(statements):
        tree = _parsed(statement, f"test_list.{number}")
        own = _names(tree, ast.Store)
        calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
        wanted |= {f.id: None for f in calls if isinstance(f, ast.Name) and f.id not in defined | own}
    entry_point = instance.get("entry_point")
    if isinstance(entry_point, str) and entry_point.isidentifier():
        wanted = {entry_point: None}
    if not wanted:
        raise BadInstance("no assertion calls a function of the solution", field="test_list")
    return Asserts(tuple(statements), source, tuple(wanted))


def _parsed(source: str, field: str) -> ast.Module:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise BadInstance(f"{field!r} is not Python: {error}", field=field) from error


def _names(tree: ast.Module, context: type[ast.expr_context]) -> set[str]:
    """What a piece of source defines: names assigned, imported, of functions and classes."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, context):
            found.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
    return found


def _unpacked(value: Any, field: str) -> Any:
    """What JSON text says, or the value itself. Raises `BadInstance`."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise BadInstance(f"{field!r} is text that is not JSON: {error}", field=field) from error


def _cases(value: Any, field: str, instance: Mapping[str, Any]) -> Cases:
    function = instance.get("fn_name")
    if isinstance(value, Mapping):
        inputs = value.get("inputs", value.get("input"))
        outputs = value.get("outputs", value.get("output"))
        function = value.get("fn_name") or function
    elif isinstance(value, list):
        if not all(isinstance(test, Mapping) and "input" in test and "output" in test for test in value):
            wrong = next(
                i for i, t in enumerate(value) if not (isinstance(t, Mapping) and {"input", "output"} <= t.keys())
            )
            raise BadInstance("a test is {'input': ..., 'output': ...}", field=f"{field}.{wrong}")
        inputs, outputs = [test["input"] for test in value], [test["output"] for test in value]
        function = next((name for test in value if (name := _function_of(test))), None) or function
    else:
        raise BadInstance(f"{field!r} must be a list of tests, or inputs and outputs", field=field)
    if not isinstance(inputs, list) or not isinstance(outputs, list):
        raise BadInstance(f"{field!r} must have a list of inputs and one of outputs", field=field)
    if len(inputs) != len(outputs):
        raise BadInstance(f"{field!r} has {len(inputs)} inputs and {len(outputs)} outputs", field=field)
    if function is None:
        return Cases(_texts(inputs, f"{field}.inputs"), _texts(outputs, f"{field}.outputs"))
    if not isinstance(function, str) or not function.isidentifier():
        raise BadInstance("'fn_name' is not a Python name", field=f"{field}.fn_name")
    arguments = tuple(_arguments(given, f"{field}.inputs.{i}") for i, given in enumerate(inputs))
    if all(isinstance(given, str) for given in inputs):
        return Cases(arguments, tuple(_unpacked_or_text(given) for given in outputs), function)
    return Cases(arguments, tuple(outputs), function, all(isinstance(o, list) and len(o) == 1 for o in outputs))


def _function_of(test: Mapping[str, Any]) -> Any:
    metadata = test.get("metadata")
    return test.get("fn_name") or (metadata.get("func_name") if isinstance(metadata, Mapping) else None)


def _texts(values: Sequence[Any], field: str) -> tuple[str, ...]:
    """Texts; a list of lines is one too."""
    found = []
    for number, value in enumerate(values):
        if isinstance(value, list) and all(isinstance(line, str) for line in value):
            value = "\n".join(value) + "\n"
        if not isinstance(value, str):
            raise BadInstance(f"{field}.{number} must be text, not {type(value).__name__}", field=f"{field}.{number}")
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise BadInstance(f"{field}.{number} is no text: {error.reason}", field=f"{field}.{number}") from error
        found.append(value)
    return tuple(found)


def _arguments(value: Any, field: str) -> list[Any]:
    """A list of arguments, or text with the JSON of one in each line."""
    if isinstance(value, str):
        return [_unpacked(line, field) for line in value.split("\n") if line.strip()]
    if not isinstance(value, list):
        raise BadInstance(f"{field} must be a list of arguments, or a text of lines of JSON", field=field)
    return value


def _unpacked_or_text(value: Any) -> Any:
    try:
        return json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return value
