"""`swe`: change a repository so that an issue is resolved; tests that the agent never sees tell, in a fresh sandbox.

An instance is of one of three forms, told by its fields:

- `docker_image` and `expected_output_json`: R2E-Gym's (`prorl_celery/grading/swe/r2e.py`);
- `package` and `base_version`, or `workspace`: a release of a PyPI package, without an image (`pypi.py`);
- `repo` and `base_commit`: SWE-bench's, SWE-Gym's (`bench.py`).

Its result has the patch as an artifact, `reward` 1.0 or 0.0, and which tests passed. A patch that is empty, too long or
does not apply is not resolved, and says why; what is no fault of the patch is an error. An instance's `limits` may have
other seconds than the settings, as `apply_seconds`, `test_seconds`, `total_seconds`; what eval has left bounds them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from prorl_celery.errors import BadInstance, EvalError
from prorl_celery.grading.swe.bench import BenchForm
from prorl_celery.grading.swe.form import SweForm, SweLimits
from prorl_celery.grading.swe.patch import extract
from prorl_celery.grading.swe.pypi import PypiForm
from prorl_celery.grading.swe.r2e import R2eForm
from prorl_celery.handlers.base import EvalContext, Handler, InitContext, RolloutContext
from prorl_celery.images.names import image_of
from prorl_celery.settings import Settings

SYSTEM = """You are a software engineer who fixes issues in other people's code. You work in a Linux sandbox with the
tools you are given.

Find out first how the code in question works and why it behaves as the issue says; reproduce it where you can. Then
make the smallest change that mends the cause, in the style of the code around it, and see that it does and that what
worked before still works. When you are done, call finish."""

LEAST_TEST_SECONDS = 30.0
"""When the tests do not end in less than this, for want of eval's time, nothing is said of the patch."""
MARGIN_SECONDS = 5.0
"""What eval keeps of its time to say how it went."""
TRUTH = (
    "instance_id", "repo", "base_commit", "version", "package", "base_version", "docker_image", "FAIL_TO_PASS",
    "PASS_TO_PASS", "test_patch", "test_file", "test_source", "test_command", "expected_output_json",
)  # fmt: skip
EMPTY = "the patch is empty: no file was changed"


class SweHandler(Handler):
    """Issues in repositories."""

    data_source = "swe"
    aliases = ("swebench", "swegym", "r2e")
    default_tools = ("bash", "str_replace_editor", "finish")

    @cached_property
    def settings(self) -> Settings:
        return Settings.from_env()

    def form(self, instance: Mapping[str, Any]) -> SweForm:
        """The form that an instance has. Raises: `BadInstance` for none."""
        if "workspace" in instance or ("package" in instance and "base_version" in instance):
            return PypiForm(self.settings, self._image)
        if "expected_output_json" in instance:
            return R2eForm(self._image)
        if "repo" in instance or "base_commit" in instance:
            return BenchForm(self._image)
        raise BadInstance(
            "an instance has repo and base_commit, or docker_image and expected_output_json, or package and "
            "base_version",
            field="repo",
        )

    def validate(self, instance: Mapping[str, Any]) -> None:
        self._limits(instance, self.settings.swe_eval_seconds)
        self.form(instance).validate(instance)

    def image(self, instance: Mapping[str, Any]) -> str | None:
        return self.form(instance).image(instance)

    def init(self, ctx: InitContext) -> dict[str, Any]:
        return self.form(ctx.instance).prepare(ctx.sandbox, ctx.instance, timeout=ctx.remaining_seconds())

    def rollout(self, ctx: RolloutContext) -> dict[str, Any]:
        form, instance = self.form(ctx.instance), ctx.instance
        ctx.run_agent([{"role": "system", "content": SYSTEM}, {"role": "user", "content": form.prompt(instance)}])
        taken = extract(
            ctx.sandbox,
            form.workdir(instance),
            ctx.init["base"],
            protected=form.protected(instance),
            limit_bytes=self.settings.swe_patch_bytes,
            timeout=min(self.settings.swe_apply_seconds, ctx.remaining_seconds()),
        )
        artifacts = {} if taken.patch is None else {"patch": taken.patch}
        return {"patch": taken.patch, "why": taken.why, "left_out": list(taken.left_out), "artifacts": artifacts}

    def eval(self, ctx: EvalContext) -> dict[str, Any]:
        patch = ctx.rollout["patch"]
        if not patch:
            why = EMPTY if patch is not None else ctx.rollout["why"]
            return {"reward": 0.0, "resolved": False, "why": why, "applied_by": None}
        limits = self._limits(ctx.instance, ctx.remaining_seconds() - MARGIN_SECONDS)
        form = self.form(ctx.instance)
        verdict = form.grade(ctx.fresh_sandbox(), ctx.instance, patch, limits=limits, in_child=ctx.in_child)
        if verdict.timed_out and limits.test_seconds < LEAST_TEST_SECONDS:
            wanted = self._limits(ctx.instance, None).test_seconds
            if limits.test_seconds < wanted:
                raise EvalError(f"eval had only {limits.test_seconds:.0f} s for tests that may take {wanted:g} s")
        return verdict.to_json()

    def solution(self, ctx: EvalContext) -> str:
        """The patch, for a reward server; empty where there is none."""
        return ctx.rollout["patch"] or ""

    def ground_truth(self, instance: Mapping[str, Any]) -> dict[str, Any]:
        """For a reward server: which instance it is and what its tests are, but not its solution."""
        return {field: instance[field] for field in TRUTH if instance.get(field) is not None}

    def _limits(self, instance: Mapping[str, Any], left: float | None) -> SweLimits:
        """The instance's limits, else the settings', in the seconds that are left. Raises: `BadInstance`."""
        settings = self.settings
        seconds: dict[str, Any] = {
            "apply_seconds": settings.swe_apply_seconds,
            "test_seconds": settings.swe_test_seconds,
            "total_seconds": settings.swe_eval_seconds,
        }
        given = instance.get("limits") or {}
        if not isinstance(given, Mapping) or not set(given) <= set(seconds):
            raise BadInstance(f"limits is an object of {', '.join(seconds)}", field="limits")
        for name, value in given.items():
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e6:
                raise BadInstance(f"limits.{name} must be a number of seconds, not {value!r}", field=f"limits.{name}")
            seconds[name] = float(value)
        if left is not None:
            seconds = {name: max(1.0, min(value, left)) for name, value in seconds.items()}
        return SweLimits(**seconds)

    def _image(self, instance: Mapping[str, Any]) -> str:
        """Where the image of an instance is. Raises: `BadInstance`."""
        return str(image_of(instance, self.settings))
