"""How the tests of a SWE-bench-form instance are run, and whose log format they print.

An instance may say all of it (`eval_script`, `log_parser`, `eval_type`: SWE-bench since its fifth release), or its test
command (`test_cmd`, `log_parser`), or nothing but `repo`: then the command is that of the repository, as SWE-bench and
SWE-Gym have published it, with the files that its `test_patch` changes behind it. The names of log parsers are those of
the package `swebench`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from shlex import quote
from typing import Any

from prorl_celery.errors import BadInstance
from prorl_celery.grading.swe.form import Instance

PYTEST = "pytest -rA"
ASTROPY = "pytest -rA -vv -o console_output_style=classic --tb=no"
ALONE = "pytest -n0 -rA"
DJANGO = "./tests/runtests.py --verbosity 2 --settings=test_sqlite --parallel 1"
UTF8 = "export LANG=en_US.UTF-8 LC_ALL=en_US.UTF-8 LANGUAGE=en_US:en PYTHONIOENCODING=utf8"
HERE = "export PYTHONPATH=${PYTHONPATH:-}:$PWD"

COMMANDS: Mapping[str, tuple[str, str, str]] = {
    # SWE-bench
    "astropy/astropy": (ASTROPY, "parse_log_astropy", ""),
    "django/django": (DJANGO, "parse_log_django", UTF8),
    "marshmallow-code/marshmallow": (PYTEST, "parse_log_marshmallow", ""),
    "matplotlib/matplotlib": (PYTEST, "parse_log_matplotlib", ""),
    "mwaskom/seaborn": ("pytest --no-header -rA", "parse_log_seaborn", ""),
    "pallets/flask": (PYTEST, "parse_log_flask", ""),
    "psf/requests": (PYTEST, "parse_log_requests", ""),
    "pvlib/pvlib-python": (PYTEST, "parse_log_pvlib", ""),
    "pydata/xarray": (PYTEST, "parse_log_xarray", ""),
    "pydicom/pydicom": (PYTEST, "parse_log_pydicom", ""),
    "pylint-dev/astroid": (PYTEST, "parse_log_astroid", ""),
    "pylint-dev/pylint": (PYTEST, "parse_log_pylint", ""),
    "pytest-dev/pytest": (PYTEST, "parse_log_pytest", ""),
    "pyvista/pyvista": (PYTEST, "parse_log_pyvista", ""),
    "scikit-learn/scikit-learn": (PYTEST, "parse_log_scikit", ""),
    "sphinx-doc/sphinx": ("tox --current-env -epy39 -v --", "parse_log_sphinx", ""),
    "sqlfluff/sqlfluff": (PYTEST, "parse_log_sqlfluff", ""),
    "sympy/sympy": (
        "PYTHONWARNINGS='ignore::UserWarning,ignore::SyntaxWarning' bin/test -C --verbose", "parse_log_sympy", "",
    ),
    # SWE-Gym
    "bokeh/bokeh": (ALONE, "parse_log_pytest", ""),
    "conan-io/conan": (ALONE, "parse_log_pytest", HERE),
    "dask/dask": (ALONE + " --color=no", "parse_log_pytest", ""),
    "facebookresearch/hydra": (PYTEST + " --tb=long", "parse_log_pytest", ""),
    "getmoto/moto": (ALONE, "parse_log_pytest", ""),
    "iterative/dvc": (PYTEST, "parse_log_pytest", ""),
    "modin-project/modin": (ALONE, "parse_log_pytest", ""),
    "pandas-dev/pandas": (PYTEST + " --tb=long", "parse_log_pytest", ""),
    "project-monai/monai": (PYTEST, "parse_log_pytest", ""),
    "pydantic/pydantic": (
        "pytest -rA --tb=short -vv -o console_output_style=classic --no-header", "parse_log_pytest_v2", "",
    ),
    "python/mypy": (ALONE + " -k", "parse_log_pytest", ""),
}  # fmt: skip
"""By repository, in small letters: test command, log parser, what is set before it."""

EVAL_TYPES = ("pass_and_fail", "fail_only")
NO_TESTS = (".json", ".png", "csv", ".txt", ".md", ".jpg", ".jpeg", ".pkl", ".yml", ".yaml", ".toml")
"""Ends of names of files that a test patch brings along and that are no arguments of a test command."""
CHANGED = re.compile(r'^diff --git (?:"a/.*" "b/(?P<quoted>.*)"|a/.* b/(?P<plain>.*))$', re.M)
ESCAPE = re.compile(r'\\([0-7]{3}|[abtnvfr"\\])')
CASE = re.compile(r"\[case ([^\]\s]+)\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """How an instance's tests are run."""

    parser: str
    eval_type: str
    script: str | None = None
    """A whole script, which also lays the tests; else `command`."""
    command: str = ""
    setup: str = ""


def spec_of(instance: Instance) -> Spec:
    """What an instance says, or what is known of its repository. Raises: `BadInstance` that names the field."""
    known = COMMANDS.get(str(instance.get("repo", "")).lower())
    eval_type = _text(instance, "eval_type") or EVAL_TYPES[0]
    if eval_type not in EVAL_TYPES:
        raise BadInstance(f"eval_type is one of {', '.join(EVAL_TYPES)}, not {eval_type!r}", field="eval_type")
    parser = _text(instance, "log_parser") or (known[1] if known else "")
    script, command = _text(instance, "eval_script"), _command(instance)
    if not parser or not (script or command or known):
        raise BadInstance(
            f"how the tests of {instance.get('repo')!r} are run is not known: the instance must say it by "
            "`eval_script` or `test_cmd`, with `log_parser`",
            field="repo",
        )
    if parser not in parsers():
        raise BadInstance(f"the package swebench has no log parser {parser!r}", field="log_parser")
    if script:
        return Spec(parser=parser, eval_type=eval_type, script=script)
    if not command and known:
        command = f"{known[0]} {directives(instance)}"
    return Spec(parser=parser, eval_type=eval_type, command=command, setup=known[2] if known else "")


def directives(instance: Instance) -> str:
    """What a repository's test command is given to run: the files that the test patch changes, or their modules."""
    repo, patch = str(instance["repo"]).lower(), str(instance["test_patch"])
    if repo == "python/mypy":
        return quote(" or ".join(dict.fromkeys(CASE.findall(patch))))
    files = [name for name in changed_files(patch) if not name.endswith(NO_TESTS)]
    if repo == "django/django":
        files = [name.removesuffix(".py").removeprefix("tests/").replace("/", ".") for name in files]
    return " ".join(map(quote, files))


def changed_files(patch: str) -> tuple[str, ...]:
    """The files that a patch of the instance's changes, by the names they have behind it."""
    found = (match["plain"] or _unquoted(match["quoted"]) for match in CHANGED.finditer(patch))
    return tuple(dict.fromkeys(found))


def _unquoted(name: str) -> str:
    """A name that git has put in quotes: octal escapes for what is not ASCII, others as in C."""
    plain = {"a": 7, "b": 8, "t": 9, "n": 10, "v": 11, "f": 12, "r": 13, '"': 34, "\\": 92}
    parts = ESCAPE.split(name)
    codes = bytearray()
    for text, escape in zip(parts[::2], [*parts[1::2], ""], strict=True):
        codes += text.encode()
        if escape:
            codes.append(plain[escape] if escape in plain else int(escape, 8) & 255)
    return codes.decode("utf-8", "surrogateescape")


@cache
def parsers() -> frozenset[str]:
    """The names of the log parsers that the package has, without importing it: that takes a second and 1,600 modules.

    Raises: `BadInstance` where it is not installed.
    """
    found = find_spec("swebench")
    places = list(found.submodule_search_locations or ()) if found else []
    if not places:
        raise BadInstance(
            "SWE-bench-form instances need the package swebench: pip install 'prorl-celery[swe]'", field="data_source"
        )
    text = Path(places[0], "harness", "log_parsers", "__init__.py").read_text(encoding="utf-8")
    return frozenset(re.findall(r'"(parse_\w+)":', text))


def _command(instance: Instance) -> str:
    given: Any = instance.get("test_cmd") or ""
    if isinstance(given, list) and given and all(isinstance(each, str) for each in given):
        return "\n".join(given)
    if not isinstance(given, str):
        raise BadInstance("test_cmd must be a command, or a list of them", field="test_cmd")
    return given


def _text(instance: Instance, field: str) -> str:
    given = instance.get(field) or ""
    if not isinstance(given, str):
        raise BadInstance(f"{field} must be text, not {type(given).__name__}", field=field)
    return given
