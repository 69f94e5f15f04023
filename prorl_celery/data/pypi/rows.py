"""An instance as its JSON file says it: a base release, a fixed one, hidden tests."""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from prorl_celery.errors import DatasetError

Archive = Literal["sdist", "wheel"]
ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
"""An instance's id, which is also a folder's name."""
PACKAGE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
VERSION = re.compile(r"[A-Za-z0-9.!+_-]+")
SHA256 = re.compile(r"[0-9a-f]{64}")
HIDDEN = ("fixed_version", "fixed_archive_sha256", "gold_files", "gold_diff_lines")
"""Fields that tell of the fix; no job has them."""
LIMIT_BYTES = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class PypiRow:
    """One instance. Paths are relative to the archive's top folder (of a wheel: to the wheel), and stay in it."""

    file: Path
    instance_id: str
    package: str
    base_version: str
    base_sha256: str | None
    fixed_version: str | None
    fixed_sha256: str | None
    archive: Archive
    source_root: str
    problem_statement: str
    test_file: str
    test_source: str
    test_command: str
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    gold_files: tuple[str, ...]
    extra_requirements: tuple[str, ...]
    fields: dict[str, Any]
    """All of it, as read."""


def files_of(places: Iterable[Path]) -> list[Path]:
    """The instance files that files and folders stand for: of a folder, its `*.json` in order.

    Raises: `DatasetError` for a place that is not there, and for a folder without any.
    """
    found: list[Path] = []
    for place in places:
        if place.is_dir():
            inside = sorted(path for path in place.glob("*.json") if path.is_file())
            if not inside:
                raise DatasetError(f"{place}: no *.json in this folder")
            found += inside
        elif place.is_file():
            found.append(place)
        else:
            raise DatasetError(f"{place}: there is no such file or folder")
    return found


def rows_of(path: Path) -> Iterator[PypiRow]:
    """The instances of a file: one JSON object, a list of such, or (`.jsonl`) one on each line.

    Raises: `DatasetError` that names the file, and the field where one is wrong.
    """
    try:
        if path.stat().st_size > LIMIT_BYTES:
            raise DatasetError(f"{path}: longer than {LIMIT_BYTES} bytes")
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".jsonl":
            values = [json.loads(line) for line in text.splitlines() if line.strip()]
        else:
            value = json.loads(text)
            values = value if isinstance(value, list) else [value]
    except OSError as error:
        raise DatasetError(f"{path}: {error.strerror or error}") from error
    except ValueError as error:
        raise DatasetError(f"{path}: not JSON: {error}") from error
    for value in values:
        if not isinstance(value, dict):
            raise DatasetError(f"{path}: an instance must be a JSON object, not {type(value).__name__}")
        yield row_of(value, path)


def row_of(value: dict[str, Any], path: Path) -> PypiRow:
    """An instance from its JSON. Raises: `DatasetError` that names the file and the field."""
    check = _Check(value, path)
    instance_id = check.matching("instance_id", ID)
    archive = check.text("archive", default="sdist")
    if archive not in ("sdist", "wheel"):
        check.fail("archive", f"must be sdist or wheel, not {archive!r}")
    test_file = check.path("test_file")
    row = PypiRow(
        file=path,
        instance_id=instance_id,
        package=check.matching("package", PACKAGE),
        base_version=check.matching("base_version", VERSION),
        base_sha256=check.optional("base_archive_sha256", SHA256),
        fixed_version=check.optional("fixed_version", VERSION),
        fixed_sha256=check.optional("fixed_archive_sha256", SHA256),
        archive="wheel" if archive == "wheel" else "sdist",
        source_root=check.path("source_root", default="."),
        problem_statement=check.text("problem_statement"),
        test_file=test_file,
        test_source=check.text("test_source"),
        test_command=check.text("test_command"),
        fail_to_pass=check.texts("FAIL_TO_PASS"),
        pass_to_pass=check.texts("PASS_TO_PASS", default=()),
        gold_files=tuple(check.inside("gold_files", name) for name in check.texts("gold_files", default=())),
        extra_requirements=check.texts("extra_requirements", default=()),
        fields=value,
    )
    if not row.fail_to_pass:
        check.fail("FAIL_TO_PASS", "is empty: no test would tell a fix")
    both = (*row.fail_to_pass, *row.pass_to_pass)
    if twice := sorted({name for name in both if both.count(name) > 1}):
        check.fail("PASS_TO_PASS", f"a test is listed twice: {twice[0]!r}")
    if row.test_file == ".":
        check.fail("test_file", "must be a file")
    for requirement in row.extra_requirements:
        if requirement.startswith("-") or "\n" in requirement:
            check.fail("extra_requirements", f"{requirement!r} is no requirement")
    return row


class _Check:
    """Reads fields, or says which of which file is wrong."""

    def __init__(self, value: dict[str, Any], path: Path) -> None:
        self._value, self._path = value, path

    def fail(self, field: str, problem: str) -> None:
        raise DatasetError(f"{self._path}: {field}: {problem}")

    def text(self, field: str, *, default: str | None = None) -> str:
        value = self._value.get(field, default)
        if field not in self._value and default is None:
            self.fail(field, "is missing")
        if not isinstance(value, str) or not value.strip() or "\0" in value:
            self.fail(field, f"must be text, not {str(value)[:60]!r}")
        return str(value)

    def texts(self, field: str, *, default: tuple[str, ...] | None = None) -> tuple[str, ...]:
        if field not in self._value and default is None:
            self.fail(field, "is missing")
        value = self._value.get(field, default)
        if not isinstance(value, list | tuple) or not all(isinstance(item, str) and item for item in value):
            self.fail(field, "must be a list of texts")
        return tuple(value or ())

    def matching(self, field: str, form: re.Pattern[str]) -> str:
        text = self.text(field)
        if not form.fullmatch(text):
            self.fail(field, f"cannot be {text[:60]!r}")
        return text

    def optional(self, field: str, form: re.Pattern[str]) -> str | None:
        return None if self._value.get(field) is None else self.matching(field, form)

    def path(self, field: str, *, default: str | None = None) -> str:
        return self.inside(field, self.text(field, default=default))

    def inside(self, field: str, text: str) -> str:
        path = posixpath.normpath(text)
        if text.startswith("/") or "\\" in text or path == ".." or path.startswith("../"):
            self.fail(field, f"{text!r} is no path below the archive's top folder")
        return path
