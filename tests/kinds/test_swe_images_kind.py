"""SWE-bench-form and R2E-form instances in images, through the whole service: an agent's bash makes the change."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from swe_image import make_bench_image, make_r2e_image

from prorl_celery.sandbox import singularity

pytestmark = pytest.mark.skipif(singularity.command() is None, reason="no singularity or apptainer on the PATH")
FIX = "cd /testbed && sed -i 's/url.lower/url.strip().lower/' requests.py"
WRONG = "cd /testbed && sed -i 's/base + //' requests.py && git add -A && git commit -qm done"


@pytest.fixture(scope="module")
def instances() -> Iterator[list[dict[str, Any]]]:
    place = Path(tempfile.mkdtemp(prefix="prorl-test-swe-"))
    place.chmod(0o755)
    yield [make_bench_image(place)[1], make_r2e_image(place)]
    shutil.rmtree(place)


def row(instance: dict[str, Any], command: str = FIX, wrong: str = WRONG) -> dict[str, Any]:
    def turns(line: str) -> list[dict[str, Any]]:
        call = {"name": "bash", "arguments": {"command": line}}
        finish = {"name": "finish", "arguments": {"message": "done"}}
        return [{"text": "", "calls": [call]}, {"text": "", "calls": [finish]}]

    kind = "at the version" if "repo" in instance else "has this problem"
    return {"key": instance["instance_id"], "prompt": kind, "turns": turns(command), "wrong_turns": turns(wrong)}


def test_instances_in_images_are_resolved_by_their_fix_alone(
    kind_service: Any, instances: list[dict[str, Any]]
) -> None:
    with kind_service([row(instance) for instance in instances]) as kind:
        results = kind.run(instances)
        assert kind.unlike(results, reward=1.0) == []
        assert all("strip().lower" in result.artifacts["patch"] for result in results)
        results = kind.run(instances, wrong=True)
        assert kind.unlike(results, reward=0.0) == []
        assert results[0].eval["pass_to_pass"]["failed"] == ["tests/test_requests.py::test_join"]
        assert all(result.error is None for result in results)


def test_what_cannot_be_run_is_an_error_and_no_change_is_none(
    kind_service: Any, instances: list[dict[str, Any]]
) -> None:
    bench = instances[0]
    missing = bench | {"instance_id": "psf__requests-2", "image": None, "docker_image": "nobody/has-it:1"}
    unfit = bench | {"test_patch": bench["test_patch"].replace("assert", "assent")}
    with kind_service([row(bench, wrong="true")]) as kind:
        (nothing,) = kind.run([bench], wrong=True)
        assert (nothing.reward, nothing.eval["why"]) == (0.0, "the patch is empty: no file was changed")
        absent, broken = kind.run([missing, unfit], max_attempts=1)
        assert (absent.reward, absent.error.kind, absent.error.stage) == (None, "sandbox", "init")
        assert "nobody+has-it=1" in absent.error.message
        assert (broken.reward, broken.error.kind) == (None, "eval")
        assert "test patch does not fit" in broken.error.message
