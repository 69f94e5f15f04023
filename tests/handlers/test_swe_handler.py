"""The `swe` handler: what it takes, what it asks of a form, and what becomes of a patch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from prorl_celery.errors import BadInstance, EvalError
from prorl_celery.grading.swe.bench import BenchForm
from prorl_celery.grading.swe.form import SweLimits, SweVerdict, Tally
from prorl_celery.grading.swe.patch import Taken
from prorl_celery.grading.swe.pypi import PypiForm
from prorl_celery.grading.swe.r2e import R2eForm
from prorl_celery.handlers import swe
from prorl_celery.handlers.registry import load_handlers
from prorl_celery.handlers.swe import SweHandler
from prorl_celery.settings import Settings

BENCH: dict[str, Any] = {
    "data_source": "swebench",
    "instance_id": "psf__requests-1",
    "repo": "psf/requests",
    "version": "2.0",
    "base_commit": "a" * 40,
    "problem_statement": "It is broken.",
    "patch": "the fix",
    "test_patch": "diff --git a/test_x.py b/test_x.py\n",
    "FAIL_TO_PASS": '["test_x.py::test_new"]',
    "PASS_TO_PASS": "[]",
}
R2E = {"docker_image": "r2e/x:1", "expected_output_json": "{}", "problem_statement": "It is broken."}


class Form:
    """One that does nothing, and notes what it is asked."""

    def __init__(self, verdict: SweVerdict | None = None) -> None:
        self.verdict = verdict or SweVerdict(resolved=True, applied_by="git", fail_to_pass=Tally(passed=["a"]))
        self.asked: list[Any] = []

    def workdir(self, instance: Any) -> str:
        return "/testbed"

    def protected(self, instance: Any) -> tuple[str, ...]:
        return ("test_x.py",)

    def prompt(self, instance: Any) -> str:
        return "the task"

    def prepare(self, sandbox: Any, instance: Any, *, timeout: float) -> dict[str, Any]:
        self.asked.append((sandbox, timeout))
        return {"base": "b" * 40}

    def grade(self, sandbox: Any, instance: Any, patch: Any, *, limits: SweLimits, in_child: Any) -> SweVerdict:
        self.asked.append((sandbox, patch, limits))
        return self.verdict


class Context(SimpleNamespace):
    """Of any stage."""

    def __init__(self, *, left: float = 1200.0, **fields: Any) -> None:
        super().__init__(instance=BENCH, sandbox="agent's", said=[], fresh=0, in_child=None, **fields)
        self.left = left

    def remaining_seconds(self) -> float:
        return self.left

    def run_agent(self, messages: Any) -> None:
        self.said += messages

    def fresh_sandbox(self) -> str:
        self.fresh += 1
        return "fresh"


@pytest.fixture
def handler(monkeypatch: pytest.MonkeyPatch) -> Iterator[SweHandler]:
    handler = SweHandler()
    handler.settings = Settings(images_dir="/images")
    return handler


def with_form(handler: SweHandler, monkeypatch: pytest.MonkeyPatch, verdict: SweVerdict | None = None) -> Form:
    form = Form(verdict)
    monkeypatch.setattr(handler, "form", lambda _: form)
    return form


def test_it_serves_the_data_sources_of_the_first_server() -> None:
    handlers = load_handlers(Settings())
    assert all(isinstance(handlers.find(name), SweHandler) for name in ("swe", "swebench", "swegym", "r2e"))


def test_the_form_is_told_by_the_fields(handler: SweHandler) -> None:
    assert isinstance(handler.form(BENCH), BenchForm)
    assert isinstance(handler.form(R2E), R2eForm)
    assert isinstance(handler.form({"package": "x", "base_version": "1"}), PypiForm)
    assert isinstance(handler.form({"workspace": "/x"}), PypiForm)
    with pytest.raises(BadInstance) as told:
        handler.validate({"problem_statement": "x"})
    assert told.value.field == "repo"


@pytest.mark.parametrize(
    ("changes", "image"),
    [
        ({}, "/images/xingyaoww+sweb.eval.x86_64.psf_s_requests-1"),
        ({"data_source": "swebench_multimodal"}, "/images/swebench+sweb.eval.x86_64.psf_1776_requests-1"),
        ({"image": "/srv/x.sif"}, "/srv/x.sif"),
        (R2E, "/images/r2e+x=1"),
        ({"workspace": "a", "image": "python:3.12"}, "/images/python=3.12"),
        ({"workspace": "a", "image": None}, None),
    ],
)
def test_an_instance_has_an_image_of_its_own(handler: SweHandler, changes: dict[str, Any], image: str | None) -> None:
    assert handler.image(BENCH | changes) == image


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"instance_id": None}, "instance_id"),
        ({"image": ""}, "image"),
        ({"FAIL_TO_PASS": "[]"}, "FAIL_TO_PASS"),
        ({"limits": {"test_seconds": 0}}, "limits.test_seconds"),
        ({"limits": {"test_seconds": True}}, "limits.test_seconds"),
        ({"limits": {"test_seconds": float("nan")}}, "limits.test_seconds"),
        ({"limits": {"tests": 1}}, "limits"),
        ({"limits": 3}, "limits"),
    ],
)
def test_a_bad_field_is_named(handler: SweHandler, changes: dict[str, Any], field: str) -> None:
    with pytest.raises(BadInstance) as told:
        handler.validate(BENCH | changes)
    assert told.value.field == field


def test_a_rollout_lets_the_agent_work_and_takes_its_patch(
    handler: SweHandler, monkeypatch: pytest.MonkeyPatch
) -> None:
    form = with_form(handler, monkeypatch)
    asked: dict[str, Any] = {}

    def taken(sandbox: Any, workdir: str, base: str, **options: Any) -> Taken:
        asked.update(options, sandbox=sandbox, workdir=workdir, base=base)
        return Taken(patch="diff", left_out=("test_x.py",))

    monkeypatch.setattr(swe, "extract", taken)
    ctx: Any = Context(left=50.0)
    ctx.init = handler.init(ctx)
    assert form.asked == [("agent's", 50.0)]
    assert handler.rollout(ctx) == {
        "patch": "diff",
        "why": None,
        "left_out": ["test_x.py"],
        "artifacts": {"patch": "diff"},
    }
    assert [message["role"] for message in ctx.said] == ["system", "user"]
    assert ctx.said[1]["content"] == "the task"
    assert asked == {
        "sandbox": "agent's",
        "workdir": "/testbed",
        "base": "b" * 40,
        "protected": ("test_x.py",),
        "limit_bytes": 4 << 20,
        "timeout": 50.0,
    }


@pytest.mark.parametrize(
    ("rollout", "why"),
    [
        ({"patch": "", "why": None}, "the patch is empty"),
        ({"patch": None, "why": "the disk is full"}, "the disk is full"),
    ],
)
def test_without_a_patch_no_sandbox_is_started(
    handler: SweHandler, monkeypatch: pytest.MonkeyPatch, rollout: dict[str, Any], why: str
) -> None:
    form = with_form(handler, monkeypatch)
    ctx: Any = Context(rollout=rollout)
    said = handler.eval(ctx)
    assert (said["reward"], said["resolved"], ctx.fresh, form.asked) == (0.0, False, 0, [])
    assert said["why"].startswith(why)


def test_a_patch_is_graded_in_a_fresh_sandbox(handler: SweHandler, monkeypatch: pytest.MonkeyPatch) -> None:
    form = with_form(handler, monkeypatch)
    ctx: Any = Context(rollout={"patch": "diff"})
    said = handler.eval(ctx)
    assert (said["reward"], said["resolved"], said["applied_by"], ctx.fresh) == (1.0, True, "git", 1)
    assert said["fail_to_pass"] == {"passed": ["a"], "failed": []}
    assert form.asked == [("fresh", "diff", SweLimits(apply_seconds=120.0, test_seconds=1195.0, total_seconds=1195.0))]


def test_an_instance_may_have_limits_of_its_own(handler: SweHandler, monkeypatch: pytest.MonkeyPatch) -> None:
    form = with_form(handler, monkeypatch)
    ctx: Any = Context(rollout={"patch": "diff"})
    ctx.instance = BENCH | {"limits": {"test_seconds": 60, "apply_seconds": 9999}}
    handler.eval(ctx)
    assert form.asked[0][2] == SweLimits(apply_seconds=1195.0, test_seconds=60.0, total_seconds=1195.0)


@pytest.mark.parametrize(("left", "limit", "fails"), [(1200.0, 10.0, False), (20.0, 1800.0, True), (20.0, 10.0, False)])
def test_tests_that_had_hardly_any_time_say_nothing_of_the_patch(
    handler: SweHandler, monkeypatch: pytest.MonkeyPatch, left: float, limit: float, fails: bool
) -> None:
    with_form(handler, monkeypatch, replace(Form().verdict, resolved=False, timed_out=True, why="no end"))
    ctx: Any = Context(rollout={"patch": "diff"}, left=left)
    ctx.instance = BENCH | {"limits": {"test_seconds": limit}}
    if fails:
        with pytest.raises(EvalError, match="had only 15 s"):
            handler.eval(ctx)
    else:
        assert handler.eval(ctx)["timed_out"]
