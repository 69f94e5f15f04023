"""R2E-Gym's form of instances: `docker_image`, `problem_statement`, `expected_output_json`.

In the image the repository is at /testbed with its environment at /testbed/.venv, the tests are at /r2e_tests, and
/testbed/run_tests.sh runs them from a link to them in the repository. All of the tests are taken out of the agent's
sandbox. `expected_output_json` says for each test, `Class.test` or `test`, with which status it must end: PASSED,
FAILED or ERROR. Resolved is what ends with just these, and with no further test but one of ours, which must fail: what
forges results must know of it.

The expected statuses stand in the verdict as `pass_to_pass`: which of them the bug breaks is not said.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Callable, Mapping
from shlex import quote
from typing import Any

from prorl_celery.errors import BadImage, BadInstance, EvalError
from prorl_celery.grading.swe.apply import apply_patch, guard, lay_base, restore, undo
from prorl_celery.grading.swe.bench_canary import Canary, canary_beside
from prorl_celery.grading.swe.form import InChild, Instance, SweLimits, SweVerdict, Tally
from prorl_celery.grading.swe.patch import keep_base
from prorl_celery.grading.swe.verdict_run import Clock, TestRun, run_tests
from prorl_celery.sandbox.base import Sandbox

WORKDIR = "/testbed"
TESTS = ("/r2e_tests", "/testbed/r2e_tests", "/root/r2e_tests", "/testbed/run_tests.sh", "/root/run_tests.sh")
"""Where images have the tests and what runs them."""
ACTIVATE = f"export VIRTUAL_ENV={WORKDIR}/.venv PATH={WORKDIR}/.venv/bin:$PATH"
RUN = f"""{ACTIVATE}
canary=@CANARY@
tests= ; for place in /r2e_tests /root/r2e_tests; do [ -d $place ] && tests=$place; done
[ -n "$tests" ] || [ -d r2e_tests ] || exit 127
[ -z "$tests" ] || {{ rm -rf r2e_tests && ln -s $tests r2e_tests; }} || exit 126
[ -z "$canary" ] || printf '%s' @SOURCE@ 2>/dev/null >r2e_tests/"$canary"
for script in run_tests.sh /root/run_tests.sh; do [ -f $script ] && exec bash $script; done
exec python -W ignore -m pytest -rA r2e_tests"""
STATUSES = ("PASSED", "FAILED", "ERROR")
COLOURS = re.compile(r"\x1b\[[0-9;]*m|\r")
SUMMARY = "short test summary info"
RESULT = re.compile(rf"^({'|'.join(STATUSES)})\s+(\S.*)$", re.M)
PROMPT = """The repository at {workdir} has this problem:

<issue>
{problem}
</issue>

Change the code so that it is solved. Tests for it exist that you cannot see; you need not write any. What counts is
the files as you leave them: leave no scratch files behind. The environment of the project is active in your shell, and
there is no network."""


class R2eForm:
    """R2E-Gym's instances. `image_of` says where an instance's image is."""

    def __init__(self, image_of: Callable[[Instance], str]) -> None:
        self._image_of = image_of

    def validate(self, instance: Instance) -> None:
        if not isinstance(instance.get("problem_statement"), str) or not instance["problem_statement"].strip():
            raise BadInstance("problem_statement must be text, and not empty", field="problem_statement")
        if not isinstance(instance.get("docker_image"), str) or not instance["docker_image"]:
            raise BadInstance("docker_image must name the instance's image", field="docker_image")
        expected_of(instance)
        self.image(instance)

    def image(self, instance: Instance) -> str:
        return self._image_of(instance)

    def workdir(self, instance: Instance) -> str:
        return WORKDIR

    def prepare(self, sandbox: Sandbox, instance: Instance, *, timeout: float) -> dict[str, Any]:
        places = " ".join(TESTS)
        # Not the folders: an overlay may be unable to.
        sandbox.shell.run(f"find {places} ! -type d -delete 2>/dev/null", timeout=timeout)
        left = sandbox.shell.run(f"find {places} ! -type d 2>/dev/null | head", timeout=timeout)
        if left.output.strip():
            raise BadImage(f"the tests cannot be hidden in the agent's sandbox: {left.output.strip()}")
        base = keep_base(sandbox, WORKDIR, timeout=timeout)
        sandbox.shell.run(f"{ACTIVATE}; cd {WORKDIR}", timeout=timeout)
        return {"base": base}

    def protected(self, instance: Instance) -> tuple[str, ...]:
        return ("r2e_tests", "run_tests.sh")

    def prompt(self, instance: Instance) -> str:
        problem = str(instance["problem_statement"])
        marked = re.search(r"\[ISSUE\](.*)\[/ISSUE\]", problem, re.S)
        return PROMPT.format(workdir=WORKDIR, problem=(marked[1] if marked else problem).strip())

    def grade(
        self, sandbox: Sandbox, instance: Instance, patch: str | bytes, *, limits: SweLimits, in_child: InChild
    ) -> SweVerdict:
        clock, expected = Clock(limits), expected_of(instance)
        protected = self.protected(instance)
        lay_base(sandbox, WORKDIR, timeout=clock.apply)
        guard(sandbox, WORKDIR, protected, timeout=clock.apply)
        applied = apply_patch(sandbox, WORKDIR, patch, timeout=clock.apply)
        if applied.by is None:
            failed = Tally(failed=sorted(expected))
            return SweVerdict(resolved=False, why=applied.why, pass_to_pass=failed, seconds=clock.seconds)
        dropped = restore(sandbox, WORKDIR, protected, timeout=clock.apply)
        clock.note("apply")
        canary = canary_beside(["r2e_tests/test_1.py"])
        script = _with(canary)

        def ran() -> tuple[TestRun, dict[str, str], str | None]:
            run = run_tests(sandbox, script, workdir=WORKDIR, timeout=clock.tests, output_bytes=limits.output_bytes)
            clock.note("tests")
            found = results_of(run.log)
            return run, found, found.pop(f"test_{canary.name}", None)

        run, found, heard = ran()
        if not found and not run.timed_out:
            # Not one test: is that the patch's doing, or can no tests be run here at all?
            undo(sandbox, WORKDIR, timeout=clock.apply)
            without, base, _ = ran()
            if not base:
                raise EvalError(f"the tests cannot be run in this image (exit code {without.exit_code}): {without.end}")
        tally = compared(expected, found)
        why = _why_not(run, found, tally)
        if why is None and heard != "FAILED":
            undo(sandbox, WORKDIR, timeout=clock.apply)
            if ran()[2] == "FAILED":  # else such a test is not run here, for nobody's fault
                why = f"tampered: a test that must fail {'passes' if heard else 'is not in the log'}"
        return SweVerdict(
            resolved=why is None,
            why=why,
            applied_by=applied.by,
            pass_to_pass=tally,
            seconds=clock.seconds,
            timed_out=run.timed_out,
            dropped=dropped,
        )


def _with(canary: Canary) -> str:
    """What runs the tests, and one of ours among them (`bench_canary`)."""
    name = posixpath.basename(canary.path)
    return RUN.replace("@CANARY@", name).replace("@SOURCE@", quote(canary.source.decode()))


def expected_of(instance: Instance) -> dict[str, str]:
    """The status that each test must end with. Raises: `BadInstance`."""
    field = "expected_output_json"
    given = instance.get(field)
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except ValueError as error:
            raise BadInstance(f"{field} is no JSON: {error}", field=field) from error
    if not isinstance(given, Mapping) or not given:
        raise BadInstance(f"{field} must say each test's status: a JSON object, and not an empty one", field=field)
    if any(status not in STATUSES for status in given.values()):
        raise BadInstance(f"a status in {field} is one of {', '.join(STATUSES)}", field=field)
    if "PASSED" not in given.values():
        raise BadInstance(f"no test is to pass by {field}: nothing could tell a solution", field=field)
    return {_name(COLOURS.sub("", test)): str(status) for test, status in given.items()}


def results_of(log: str) -> dict[str, str]:
    """The status of each test in pytest's summary, by its classes and name. A file that failed as a whole is the
    name "".
    """
    _, _, summary = COLOURS.sub("", log).partition(SUMMARY)
    return {_name(".".join(place.split("::")[1:])): status for status, place in RESULT.findall(summary)}


def compared(expected: Mapping[str, str], found: Mapping[str, str]) -> Tally:
    """The tests that ended as they must, and those that did not; one that nothing is said of must not be there."""
    return Tally(
        passed=sorted(test for test, status in expected.items() if found.get(test) == status),
        failed=sorted(test for test in {*expected, *found} if found.get(test) != expected.get(test)),
    )


def _name(test: str) -> str:
    return test.split(" - ")[0]


def _why_not(run: TestRun, found: Mapping[str, str], tally: Tally) -> str | None:
    if run.timed_out:
        return f"the tests did not end in {run.seconds:.0f} s: {run.end}"
    if not found:
        return f"no test ran (exit code {run.exit_code}): {run.end}"
    return f"{len(tally.failed)} tests end otherwise than they must" if tally.failed else None
