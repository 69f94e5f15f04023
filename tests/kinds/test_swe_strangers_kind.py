"""Real bugs of other libraries: a name that is not the import's, tests that call Python, a dependency of its own, a
release's own conftest. The fix resolves each, and nothing else does.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pypi_instances import patch_of
from stranger_instances import STRANGERS

from prorl_celery.cli.datasets import sandbox_python
from prorl_celery.data.pypi.prepare import Preparation, prepare
from prorl_celery.data.pypi.rows import row_of
from prorl_celery.grading.swe.form import SweLimits
from prorl_celery.grading.swe.pypi import PypiForm
from prorl_celery.sandbox.base import SandboxSpec
from prorl_celery.sandbox.waiting import NeverCancelled
from prorl_celery.settings import Settings
from prorl_celery.testing.keeper import KeeperProcess

EXITS = "\n\nimport os\nprint('9 passed')\nos._exit(0)\n"
IDS = [instance["instance_id"] for instance in STRANGERS]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, dict[str, Any]]]:
    """A folder with gold patches and a set of data, and what the set has."""
    folder, python = tmp_path_factory.mktemp("strangers"), sandbox_python()
    assert python is not None
    rows = [row_of(dict(instance), Path(f"{instance['instance_id']}.json")) for instance in STRANGERS]
    plan = Preparation(folder=folder / "set", python=python[1], interpreter=python[0], gold=folder / "gold")
    lines = prepare(rows, plan, told=lambda *_: None).read_text(encoding="utf-8").splitlines()
    return folder, {instance["instance_id"]: instance for instance in map(json.loads, lines)}


@pytest.fixture(scope="module")
def keeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KeeperProcess]:
    with KeeperProcess(Settings(run_dir=tmp_path_factory.mktemp("run"), node="n1")) as keeper:
        yield keeper


@pytest.mark.parametrize("patch", ["gold", "nothing", "breaks", "exits"])
@pytest.mark.parametrize("instance_id", IDS)
def test_only_the_fix_resolves_it(
    prepared: tuple[Path, dict[str, dict[str, Any]]], keeper: KeeperProcess, instance_id: str, patch: str
) -> None:
    folder, instances = prepared
    instance = instances[instance_id]
    workspace = Path(instance["workspace"])
    gold_file = STRANGERS[IDS.index(instance_id)]["gold_files"][0]
    code = (workspace / gold_file).read_text(encoding="utf-8")
    patches = {
        "gold": (folder / f"gold/{instance_id}.diff").read_text(encoding="utf-8"),
        "nothing": patch_of(workspace, {"NOTES.md": "I tried.\n"}),
        "breaks": patch_of(workspace, {gold_file: "raise ImportError\n" + code}),
        "exits": patch_of(workspace, {gold_file: code + EXITS}),
    }
    form = PypiForm(Settings(datasets=(str(folder / "set"),)))
    form.validate(instance)
    with NeverCancelled() as never:
        sandbox = keeper.client.start(SandboxSpec(job_id="j", attempt=1, purpose="eval"), cancel=never, timeout=120)
        try:
            verdict = form.grade(
                sandbox, instance, patches[patch], limits=SweLimits(test_seconds=120.0), in_child=None,  # type: ignore[arg-type]
            )  # fmt: skip
        finally:
            sandbox.stop()
    assert verdict.resolved == (patch == "gold"), verdict.why
