"""Materialises instances: DIR/ID/workspace, DIR/wheelhouse/..., and DIR/instances.jsonl with a job's instance a line.

Nothing in DIR tells of the fix, so that nodes may read all of it; downloads are in DIR/.cache, which they need not.
Gold patches go to a folder elsewhere. Each part is made beside and renamed, and one that is there is not made again: to
call it again after a failure is to go on. `instances.jsonl` is written when every instance is ready, and not otherwise.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prorl_celery.data.pypi.fetch import fetch
from prorl_celery.data.pypi.gold import write_gold
from prorl_celery.data.pypi.rows import HIDDEN, PypiRow
from prorl_celery.data.pypi.unpack import unpack
from prorl_celery.data.pypi.wheelhouse import PYTEST, make_wheelhouse
from prorl_celery.errors import DatasetError

INSTANCES = "instances.jsonl"
WORKSPACE = "workspace"
SUM = "base.sha256"
"""Beside a workspace: of which archive it is."""
DATA_SOURCE = "swe"


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """What to make, and how."""

    folder: Path
    python: str
    """Of the sandboxes, "3.11": what tests need is fetched for it."""
    interpreter: Path | None = None
    """Such a Python on this machine."""
    gold: Path | None = None
    image: str | None = None
    """The image of the sandboxes; None for those with the host's programs."""
    pytest: str = PYTEST
    parallel: int = 4

    def __post_init__(self) -> None:
        if self.gold is not None and _is_below(self.gold, self.folder):
            raise DatasetError(f"the gold patches' folder {self.gold} must not be below {self.folder}: nodes read that")


def prepare(rows: Sequence[PypiRow], plan: Preparation, *, told: Callable[[PypiRow, str], None]) -> Path:
    """Make all of it and return the path of `instances.jsonl`. `told` is called (from threads) with what is done.

    Raises: `DatasetError`: the first that went wrong; the others under way are brought to an end, the rest not begun.
    """
    twice = [row for row in rows if sum(other.instance_id == row.instance_id for other in rows) > 1]
    if twice:
        raise DatasetError(f"{twice[-1].file}: instance_id: {twice[-1].instance_id} is another instance's too")
    plan.folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(max_workers=max(1, plan.parallel), thread_name_prefix="prepare") as pool:
        futures = [pool.submit(_prepare_one, row, plan, told) for row in rows]
        try:
            done, _ = wait(futures, return_when=FIRST_EXCEPTION)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
    for future in done:
        if not future.cancelled() and (error := future.exception()) is not None:
            raise error
    return _write_instances([future.result() for future in futures], plan.folder)


def _prepare_one(row: PypiRow, plan: Preparation, told: Callable[[PypiRow, str], None]) -> dict[str, Any]:
    about = f"{row.file} ({row.instance_id})"
    try:
        place = _lay(row, plan, about, told)
        wheelhouse = make_wheelhouse(
            row.extra_requirements, without=row.package, python=plan.python, interpreter=plan.interpreter,
            folder=plan.folder / "wheelhouse", about=about, pytest=plan.pytest,
        )  # fmt: skip
        if plan.gold is not None:
            write_gold(row, place / WORKSPACE, cache=plan.gold / ".cache", folder=plan.gold)
    except OSError as error:
        raise DatasetError(f"{about}: {error.filename or plan.folder}: {error.strerror or error}") from error
    told(row, "ready")
    fields = {name: value for name, value in row.fields.items() if name not in HIDDEN}
    fields.update(
        data_source=DATA_SOURCE,
        source_root=row.source_root,
        workspace=str((place / WORKSPACE).absolute()),
        wheelhouse=str(wheelhouse.absolute()),
        base_archive_sha256=(place / SUM).read_text(encoding="ascii").split()[0],
    )
    if plan.image is not None:
        fields["image"] = plan.image
    return fields


def _lay(row: PypiRow, plan: Preparation, about: str, told: Callable[[PypiRow, str], None]) -> Path:
    """The instance's folder, with the base release unpacked in it."""
    place = plan.folder / row.instance_id
    if (place / WORKSPACE).is_dir() and (place / SUM).is_file():
        have = (place / SUM).read_text(encoding="ascii").split()
        if have[1:] == [f"{row.package}=={row.base_version}", row.archive] and row.base_sha256 in (None, have[0]):
            return place
    told(row, f"{row.package} {row.base_version}")
    archive, sha256 = fetch(
        row.package, row.base_version, row.archive, row.base_sha256, cache=plan.folder / ".cache", about=about
    )
    work = Path(tempfile.mkdtemp(prefix=f".{row.instance_id}-", dir=plan.folder))
    try:
        new = work / "new"
        new.mkdir()
        try:
            unpack(archive, new / WORKSPACE, strip=row.archive == "sdist")
        except DatasetError as error:
            raise DatasetError(f"{about}: {error}") from error
        if not (new / WORKSPACE / row.source_root).is_dir():
            raise DatasetError(f"{row.file}: source_root: the release has no folder {row.source_root!r}")
        (new / SUM).write_text(f"{sha256} {row.package}=={row.base_version} {row.archive}\n", encoding="ascii")
        if place.exists():  # of another release, or what is no work of ours
            place.rename(work / "old")
        new.rename(place)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return place


def _write_instances(instances: Sequence[dict[str, Any]], folder: Path) -> Path:
    target = folder / INSTANCES
    descriptor, name = tempfile.mkstemp(prefix=".instances-", dir=folder)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            for instance in instances:
                file.write(json.dumps(instance, ensure_ascii=False) + "\n")
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o644)
        Path(name).rename(target)
    finally:
        Path(name).unlink(missing_ok=True)
    return target


def _is_below(path: Path, folder: Path) -> bool:
    return path.resolve().is_relative_to(folder.resolve())
