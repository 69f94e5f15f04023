"""Columns of a file as fields of an instance: by a small file, or by a name for a data set that many use.

A map's file is TOML or JSON:

    data_source = "math"                     # the handler; or a column or constant of that name
    keep = true                              # the other columns stay, under their own names; default: they do not
    optional = ["level"]                     # fields whose column may be missing or null
    json = ["tests"]                         # fields whose column holds JSON as text

    [columns]                                # field of the instance = column; dots lead into objects and lists
    problem = "prompt.0.content"
    answer = "reward_model.ground_truth"
    tests = "input_output"
    level = "extra.level"

    [constants]
    judge = false
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from prorl_celery.errors import BadInstance, SettingsError

Instance = dict[str, Any]
ToInstance = Callable[[Mapping[str, Any]], Instance]
"""Gives the instance of a row. Raises `BadInstance` for a row that lacks something."""


class ColumnMap(BaseModel):
    """A map as its file says it; called with a row, gives the instance."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    data_source: str | None = None
    columns: dict[str, str] = Field(default_factory=dict)
    constants: dict[str, Any] = Field(default_factory=dict)
    keep: bool = False
    optional: tuple[str, ...] = ()
    json_text: tuple[str, ...] = Field((), alias="json")

    def __call__(self, row: Mapping[str, Any]) -> Instance:
        used = {_first(path, row) for path in self.columns.values()}
        instance = {name: value for name, value in row.items() if name not in used} if self.keep else {}
        for field, path in self.columns.items():
            try:
                value = value_at(row, path)
            except LookupError:
                value = None
            if value is None:
                if field in self.optional:
                    continue
                raise BadInstance(f"the row has no column {path!r}, or it is null", field=field)
            instance[field] = from_json(value, field) if field in self.json_text else value
        instance |= self.constants
        if self.data_source is not None:
            instance["data_source"] = self.data_source
        return instance


def load_map(file: Path) -> ColumnMap:
    """The map of a file. Raises `SettingsError` that names the file and what is wrong in it."""
    value = load_table(file)
    try:
        found = ColumnMap.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise SettingsError(f"{file}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    if strangers := {*found.optional, *found.json_text} - set(found.columns):
        raise SettingsError(f"{file}: optional or json names {', '.join(sorted(strangers))}, which columns does not")
    named = found.data_source is not None or "data_source" in {*found.columns, *found.constants}
    if not named and not found.keep:
        raise SettingsError(f"{file}: says no data_source, so no handler would be found")
    return found


def load_table(file: Path) -> dict[str, Any]:
    """What a small TOML or JSON file holds. Raises `SettingsError`."""
    try:
        data = file.read_bytes()
    except OSError as error:
        raise SettingsError(f"{file} cannot be read: {error.strerror}") from error
    try:
        value = json.loads(data) if file.suffix.lower() == ".json" else tomllib.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"{file}: {error}") from error
    if not isinstance(value, dict):
        raise SettingsError(f"{file}: is no table of names and values")
    return value


def value_at(row: Mapping[str, Any], path: str) -> Any:
    """The value of a column: by its whole name, else by a dotted path. Raises LookupError where it leads nowhere."""
    if path in row:
        return row[path]
    value: Any = row
    for part in path.split("."):
        if isinstance(value, Mapping):
            value = value[part]
        elif isinstance(value, list | tuple) and part.isdecimal():
            value = value[int(part)]
        else:
            raise LookupError(path)
    return value


def from_json(value: Any, field: str) -> Any:
    """What JSON text holds; a value that is no text as it is. Raises `BadInstance`."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise BadInstance(f"is not JSON: {error}", field=field) from error


def _first(path: str, row: Mapping[str, Any]) -> str:
    return path if path in row else path.split(".", 1)[0]
