"""`prorl datasets prepare swe-pypi`: what it makes, makes once, refuses, and never leaves half-made."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pypi_grading import Graded
from pypi_library import FIXED, write_instance

from prorl_celery.cli.main import cli
from prorl_celery.data.pypi import prepare as preparing
from prorl_celery.data.pypi.prepare import Preparation, prepare
from prorl_celery.data.pypi.rows import PypiRow, row_of
from prorl_celery.data.pypi.wheelhouse import make_wheelhouse
from prorl_celery.errors import BadInstance, DatasetError
from prorl_celery.grading.swe.form import SweLimits
from prorl_celery.grading.swe.pypi import PypiForm
from prorl_celery.grading.swe.pypi_material import find, workspace_tar
from prorl_celery.settings import Settings

Index = tuple[Path, dict[str, Any]]


def row(index: Index, **changes: Any) -> PypiRow:
    return row_of({**index[1], **changes}, Path("tiny.json"))


def told(*_: Any) -> None:
    pass


def test_nothing_that_nodes_read_tells_of_the_fix(graded: Graded) -> None:
    assert not {"fixed_version", "fixed_archive_sha256", "gold_files"} & set(graded.instance)
    folder = graded.workspace.parents[1]
    texts = [p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.suffix not in (".gz", ".whl")]
    assert not any(b"1.1" in text.split(b"\n")[0] and b"tinywords" in text for text in texts)
    assert not [p for p in folder.rglob("*") if "tinywords" in p.name and "1.1" in p.name]
    assert (graded.workspace / "src/tinywords/__init__.py").read_text() != FIXED
    wheels = list((folder / "wheelhouse").rglob("*.whl"))
    assert any(wheel.name.startswith("pytest-") for wheel in wheels)
    assert not any(wheel.name.startswith("tinywords") for wheel in wheels)


def test_what_is_there_is_not_made_again(graded: Graded, pypi_index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = graded.workspace.parents[1]
    before = (folder / "instances.jsonl").read_text()
    monkeypatch.setattr(preparing, "fetch", lambda *a, **k: pytest.fail("asked the index again"))
    python = json.loads(next((folder / "wheelhouse").glob("*/wheelhouse.json")).read_text())["python"]
    prepare([row(pypi_index)], Preparation(folder=folder, python=python, pytest="pytest"), told=told)
    assert (folder / "instances.jsonl").read_text() == before


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"base_archive_sha256": "0" * 64}, "pip"),
        ({"base_version": "9.9"}, "pip"),
        ({"source_root": "lib"}, "tiny.json: source_root: the release has no folder 'lib'"),
    ],
)
def test_what_cannot_be_had_is_told_and_leaves_nothing(
    pypi_index: Index, tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(DatasetError) as caught:
        prepare([row(pypi_index, **changes)], Preparation(folder=tmp_path / "set", python="3.11"), told=told)
    assert said in str(caught.value)
    assert [path.name for path in (tmp_path / "set").iterdir()] in ([], [".cache"])


def test_two_instances_of_one_id_are_refused(pypi_index: Index, tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="instance_id"):
        prepare([row(pypi_index)] * 2, Preparation(folder=tmp_path, python="3.11"), told=told)


def test_a_wheelhouse_never_has_the_instance_s_own_package(pypi_index: Index, tmp_path: Path) -> None:
    made = {"python": "3.11", "interpreter": None, "folder": tmp_path, "about": "x", "pytest": "pytest"}
    common = make_wheelhouse([], without="tinywords", **made)  # type: ignore[arg-type]
    without = make_wheelhouse([], without="Iniconfig", **made)  # type: ignore[arg-type]
    assert common != without
    assert {wheel.name for wheel in common.glob("*.whl")} - {wheel.name for wheel in without.glob("*.whl")} == {
        wheel.name for wheel in common.glob("iniconfig-*.whl")
    }
    with tarfile.open(without / "site.tar.gz") as tar:
        names = tar.getnames()
    assert "./pytest" in names
    assert "./iniconfig" not in names
    with pytest.raises(DatasetError, match="package"):
        make_wheelhouse([], without="pytest", **made)  # type: ignore[arg-type]


def test_the_command_says_where_the_instances_are_and_what_nodes_need(pypi_index: Index, tmp_path: Path) -> None:
    write_instance(tmp_path, pypi_index[1])
    run = CliRunner().invoke(
        cli, ["datasets", "prepare", "swe-pypi", str(tmp_path / "set"), "--from", str(tmp_path), "--pytest", "pytest"]
    )
    assert run.exit_code == 0, run.output
    assert str(tmp_path / "set/instances.jsonl") in run.output
    assert f"PRORL_DATASETS={tmp_path / 'set'}" in run.output
    listed = CliRunner().invoke(cli, ["datasets", "list"], env={"PRORL_DATASETS": str(tmp_path)})
    assert "instances.jsonl" in listed.output
    assert "1 workspaces" in listed.output


def test_a_node_takes_nothing_from_outside_of_its_data_sets(graded: Graded, tmp_path: Path) -> None:
    root = tmp_path / "sets"
    (root / "in").mkdir(parents=True)
    (tmp_path / "out").mkdir()
    (root / "link").symlink_to(tmp_path / "out")
    roots = (root.resolve(),)
    assert find("in", "workspace", roots) == find(str(root / "in"), "workspace", roots) == root / "in"
    for named in (
        "/etc",
        str(tmp_path / "out"),
        str(root / "link"),
        "link",
        str(root / "../out"),
        "in/../../out",
        "no",
    ):
        with pytest.raises(BadInstance) as caught:
            find(named, "workspace", roots)
        assert caught.value.field == "workspace"
    with pytest.raises(BadInstance, match="PRORL_DATASETS"):
        PypiForm(Settings(datasets=(str(root),))).grade(
            None, graded.instance, "x", limits=SweLimits(), in_child=None  # type: ignore[arg-type]
        )  # fmt: skip


def test_a_workspace_whose_links_lead_out_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    (tmp_path / "good").symlink_to("a")
    workspace_tar(tmp_path)
    (tmp_path / "bad").symlink_to("/etc/passwd")
    with pytest.raises(BadInstance, match="leads out"):
        workspace_tar(tmp_path)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("workspace", None), ("workspace", "a/../b"), ("test_file", "../x.py"), ("test_file", "/x.py"),
        ("FAIL_TO_PASS", []), ("FAIL_TO_PASS", "x"), ("PASS_TO_PASS", [7]), ("test_source", ""), ("source_root", ".."),
        ("wheelhouse", 7),
    ],
)  # fmt: skip
def test_a_wrong_field_is_refused_before_the_job_is_accepted(graded: Graded, field: str, value: Any) -> None:
    instance = {**graded.instance, field: value}
    if value is None:
        del instance[field]
    with pytest.raises(BadInstance) as caught:
        graded.form.validate(instance)
    assert caught.value.field == field
