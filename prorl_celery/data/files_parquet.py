"""Rows of a parquet file, a few hundred at a time; wants the extra `prorl-celery[parquet]`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prorl_celery.data.files import Bad, Row, unreadable
from prorl_celery.errors import SettingsError

ROWS_AT_ONCE = 256
BUFFER_BYTES = 1 << 20


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
            for batch in table.iter_batches(batch_size=ROWS_AT_ONCE, use_threads=False):
                for value in _values(batch):
                    number += 1
                    yield Row(number, f"row {number}", {name: one for name, one in value.items() if one is not None})
    except (pyarrow.ArrowException, OSError) as error:
        if number == 0:
            raise SettingsError(f"{file} cannot be read as parquet: {error}") from error
        yield unreadable(number + 1, f"row {number + 1}", error)


def _values(batch: Any) -> list[dict[str, Any]]:
    values: list[dict[str, Any]] = batch.to_pylist(maps_as_pydicts="strict")
    return values
