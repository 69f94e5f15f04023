"""Files of problems, row by row: every form that they come in, and every way in which they are broken."""

from __future__ import annotations

import builtins
import gzip
import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prorl_celery.data import files_json
from prorl_celery.data.files import Bad, Row, rows_of
from prorl_celery.errors import SettingsError

FEW = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
ROWS = [{"a": 1, "text": "ä"}, {"a": 2}, {"a": [3]}]
LINES = b"".join(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in ROWS)


def file_of(folder: Path, data: bytes, name: str = "a.jsonl") -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def values(path: Path) -> list[Any]:
    found = list(rows_of(path))
    assert all(isinstance(row, Row) for row in found), found
    return [row.value for row in found if isinstance(row, Row)]


def only_bad(path: Path) -> list[str]:
    return [str(row) for row in rows_of(path) if isinstance(row, Bad)]


@pytest.mark.parametrize(
    ("name", "pack"),
    [
        ("a.jsonl", bytes),
        ("a.txt", bytes),
        ("a.jsonl.gz", gzip.compress),
        ("a.jsonl.zst", zstandard.compress),
        ("a.jsonl.gz", lambda data: gzip.compress(data[:9]) + gzip.compress(data[9:])),
        ("a.jsonl.zst", lambda data: zstandard.compress(data[:9]) + zstandard.compress(data[9:])),
    ],
)
def test_lines_are_rows_packed_or_not(tmp_path: Path, name: str, pack: Callable[[bytes], bytes]) -> None:
    assert values(file_of(tmp_path, pack(LINES), name)) == ROWS


@pytest.mark.parametrize(
    "data",
    [
        b"\xef\xbb\xbf" + LINES,
        LINES.replace(b"\n", b"\r\n"),
        b"\n  \n" + LINES + b"\n\n",
        LINES.rstrip(),
        json.dumps(ROWS, indent=2).encode(),
        b"\xef\xbb\xbf \n" + json.dumps(ROWS).encode() + b"\n ",
    ],
)
def test_what_editors_and_other_systems_put_into_files_does_no_harm(tmp_path: Path, data: bytes) -> None:
    assert values(file_of(tmp_path, data)) == ROWS


def test_an_empty_file_and_an_empty_array_have_no_rows(tmp_path: Path) -> None:
    assert values(file_of(tmp_path, b"")) == values(file_of(tmp_path, b" [ ] ")) == []


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b'{"a": 1}\n{\n{"a": 2}\n', "line 2: not JSON: Expecting property name"),
        (b'{"a": 1}\n\n[1]\n', "line 3: not a JSON object"),
        (b'{"a": 1}\n{"a": NaN}\n', "line 2: not JSON: NaN is no number"),
        (b'{"a": 1}\n{"a": -Infinity}\n', "line 2: not JSON: -Infinity is no number"),
        (b'{"a": 1}\n{"a": "\xff"}\n', "line 2: not UTF-8: byte 0xff at 8"),
        (b'{"a": 1}\n' + b'{"a":' * 100_000 + b"\n", "line 2: not JSON: maximum recursion"),
        (b'{"a": 1}\n{"a": 1} {"a": 2}\n', "line 2: not JSON: Extra data"),
    ],
)
def test_a_bad_line_is_named_and_the_others_are_read(tmp_path: Path, data: bytes, says: str) -> None:
    file = file_of(tmp_path, data)
    [told] = only_bad(file)
    assert told.startswith(says)
    assert next(iter(rows_of(file))) == Row(1, "line 1", {"a": 1})


def test_a_line_that_is_too_long_is_told_and_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files_json, "LONGEST_ROW_BYTES", 1 << 20)
    long = b'{"a": "' + b"x" * (5 << 20) + b'"}\n'
    file = file_of(tmp_path, b'{"a": 1}\n' + long + b'{"a": 2}\n')
    tracemalloc.start()
    found = list(rows_of(file))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found == [Row(1, "line 1", {"a": 1}), Bad(2, "line 2", "is longer than 1 MiB"), Row(3, "line 3", {"a": 2})]
    assert peak < 6 << 20


@pytest.mark.parametrize(("name", "pack"), [("a.jsonl.gz", gzip.compress), ("a.jsonl.zst", zstandard.compress)])
@pytest.mark.parametrize("cut", [3, 50, -1])
def test_a_packed_file_that_is_cut_off_ends_with_an_error_and_not_early(
    tmp_path: Path, name: str, pack: Callable[[bytes], bytes], cut: int
) -> None:
    import random

    noise = random.Random(1)
    lines = b"".join(b'{"a": "%d"}\n' % noise.getrandbits(300) for _ in range(2000))
    *_, last = rows_of(file_of(tmp_path, pack(lines)[:cut], name))
    assert isinstance(last, Bad)
    assert last.ends
    assert last.where.startswith("line ")
    assert "cannot be read on" in last.message


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.jsonl.zst"])
def test_what_is_not_packed_as_its_name_says_is_told(tmp_path: Path, name: str) -> None:
    assert "cannot be read on" in only_bad(file_of(tmp_path, LINES, name))[0]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b'[{"a": 1},\n {"a": }]', "line 2: not JSON: Expecting value"),
        (b'[{"a": 1}\n\n {"a": 2}]', "line 3: not JSON: ']' was expected, and '{' came"),
        (b'[{"a": 1},\n', "line 2: not JSON: Expecting value"),
        (b'[{"a": 1}]\n{"a": 2}', "line 2: not JSON: there is more behind the array's end"),
        (b'[{"a": 1},\n 7, {"a": 3}]', "item 2 (line 2): not a JSON object"),
        (b'[{"a": 1},\n {"a": NaN}]', "line 2: not JSON: NaN is no number"),
        (b'[{"a": 1},\n {"a": "\xff"}]', "line 1: not UTF-8"),
    ],
)
def test_what_is_wrong_in_an_array_is_told_with_its_line(tmp_path: Path, data: bytes, says: str) -> None:
    assert only_bad(file_of(tmp_path, data, "a.json"))[0].startswith(says)


@FEW
@given(
    rows=st.lists(st.dictionaries(st.text(), st.text() | st.integers() | st.none(), max_size=3), max_size=8),
    indent=st.sampled_from([None, 1]),
    piece=st.integers(1, 40),
)
def test_an_array_is_the_same_however_it_is_cut_into_pieces(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]], indent: int | None, piece: int
) -> None:
    file = file_of(tmp_path_factory.mktemp("array"), json.dumps(rows, indent=indent, ensure_ascii=False).encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files_json, "READ_BYTES", piece)
        assert values(file) == rows


def test_an_array_is_not_held_whole(tmp_path: Path) -> None:
    file = file_of(tmp_path, b"[" + b",".join(b'{"a": "%s"}' % (b"x" * 10_000) for _ in range(2000)) + b"]")
    tracemalloc.start()
    assert sum(1 for _ in rows_of(file)) == 2000
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 << 20


def test_a_file_that_is_not_there_or_no_file_is_told(tmp_path: Path) -> None:
    for path in (tmp_path / "none.jsonl", tmp_path):
        with pytest.raises(SettingsError, match="cannot be read"):
            list(rows_of(path))


def test_parquet_is_read_as_lists_and_objects_without_its_nulls(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    rows = [{"id": number, "tests": [{"input": "1"}], "name": None if number % 2 else "x"} for number in range(1000)]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet", row_group_size=100)
    found = list(rows_of(tmp_path / "a.parquet"))
    assert found[0] == Row(1, "row 1", {"id": 0, "tests": [{"input": "1"}], "name": "x"})
    assert found[999] == Row(1000, "row 1000", {"id": 999, "tests": [{"input": "1"}]})


def test_parquet_is_read_a_few_rows_at_a_time(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    table = pyarrow.table({"text": [f"{number} " + "x" * 10_000 for number in range(8000)]})
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=1000, compression="zstd", use_dictionary=False)
    del table
    pyarrow.default_memory_pool().release_unused()
    before = pyarrow.total_allocated_bytes()
    most = 0
    for row in rows_of(tmp_path / "a.parquet"):
        most = max(most, pyarrow.total_allocated_bytes() - before) if row.number % 100 == 0 else most
    assert most < 30 << 20  # of 80 MB


@pytest.mark.parametrize("data", [b"", b"PAR1", LINES])
def test_what_is_no_parquet_is_told(tmp_path: Path, data: bytes) -> None:
    pytest.importorskip("pyarrow")
    with pytest.raises(SettingsError, match="cannot be read as parquet"):
        list(rows_of(file_of(tmp_path, data, "a.parquet")))


def test_without_the_extra_parquet_is_refused_with_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(SettingsError, match=r"pip install 'prorl-celery\[parquet\]'"):
        list(rows_of(tmp_path / "a.parquet"))


@FEW
@given(data=st.binary(max_size=200), name=st.sampled_from(["a.jsonl", "a.json", "a.gz", "a.zst"]), array=st.booleans())
def test_any_bytes_are_rows_or_told(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, name: str, array: bool
) -> None:
    file = file_of(tmp_path_factory.mktemp("any"), b"[" + data if array else data, name)
    for row in rows_of(file):
        assert isinstance(row, Row | Bad)
