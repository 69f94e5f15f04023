r"""A row of a mathematical data set as an instance of the `math` handler, whatever its columns are called.

The problem is in `problem`, `question`, `prompt`, `input` or `query`: text, or messages (`[{"role", "content"}]`, the
last of the user; DAPO-Math and what verl reads). The answer is, the first of these that there is:

- `answer`, `final_answer`, `expected_answer`, `ground_truth`, `target`, `label`: text or a number. GSM8K's has its
  working, and the answer behind `####`;
- `reward_model.ground_truth` (DAPO-Math);
- `solution`: text with a last `\boxed{}` or `#### ` (MATH's), or a short answer itself.

Column names are compared without case (AIME's are `Problem` and `Answer`). A list of one answer is that answer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from prorl_celery.errors import BadInstance

PROBLEMS = ("problem", "question", "prompt", "input", "query")
ANSWERS = ("answer", "final_answer", "expected_answer", "ground_truth", "target", "label")
NAMES = ("instance_id", "unique_id", "id", "problem_id", "task_id")
HASHES = "####"
LONGEST_BARE = 200
"""Characters of a solution that may be an answer itself."""


def math_instance(row: Mapping[str, Any]) -> dict[str, Any]:
    """`{"data_source": "math", "problem", "answer"}`, and `instance_id` where the row has an id.

    Raises: `BadInstance` whose `field` is the column that is missing or wrong.
    """
    columns = {str(name).lower(): str(name) for name in row}
    problem_column = _first(columns, row, PROBLEMS)
    if problem_column is None:
        raise BadInstance(f"no problem: none of the columns {', '.join(PROBLEMS)}", field=PROBLEMS[0])
    instance = {
        "data_source": "math",
        "problem": _problem(row[problem_column], problem_column),
        "answer": _answer(row, columns),
    }
    name = _first(columns, row, NAMES)
    if name is not None and isinstance(row[name], str | int):
        instance["instance_id"] = str(row[name])
    return instance


def _first(columns: Mapping[str, str], row: Mapping[str, Any], names: tuple[str, ...]) -> str | None:
    """The first of the columns that the row has and that is not empty."""
    for name in names:
        column = columns.get(name)
        if column is not None and row[column] is not None and row[column] != "":
            return column
    return None


def _problem(value: Any, column: str) -> str:
    if isinstance(value, str) and value.strip():
        return value
    if isinstance(value, list | tuple):
        said = [one.get("content") for one in value if isinstance(one, Mapping) and one.get("role") == "user"]
        if said and isinstance(said[-1], str) and said[-1].strip():
            return said[-1]
        raise BadInstance(f"{column!r} is a list without a user's message", field=column)
    raise BadInstance(f"{column!r} must be text or messages, not {type(value).__name__}", field=column)


def _answer(row: Mapping[str, Any], columns: Mapping[str, str]) -> str | int | float:
    column = _first(columns, row, ANSWERS)
    if column is not None:
        return _scalar(row[column], column)
    column = columns.get("reward_model")
    if column is not None and row[column] is not None:
        value = row[column]
        if isinstance(value, str):
            value = _json(value, column)
        if not isinstance(value, Mapping) or value.get("ground_truth") in (None, ""):
            raise BadInstance(f"{column!r} has no 'ground_truth'", field=f"{column}.ground_truth")
        return _scalar(value["ground_truth"], f"{column}.ground_truth")
    column = _first(columns, row, ("solution",))
    if column is None:
        raise BadInstance(f"no answer: none of the columns {', '.join(ANSWERS)}, solution", field=ANSWERS[0])
    value = row[column]
    if not isinstance(value, str):
        return _scalar(value, column)
    if "\\boxed" in value or HASHES in value:
        return _scalar(value, column)
    if len(value.strip()) > LONGEST_BARE or "\n" in value.strip():
        raise BadInstance(
            f"{column!r} has neither \\boxed{{}} nor {HASHES} and is too long for an answer", field=column
        )
    return _scalar(value, column)


def _scalar(given: Any, field: str) -> str | int | float:
    value: object = given[0] if isinstance(given, list | tuple) and len(given) == 1 else given
    if isinstance(value, str) and value.startswith('["') and value.endswith('"]'):
        listed = _json(value, field)
        value = listed[0] if len(listed) == 1 else value
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise BadInstance(f"{field!r} must be text or a number, not {type(value).__name__}", field=field)
    if not isinstance(value, str):
        return value
    if HASHES in value:
        value = value.rpartition(HASHES)[2]
    elif "\\boxed" in value:
        value = _boxed(value, field)
    if not value.strip():
        raise BadInstance(f"{field!r} is empty", field=field)
    return value.strip()


def _boxed(text: str, field: str) -> str:
    r"""What is in the last `\boxed{}`; of `\boxed 7`, the word behind it."""
    begin = text.rindex("\\boxed") + len("\\boxed")
    rest = text[begin:].lstrip()
    if not rest.startswith("{"):
        words = rest.split(maxsplit=1)
        return words[0].rstrip(".$") if words else ""
    depth = 0
    for at, char in enumerate(rest):
        if char in "{}" and rest[at - 1 : at] != "\\":
            depth += 1 if char == "{" else -1
            if depth == 0:
                return rest[1:at]
    raise BadInstance(f"{field!r} has a \\boxed{{ that is not closed", field=field)


def _json(text: str, field: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise BadInstance(f"{field!r} is no JSON: {error}", field=field) from error
