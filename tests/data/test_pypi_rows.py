"""An instance's JSON file: every wrong field is named, with its file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from prorl_celery.data.pypi.prepare import Preparation
from prorl_celery.data.pypi.rows import files_of, rows_of
from prorl_celery.errors import DatasetError

GOOD = {
    "instance_id": "lib-1", "package": "lib", "base_version": "1.0", "fixed_version": "1.1", "archive": "sdist",
    "source_root": "src", "problem_statement": "It breaks.", "test_file": "tests/test_x.py", "test_source": "x = 1\n",
    "test_command": "python -m pytest tests/test_x.py", "FAIL_TO_PASS": ["tests/test_x.py::test_a[b c]"],
    "PASS_TO_PASS": [], "gold_files": ["src/lib.py"], "extra_requirements": ["hypothesis"],
}  # fmt: skip


def write(folder: Path, **changes: Any) -> Path:
    path = folder / "lib-1.json"
    path.write_text(json.dumps({name: value for name, value in {**GOOD, **changes}.items() if value != "absent"}))
    return path


def test_a_good_row_is_read_and_has_defaults(tmp_path: Path) -> None:
    (row,) = rows_of(write(tmp_path, archive="absent", source_root="absent", extra_requirements="absent"))
    assert (row.archive, row.source_root, row.extra_requirements) == ("sdist", ".", ())
    assert row.fail_to_pass == ("tests/test_x.py::test_a[b c]",)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("package", "absent"), ("package", "-e ."), ("package", 7), ("base_version", "1.0; rm"), ("archive", "egg"),
        ("instance_id", "../up"), ("instance_id", "a/b"), ("source_root", "/usr"), ("source_root", "../x"),
        ("test_file", "../test_x.py"), ("test_file", "."), ("test_source", ""), ("test_command", None),
        ("FAIL_TO_PASS", []), ("FAIL_TO_PASS", "tests/test_x.py::test_a"), ("FAIL_TO_PASS", "absent"),
        ("PASS_TO_PASS", [1]), ("PASS_TO_PASS", ["tests/test_x.py::test_a[b c]"]), ("gold_files", ["/etc/passwd"]),
        ("base_archive_sha256", "abc"), ("extra_requirements", ["--index-url=http://evil"]),
        ("problem_statement", " "),
    ],
)  # fmt: skip
def test_a_wrong_field_is_named_with_its_file(tmp_path: Path, field: str, value: Any) -> None:
    path = write(tmp_path, **{field: value})
    with pytest.raises(DatasetError) as caught:
        list(rows_of(path))
    assert f"{path}: {field}: " in str(caught.value)


def test_files_are_found_in_folders_and_what_is_not_there_is_named(tmp_path: Path) -> None:
    path = write(tmp_path)
    assert files_of([tmp_path, path]) == [path, path]
    with pytest.raises(DatasetError, match="no such file"):
        files_of([tmp_path / "nowhere"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(DatasetError, match=r"no \*\.json"):
        files_of([tmp_path / "empty"])


def test_lists_and_lines_of_instances_are_read_and_nonsense_is_not(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps([GOOD, {**GOOD, "instance_id": "lib-2"}]))
    assert [row.instance_id for row in rows_of(tmp_path / "a.json")] == ["lib-1", "lib-2"]
    (tmp_path / "a.jsonl").write_text(json.dumps(GOOD) + "\n\n" + json.dumps(GOOD) + "\n")
    assert len(list(rows_of(tmp_path / "a.jsonl"))) == 2
    for text in ("{", "[1]", '"x"'):
        (tmp_path / "b.json").write_text(text)
        with pytest.raises(DatasetError, match=r"b\.json"):
            list(rows_of(tmp_path / "b.json"))


def test_gold_patches_are_not_kept_where_nodes_read(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="nodes read that"):
        Preparation(folder=tmp_path, python="3.11", gold=tmp_path / "gold")
