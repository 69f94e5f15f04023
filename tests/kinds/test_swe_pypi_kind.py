"""Real bugs of released libraries, in real sandboxes with no network: the real fix resolves each, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pypi_instances import IDS, Bug
from skeletons import skeleton

from prorl_celery.grading.swe.form import SweLimits, SweVerdict
from prorl_celery.grading.swe.patch import extract
from prorl_celery.grading.swe.pypi import WORKDIR, PypiForm
from prorl_celery.sandbox import singularity
from prorl_celery.sandbox.base import Sandbox, SandboxSpec
from prorl_celery.sandbox.waiting import NeverCancelled
from prorl_celery.settings import Settings
from prorl_celery.testing.keeper import KeeperProcess

LIMITS = SweLimits(test_seconds=120.0)
NAMES = ("gold", "nothing", "breaks", "planted", "reports made good", "exits")


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Sandbox]]:
    with (
        KeeperProcess(Settings(run_dir=tmp_path_factory.mktemp("run"), node="n1")) as keeper,
        NeverCancelled() as never,
    ):
        yield lambda **spec: keeper.client.start(SandboxSpec(job_id="j", attempt=1, **spec), cancel=never, timeout=120)


def form_of(bug: Bug) -> PypiForm:
    return PypiForm(Settings(datasets=(str(Path(bug.instance["workspace"]).parents[1]),)))


def grade(bug: Bug, name: str, sandbox: Sandbox) -> SweVerdict:
    try:
        return form_of(bug).grade(sandbox, bug.instance, bug.patches()[name], limits=LIMITS, in_child=None)  # type: ignore[arg-type]
    finally:
        sandbox.stop()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("instance_id", IDS)
def test_only_the_fix_resolves_it(
    bugs: dict[str, Bug],
    start: Callable[..., Sandbox],
    instance_id: str,
    name: str,
) -> None:
    verdict = grade(bugs[instance_id], name, start())
    assert verdict.resolved == (name == "gold"), verdict.why
    if name == "breaks":
        assert list(verdict.pass_to_pass.failed)
    if name == "planted":
        assert list(verdict.pass_to_pass.failed) == []


@pytest.mark.parametrize("instance_id", IDS)
def test_the_agent_has_the_base_alone_and_a_pytest(
    bugs: dict[str, Bug],
    start: Callable[..., Sandbox],
    instance_id: str,
) -> None:
    bug, sandbox = bugs[instance_id], start()
    form = form_of(bug)
    base = form.prepare(sandbox, bug.instance, timeout=120)["base"]
    assert sandbox.shell.run("git log --all --format=%H", timeout=30).output.split() == [base]
    assert sandbox.shell.run("git status --porcelain", timeout=30).output == ""
    assert extract(sandbox, WORKDIR, base, timeout=60).patch == ""
    assert sandbox.shell.run("python -m pytest --version", timeout=60).output.startswith("pytest ")
    seen = sandbox.shell.run("cat /proc/1/environ; find / -xdev -name 'test_*_1.py' 2>/dev/null", timeout=60).output
    assert "tests_prorl" not in seen
    function = bug.instance["FAIL_TO_PASS"][0].rpartition("::")[2]
    assert sandbox.shell.run(f"grep -rqF {function} /workspace", timeout=60).exit_code == 1
    sandbox.stop()


@pytest.mark.skipif(singularity.command() is None, reason="no singularity or apptainer on the PATH")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("instance_id", IDS[:2])
def test_it_is_the_same_in_an_image(
    bugs: dict[str, Bug],
    start: Callable[..., Sandbox],
    instance_id: str,
    name: str,
) -> None:
    with skeleton() as image:
        verdict = grade(bugs[instance_id], name, start(image=image))
    assert verdict.resolved == (name == "gold"), verdict.why


def test_the_whole_service_resolves_all_by_their_fixes_and_none_without(
    bugs: dict[str, Bug],
    kind_service: Callable[..., Any],
) -> None:
    rows, instances = [], []
    for instance_id, bug in bugs.items():
        apply = f"cd {WORKDIR} && git apply - <<'PATCH'\n{bug.gold}PATCH\ngit diff --stat"
        finish = {"name": "finish", "arguments": {}}
        rows.append(
            {
                "key": instance_id,
                "prompt": bug.instance["problem_statement"],
                "turns": [{"calls": [{"name": "bash", "arguments": {"command": apply}}]}, {"calls": [finish]}],
                "wrong_turns": [{"calls": [finish]}],
            }
        )
        instances.append(bug.instance)
    folder = str(Path(instances[0]["workspace"]).parents[1])
    with kind_service(rows, PRORL_DATASETS=folder) as kind:
        right = kind.run(instances)
        assert kind.unlike(right, reward=1.0) == []
        assert all("diff --git" in result.artifacts["patch"] for result in right)
        assert kind.unlike(kind.run(instances, wrong=True), reward=0.0) == []
