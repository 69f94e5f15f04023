"""What a table can hold and a row of JSON cannot: told with row and column, and the other rows are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from prorl_celery.data.files import Bad, Row, rows_of
from prorl_celery.errors import SettingsError

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

NO_TEXT = pyarrow.Array.from_buffers(
    pyarrow.string(), 2, [None, pyarrow.py_buffer(b"\0\0\0\0\1\0\0\0\3\0\0\0"), pyarrow.py_buffer(b"a\xff\xfe")]
)


def written(folder: Path, table: Any) -> Path:
    parquet.write_table(table, folder / "a.parquet")
    return folder / "a.parquet"


@pytest.mark.parametrize(
    ("column", "says"),
    [
        (pyarrow.array([None, 2**62], pyarrow.timestamp("us")), "out of range"),
        (pyarrow.array([None, 1], pyarrow.timestamp("us", tz="Nowhere/Land")), "Nowhere/Land"),
        (pyarrow.array([None, 2**62], pyarrow.duration("s")), "too large"),
        (pyarrow.array([[], [("a", 1), ("a", 2)]], pyarrow.map_(pyarrow.string(), pyarrow.int64())), "duplicate key"),
        (NO_TEXT, "can't decode byte 0xff"),
    ],
    ids=["a far time", "an unknown zone", "a long time", "a key twice", "no UTF-8"],
)
def test_a_value_that_python_cannot_hold_is_told_and_the_other_rows_are_read(
    tmp_path: Path, column: Any, says: str
) -> None:
    first, second = rows_of(written(tmp_path, pyarrow.table({"number": [1, 2], "odd": column})))
    assert isinstance(first, Row)
    assert first.value["number"] == 1
    assert isinstance(second, Bad)
    assert (second.where, second.field, second.ends) == ("row 2", "odd", False)
    assert says in second.message


def test_a_column_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    table = pyarrow.Table.from_arrays([pyarrow.array([1]), pyarrow.array([2])], names=["answer", "answer"])
    with pytest.raises(SettingsError, match="more than one column 'answer'"):
        list(rows_of(written(tmp_path, table)))


def test_a_table_without_rows_has_none(tmp_path: Path) -> None:
    assert list(rows_of(written(tmp_path, pyarrow.table({"number": pyarrow.array([], pyarrow.int64())})))) == []
