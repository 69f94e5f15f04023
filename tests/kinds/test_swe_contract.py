"""The `swe` handler keeps the contract that the kit checks, on a real bug of a released library."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pypi_instances import CASES

from prorl_celery.cli.datasets import sandbox_python
from prorl_celery.data.pypi.prepare import Preparation, prepare
from prorl_celery.data.pypi.rows import files_of, rows_of
from prorl_celery.grading.swe.pypi import WORKDIR
from prorl_celery.handlers.swe import SweHandler
from prorl_celery.testing.kit import MISSING, HandlerContract

CASE = CASES / "xmltodict-1.json"


@pytest.mark.skipif(not CASE.is_file(), reason=f"there is no {CASE}")
class TestSwe(HandlerContract):
    handler = SweHandler
    bad = (("problem_statement", {"problem_statement": MISSING}), ("limits", {"limits": 3}))
    hidden = ("FAIL_TO_PASS",)

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _a_bug(cls, tmp_path_factory: pytest.TempPathFactory) -> None:
        folder = tmp_path_factory.mktemp("pypi")
        python = sandbox_python()
        assert python is not None
        [row] = [row for path in files_of([CASE]) for row in rows_of(path)]
        plan = Preparation(folder=folder / "set", python=python[1], interpreter=python[0], gold=folder / "gold")
        instance = json.loads(prepare([row], plan, told=lambda *_: None).read_text(encoding="utf-8"))
        gold = (folder / f"gold/{row.instance_id}.diff").read_text()
        apply = f"cd {WORKDIR} && git apply - <<'PATCH'\n{gold}PATCH\ngit diff --stat"
        note = f"cd {WORKDIR} && echo 'I tried.' > NOTES.md"
        cls.instance = instance  # type: ignore[misc]
        cls.settings = {"datasets": (str(Path(instance["workspace"]).parents[1]),)}  # type: ignore[misc]
        cls.oracle = (  # type: ignore[misc]
            {
                "key": instance["instance_id"],
                "prompt": instance["problem_statement"],
                "turns": _turns(apply),
                "wrong_turns": _turns(note),
            },
        )


def _turns(command: str) -> list[dict[str, Any]]:
    calls = ({"name": "bash", "arguments": {"command": command}}, {"name": "finish", "arguments": {}})
    return [{"calls": [call]} for call in calls]
