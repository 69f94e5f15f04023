"""Rows of a parquet file, a few hundred at a time; wants the extra `prorl-celery[parquet]`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prorl_celery.data.files import Bad, Row, unreadable
from prorl_celery.errors import SettingsError

ROWS_AT_ONCE = 256
BUFFER_BYTES = 1 << 20
SAID_CHARACTERS = 200
STRANGE = (LookupError, ValueError, ArithmeticError)
"""What a value raises that Python cannot hold: a time beyond the year 9999 or in an unknown zone, bytes that are no
UTF-8 where text should be, a map with a key twice."""


@dataclass(frozen=True, slots=True)
class _Unknown:
    """A row of which a column cannot be had."""

    column: str
    message: str


def rows_of_parquet(file: Path) -> Iterator[Row | Bad]:
    """Each row as Python values, lists and objects included. A column that is null in a row is not in it: null is how
    a table says that there is nothing.

    Raises `SettingsError` without pyarrow, and for what is no parquet file.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise SettingsError(f"{file}: reading parquet wants pyarrow: pip install 'prorl-celery[parquet]'") from error
    number = 0
    try:
        with parquet.ParquetFile(file, pre_buffer=False, buffer_size=BUFFER_BYTES) as table:
            _check_names(table.schema_arrow.names, file)
            for batch in table.iter_batches(batch_size=ROWS_AT_ONCE, use_threads=False):
                for value in _values(batch):
                    number += 1
                    where = f"row {number}"
                    if isinstance(value, _Unknown):
                        yield Bad(number, where, value.message, value.column)
                    else:
                        yield Row(number, where, {name: one for name, one in value.items() if one is not None})
    except (pyarrow.ArrowException, OSError) as error:
        if number == 0:
            raise SettingsError(f"{file} cannot be read as parquet: {error}") from error
        yield unreadable(number + 1, f"row {number + 1}", error)


def _values(batch: Any) -> list[dict[str, Any]] | Iterator[dict[str, Any] | _Unknown]:
    try:
        values: list[dict[str, Any]] = batch.to_pylist(maps_as_pydicts="strict")
    except STRANGE:
        return _values_one_by_one(batch)
    return values


def _values_one_by_one(batch: Any) -> Iterator[dict[str, Any] | _Unknown]:
    for row in range(batch.num_rows):
        values: dict[str, Any] = {}
        unknown = None
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            try:
                values[name] = column[row].as_py(maps_as_pydicts="strict")
            except STRANGE as error:
                unknown = _Unknown(name, f"is no value that can be had: {str(error)[:SAID_CHARACTERS]}")
                break
        yield values if unknown is None else unknown


def _check_names(names: list[str], file: Path) -> None:
    """Raises `SettingsError` for a column that is there twice: a row could have but one of the two."""
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        raise SettingsError(f"{file} has more than one column {twice[0]!r}")
