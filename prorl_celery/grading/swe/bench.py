"""SWE-bench's form of instances: `repo`, `base_commit`, `test_patch`, `FAIL_TO_PASS`, `PASS_TO_PASS`, an image each.

It serves SWE-bench and its subsets, SWE-bench Multimodal, and SWE-Gym. In the image the repository is at /testbed,
ready to run its tests, in a conda environment `testbed` where there is one. The agent's sandbox is that image without
the later history; the tests come with `test_patch`, which only eval's sandbox sees.

Grading, in a fresh sandbox of the same image: the test patch, then the agent's patch; then the files of the test patch
and those by which test runners are steered are put back to what they were without the agent's (`apply`); then the test
command, whose log is read by the repository's own format (`bench_report`). Resolved is what has all of both lists
passed.

What the tests' process prints is what counts, and code under test shares that process. What is done about it: where
the command is one of pytest's, a test of ours that must fail is run behind the others (`bench_canary`), so that a
process that ends before its end, or makes all of its tests pass, resolves nothing; an exit code that contradicts the
log makes it worth nothing. Not told: code that forges what pytest prints to the end, ours included; that changes
reports of the instance's tests alone; whose answers are equal to everything, or are read in the tests. Other runners
(Django's, SymPy's) have the exit code alone. The form of `pypi` tells more of these.
"""

from __future__ import annotations

import json
import math
import re
import secrets
from collections.abc import Callable, Sequence
from shlex import quote
from typing import Any

from prorl_celery.errors import BadImage, BadInstance, EvalError, SandboxError
from prorl_celery.grading.swe.apply import apply_patch, guard, lay_base, restore, undo
from prorl_celery.grading.swe.bench_canary import Canary, canary_beside
from prorl_celery.grading.swe.bench_report import report
from prorl_celery.grading.swe.bench_specs import Spec, changed_files, spec_of
from prorl_celery.grading.swe.form import InChild, Instance, SweLimits, SweVerdict, Tally
from prorl_celery.grading.swe.patch import keep_base
from prorl_celery.grading.swe.verdict_run import Clock, TestRun, run_tests
from prorl_celery.sandbox.base import Sandbox

WORKDIR = "/testbed"
ACTIVATE = "if [ -f /opt/miniconda3/bin/activate ]; then . /opt/miniconda3/bin/activate testbed; fi"
"""The environment that SWE-bench's images run their tests in."""
REPORT_SECONDS = 60.0
EXPECTED = "xfail|expected_?failure"
TESTS_FAILED = 1
"""pytest's exit code."""
START, END = ">>>>> Start Test Output", ">>>>> End Test Output"
"""Lines of an `eval_script` between which the tests print."""
PROMPT = """The repository {repo} is at {workdir}, at the version that this issue is about:

<issue>
{problem}
</issue>

Change the code so that the issue is resolved. Tests for it exist that you cannot see, and the tests that pass now must
go on to pass; you need not write any. What counts is the files as you leave them: leave no scratch files behind. The
environment of the project is active in your shell, and there is no network."""


class BenchForm:
    """SWE-bench's, SWE-bench Multimodal's and SWE-Gym's instances. `image_of` says where an instance's image is."""

    def __init__(self, image_of: Callable[[Instance], str]) -> None:
        self._image_of = image_of

    def validate(self, instance: Instance) -> None:
        for field in ("problem_statement", "test_patch", "repo", "base_commit"):
            if not isinstance(instance.get(field), str) or not instance[field].strip():
                raise BadInstance(f"{field} must be text, and not empty", field=field)
        if not isinstance(instance.get("version", ""), str | int | float | None):
            raise BadInstance("version must be text", field="version")
        if not listed_in(instance, "FAIL_TO_PASS"):
            raise BadInstance("FAIL_TO_PASS names no test: nothing could tell a solution", field="FAIL_TO_PASS")
        listed_in(instance, "PASS_TO_PASS")
        if not changed_files(instance["test_patch"]):
            raise BadInstance("test_patch is no patch: no line begins with `diff --git`", field="test_patch")
        spec_of(instance)
        self.image(instance)

    def image(self, instance: Instance) -> str:
        return self._image_of(instance)

    def workdir(self, instance: Instance) -> str:
        return WORKDIR

    def prepare(self, sandbox: Sandbox, instance: Instance, *, timeout: float) -> dict[str, Any]:
        check_repository(sandbox, WORKDIR, instance["base_commit"], timeout=timeout)
        base = keep_base(sandbox, WORKDIR, timeout=timeout)
        sandbox.shell.run(f"{ACTIVATE}; cd {WORKDIR}", timeout=timeout)
        return {"base": base}

    def protected(self, instance: Instance) -> tuple[str, ...]:
        return changed_files(instance["test_patch"])

    def prompt(self, instance: Instance) -> str:
        return PROMPT.format(repo=instance["repo"], workdir=WORKDIR, problem=instance["problem_statement"].strip())

    def grade(
        self, sandbox: Sandbox, instance: Instance, patch: str | bytes, *, limits: SweLimits, in_child: InChild
    ) -> SweVerdict:
        clock, spec = Clock(limits), spec_of(instance)
        tests = self.protected(instance)
        lay_base(sandbox, WORKDIR, timeout=clock.apply)
        if spec.script is None:
            laid = apply_patch(sandbox, WORKDIR, instance["test_patch"], keep=True, timeout=clock.apply)
            if laid.by is None:
                raise EvalError(f"the instance's test patch does not fit its image: {laid.why}")
        of_the_gold = changed_files(str(instance.get("patch") or ""))
        guard(sandbox, WORKDIR, tests, free=of_the_gold, timeout=clock.apply)
        applied = apply_patch(sandbox, WORKDIR, patch, timeout=clock.apply)
        wanted = {field: listed_in(instance, field) for field in ("FAIL_TO_PASS", "PASS_TO_PASS")}
        if applied.by is None:
            return SweVerdict(
                resolved=False,
                why=applied.why,
                fail_to_pass=Tally(failed=wanted["FAIL_TO_PASS"]),
                pass_to_pass=Tally(failed=wanted["PASS_TO_PASS"]),
                seconds=clock.seconds,
            )
        dropped = restore(sandbox, WORKDIR, tests, free=of_the_gold, timeout=clock.apply)
        clock.note("apply")

        ours = canary_beside(tests)
        canary = ours if _runs_canary(spec, ours) else None

        def graded() -> tuple[TestRun, bool, Any]:
            run, complete = _run(sandbox, spec, clock, limits, canary)
            ids = {field.lower(): list(ids) for field, ids in wanted.items()}
            argument = {"log": run.log, "parser": spec.parser, "eval_type": spec.eval_type, "exit_code": run.exit_code}
            heard = canary.heard(run.log) if canary else None
            if canary and heard == "failed":
                argument["log"] = canary.without(run.log)
                argument["exit_code"] = None if run.exit_code == TESTS_FAILED else run.exit_code
            said = in_child(report, argument | ids, timeout=clock.within(REPORT_SECONDS))
            return run, complete, {**said, "canary": heard}

        run, complete, said = graded()
        clock.note("tests")
        if canary and not run.timed_out and _may_be_ours(said, wanted) and clock.within(math.inf) > 2 * run.seconds:
            sandbox.shell.run(f"\\rm -f {quote(f'{WORKDIR}/{canary.path}')}", timeout=clock.apply)
            canary = None
            run, complete, said = graded()
            clock.note("tests")
        if not said["ran"] and not run.timed_out:
            # Not one test: is that the patch's doing, or can no tests be run here at all?
            undo(sandbox, WORKDIR, timeout=clock.apply)
            without, _, base = graded()
            if not base["ran"]:
                raise EvalError(f"the tests cannot be run in this image (exit code {without.exit_code}): {without.end}")
        tallies = {
            field: Tally(
                passed=[test for test in ids if test in set(said[field.lower()])],
                failed=[test for test in ids if test not in set(said[field.lower()])],
            )
            for field, ids in wanted.items()
        }
        why = _why_not(run, complete, said, tallies)
        if why is None and said["expected"] and not _speak_of_failures(sandbox, tests, clock.apply):
            why = f"tampered: {said['expected'][0]} is expected to fail, of which the tests say nothing"
        if why is None and canary and said["canary"] != "failed":
            # Is that the patch's doing, or does such a test not get run here?
            undo(sandbox, WORKDIR, timeout=clock.apply)
            _, _, base = graded()
            clock.note("tests")
            if base["canary"] == "failed":
                did = "passes" if said["canary"] else "is not in the log"
                why = f"tampered: a test that must fail {did}, behind the others"
        return SweVerdict(
            resolved=why is None,
            why=why,
            applied_by=applied.by,
            fail_to_pass=tallies["FAIL_TO_PASS"],
            pass_to_pass=tallies["PASS_TO_PASS"],
            seconds=clock.seconds,
            timed_out=run.timed_out,
            dropped=dropped,
        )


def listed_in(instance: Instance, field: str) -> tuple[str, ...]:
    """A list of test ids, which data sets also carry as JSON text. Raises: `BadInstance`."""
    given = instance.get(field)
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except ValueError as error:
            raise BadInstance(f"{field} is text, but no JSON list: {error}", field=field) from error
    if not isinstance(given, list | tuple) or not all(isinstance(test, str) and test for test in given):
        raise BadInstance(f"{field} must be a list of test ids, or such a list as JSON text", field=field)
    return tuple(dict.fromkeys(given))


def check_repository(sandbox: Sandbox, workdir: str, commit: str, *, timeout: float) -> None:
    """See that an image has a repository at `workdir` which stands at `commit` or was made from it.

    Raises: `BadImage`, `SandboxError`.
    """
    git = f"GIT_DIR={quote(workdir)}/.git git"
    found = sandbox.shell.run(f"cd {quote(workdir)} && {git} rev-parse -q --verify HEAD >/dev/null", timeout=timeout)
    if found.exit_code != 0:
        raise BadImage(f"the image has no git repository at {workdir}: {found.output.strip()[-300:]}")
    if not re.fullmatch(r"[0-9a-f]{7,64}", commit):
        return
    asked = f"{git} cat-file -e {commit}^{{commit}} 2>/dev/null || exit 0; {git} merge-base --is-ancestor {commit} HEAD"
    if sandbox.shell.run(f"({asked})", timeout=timeout).exit_code == 1:
        raise BadImage(f"the repository at {workdir} in the image does not stand at {commit}, but beside it")


def _run(sandbox: Sandbox, spec: Spec, clock: Clock, limits: SweLimits, canary: Canary | None) -> tuple[TestRun, bool]:
    """Run the tests. Returns the run, its log being what the tests printed, and whether the script came to its end."""
    token = secrets.token_hex(16)
    if canary:
        try:
            sandbox.files.write(f"{WORKDIR}/{canary.path}", canary.source)
        except OSError as error:
            raise SandboxError(f"a test could not be written into the sandbox: {error}") from error
    if spec.script is None:
        begin, end = f"echo {token}", f"code=$?; echo; echo {token}:$code"
        command = (canary.added(spec.command) if canary else None) or spec.command
        script = "\n".join((ACTIVATE, f"cd {WORKDIR}", spec.setup, begin, command, end))
    else:
        script = framed(spec.script, token, canary)
    run = run_tests(sandbox, script, workdir=WORKDIR, timeout=clock.tests, output_bytes=limits.output_bytes)
    if token not in script:
        return run, True
    # Of the first beginning and the last end: what the tests print may hold anything but the token.
    first, last = run.log.find(token), run.log.rfind(token)
    codes = re.findall(rf"^{token}:(\d+)$", run.log, re.M)
    log = run.log[first + len(token) : last if last > first >= 0 else None]
    code = int(codes[-1]) if codes else run.exit_code
    return TestRun(log=log, exit_code=None if run.timed_out else code, seconds=run.seconds), bool(codes)


def framed(script: str, token: str, canary: Canary | None = None) -> str:
    """A script whose marks around the tests' output are ones that no program can have printed before, the second with
    the exit code of the command before it; the canary is behind that command where it is one, and takes it. Without
    such marks, the script itself.
    """
    lines = script.splitlines()
    marks = _marks(lines)
    if marks is None:
        return script
    start, end = marks
    if end == start + 2 and canary:
        lines[start + 1] = canary.added(lines[start + 1]) or lines[start + 1]
    lines[end] = f"code=$?; echo; echo {token}:$code"
    lines[start] = f"echo {token}"
    return "\n".join(lines) + "\n"


def _marks(lines: Sequence[str]) -> tuple[int, int] | None:
    starts = [number for number, line in enumerate(lines) if START in line]
    ends = [number for number, line in enumerate(lines) if END in line]
    return (starts[0], ends[-1]) if starts and ends else None


def _runs_canary(spec: Spec, canary: Canary) -> bool:
    if spec.script is None:
        return canary.added(spec.command) is not None
    return framed(spec.script, "") != framed(spec.script, "", canary)


def _may_be_ours(said: Any, wanted: dict[str, tuple[str, ...]]) -> bool:
    """Whether the test of ours may be what is wrong, as where a test looks at the list of test files."""
    passes = set(said["pass_to_pass"])
    solved = set(said["fail_to_pass"]) >= set(wanted["FAIL_TO_PASS"])
    return not said["ran"] or (solved and not passes.issuperset(wanted["PASS_TO_PASS"]))


def _speak_of_failures(sandbox: Sandbox, tests: Sequence[str], timeout: float) -> bool:
    """Whether the tests' files say of any test that it is expected to fail. Code under test can say it too."""
    grep = f"grep -qsiE {quote(EXPECTED)} -- {' '.join(map(quote, tests))}"
    found = sandbox.shell.run(
        f"(cd {WORKDIR} && {{ {grep} || grep -rqsiE --include=conftest.py {quote(EXPECTED)} .; }})", timeout=timeout
    )
    if found.exit_code not in (0, 1, 2):
        raise SandboxError(f"the tests' files cannot be searched (exit code {found.exit_code}): {found.output[-500:]}")
    return found.exit_code == 0


def _why_not(run: TestRun, complete: bool, said: Any, tallies: dict[str, Tally]) -> str | None:
    """What speaks against it being resolved."""
    if run.timed_out:
        return f"the tests did not end in {run.seconds:.0f} s: {run.end}"
    if not complete:
        return f"the run of the tests was cut off: {run.end}"
    if said["why"]:
        return str(said["why"])
    if not said["ran"]:
        return f"no test ran (exit code {run.exit_code}): {run.end}"
    failed = [f"{len(tally.failed)} of {field}" for field, tally in tallies.items() if tally.failed]
    return f"{' and '.join(failed)} fail (exit code {run.exit_code})" if failed else None
