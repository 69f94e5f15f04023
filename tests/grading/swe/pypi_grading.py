"""Fixtures of the tests that grade the made-up library: it prepared once, and patches graded in fresh sandboxes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from pypi_library import make_index, patch_of, write_instance

from prorl_celery.cli.datasets import sandbox_python
from prorl_celery.data.pypi.prepare import Preparation, prepare
from prorl_celery.data.pypi.rows import row_of
from prorl_celery.grading.swe.form import SweLimits, SweVerdict
from prorl_celery.grading.swe.pypi import PypiForm
from prorl_celery.sandbox.base import Sandbox
from prorl_celery.settings import Settings

LIMITS = SweLimits(apply_seconds=30, test_seconds=40, total_seconds=180, output_bytes=8 << 20)


@pytest.fixture(scope="session")
def pypi_index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, Any]]]:
    """A folder of releases and wheels, which is all that pip knows; and the instance as a file has it."""
    folder = tmp_path_factory.mktemp("index")
    instance = make_index(folder)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(folder), "PIP_CONFIG_FILE": "/dev/null"}.items():
            patch.setenv(name, value)
        yield folder, instance


@dataclass(frozen=True)
class Graded:
    """The prepared instance, and how a patch to it is graded."""

    instance: dict[str, Any]
    gold: str
    workspace: Path
    form: PypiForm
    start: Callable[..., Sandbox]

    def grade(
        self, patch: str | bytes | Mapping[str, str], *, limits: SweLimits = LIMITS, **changes: Any
    ) -> SweVerdict:
        """Grade a patch, or files with other contents, in a fresh sandbox."""
        if isinstance(patch, Mapping):
            patch = patch_of(self.workspace, patch)
        sandbox = self.start()
        try:
            instance = {**self.instance, **changes}
            self.form.validate(instance)
            return self.form.grade(sandbox, instance, patch, limits=limits, in_child=None)  # type: ignore[arg-type]
        finally:
            sandbox.stop()


@pytest.fixture(scope="session")
def graded(
    pypi_index: tuple[Path, dict[str, Any]],
    swe_start: Callable[..., Sandbox],
    tmp_path_factory: pytest.TempPathFactory,
) -> Graded:
    """The library as `prorl datasets prepare swe-pypi` lays it out."""
    python = sandbox_python()
    if python is None:
        pytest.skip("this machine has no Python that a sandbox without an image could see")
    folder = tmp_path_factory.mktemp("prepared")
    row = row_of(pypi_index[1], write_instance(tmp_path_factory.mktemp("rows"), pypi_index[1]))
    plan = Preparation(
        folder=folder / "set", python=python[1], interpreter=python[0], gold=folder / "gold", pytest="pytest"
    )
    (line,) = prepare([row], plan, told=lambda *_: None).read_text().splitlines()
    instance = json.loads(line)
    return Graded(
        instance=instance,
        gold=(folder / "gold/tinywords-1.diff").read_text(),
        workspace=Path(instance["workspace"]),
        form=PypiForm(Settings(datasets=(str(folder / "set"),))),
        start=swe_start,
    )


def quick(**seconds: float) -> SweLimits:
    """The usual limits with others in part."""
    return replace(LIMITS, **seconds)  # type: ignore[arg-type]
