"""What a form of software-engineering instance does for the `swe` handler, and what a patch came to.

A form is one way in which instances say what the workspace is, which tests count, and how they are run: SWE-bench's
(`bench`), R2E-Gym's (`r2e`), releases of PyPI packages (`pypi`). The handler asks for the image, lays the workspace in
init (`prepare`), lets the agent work with `prompt`, takes the patch out without `protected`, and has it graded in a
sandbox that the agent never touched (`grade`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from prorl_celery.sandbox.base import Sandbox

Instance = Mapping[str, Any]
AppliedBy = Literal["git", "patch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SweLimits:
    """How long each part of a grading may take, in seconds, and how much of its output is read."""

    apply_seconds: float = 120.0
    test_seconds: float = 1800.0
    total_seconds: float = 2400.0
    """All of `grade`, whatever the parts would allow."""
    output_bytes: int = 16 << 20
    """Most of the tests' output that is read: head and tail of it, where there is more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Those of an instance's tests that are as they should be, and those that are not, each by its id."""

    passed: Sequence[str] = ()
    failed: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SweVerdict:
    """What a patch came to. What is no fault of the patch is no verdict but an `EvalError`."""

    resolved: bool
    why: str | None = None
    """What is wrong, where it is not resolved: "the patch does not apply: ...", "3 of FAIL_TO_PASS fail"."""
    applied_by: AppliedBy | None = None
    """None where it does not apply, or there is nothing to apply."""
    fail_to_pass: Tally = field(default_factory=Tally)
    pass_to_pass: Tally = field(default_factory=Tally)
    seconds: Mapping[str, float] = field(default_factory=dict)
    """How long the parts took, by name: `apply`, `tests`."""
    timed_out: bool = False
    """The tests did not end in their time."""
    dropped: Sequence[str] = ()
    """Files that the patch changed and that were put back to what they were, since tests are run by them."""

    def to_json(self) -> dict[str, Any]:
        """The handler's eval result."""
        return {
            "reward": float(self.resolved),
            "resolved": self.resolved,
            "why": self.why,
            "applied_by": self.applied_by,
            "fail_to_pass": {"passed": list(self.fail_to_pass.passed), "failed": list(self.fail_to_pass.failed)},
            "pass_to_pass": {"passed": list(self.pass_to_pass.passed), "failed": list(self.pass_to_pass.failed)},
            "seconds": {name: round(seconds, 3) for name, seconds in self.seconds.items()},
            "timed_out": self.timed_out,
            "dropped": list(self.dropped),
        }


class InChild(Protocol):
    """`StageContext.in_child`: calls a module-level function in a killable child process."""

    def __call__(self, function: Callable[[Any], Any], argument: Any, *, timeout: float) -> Any: ...


class SweForm(Protocol):
    """One way in which a software-engineering instance says its workspace and its tests."""

    def validate(self, instance: Instance) -> None:
        """Refuse what cannot be run. Cheap: the API calls it. Raises: `BadInstance` that names the field."""
        ...

    def image(self, instance: Instance) -> str | None:
        """The image of both sandboxes: a path or a name; None for a sandbox with the host's programs.

        Raises: `BadInstance`.
        """
        ...

    def workdir(self, instance: Instance) -> str:
        """Where the repository is in a sandbox, an absolute path."""
        ...

    def prepare(self, sandbox: Sandbox, instance: Instance, *, timeout: float) -> dict[str, Any]:
        """Init: lay the repository at its base commit in the agent's sandbox, as a git repository of one commit without
        later history, and hide what is hidden. Returns `{"base": id of the commit, ...}`, JSON.

        Raises: `SandboxError` (`BadImage` where the image is not what the instance says), `BadInstance`.
        """
        ...

    def protected(self, instance: Instance) -> tuple[str, ...]:
        """Paths of the instance's tests, files or folders, relative to the repository: changes to them are taken out of
        the patch.
        """
        ...

    def prompt(self, instance: Instance) -> str:
        """What the agent is told of the task, as the user's message. Nothing of tests, fixes or later versions."""
        ...

    def grade(
        self, sandbox: Sandbox, instance: Instance, patch: str | bytes, *, limits: SweLimits, in_child: InChild
    ) -> SweVerdict:
        """Eval, in a fresh sandbox: lay the base, apply the patch (never empty), add the tests, run them, grade.

        A patch that does not apply is not resolved, with a `why` that begins "the patch does not apply".
        Raises: `EvalError` where the tests could not be run for what is no fault of the patch; `SandboxError`.
        """
        ...
