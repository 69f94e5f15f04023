"""Instances made of releases of PyPI packages: a real bug between two releases, with hidden tests and without an image.

Fields of an instance, as `prorl datasets prepare swe-pypi` writes them: `workspace` (the base release, a folder on the
node), `wheelhouse` (pytest and what else the tests need), `problem_statement`, `test_file`, `test_source`,
`test_command` (shell text that ends in a call of pytest), `FAIL_TO_PASS`, `PASS_TO_PASS`, `source_root`, `image`. The
agent's sandbox holds the workspace as a git repository of one commit, and the wheelhouse; the rest never enters it.

What a verdict is worth
    The library under test shares a process with its tests, so no test can be trusted where the library is hostile. What
    follows is done about it; `inside/` does it, in a sandbox that the agent never touched.

    Guaranteed, whatever a patch holds, where the kernel has Landlock (Linux 5.13 and newer):
    - The test file is the instance's. Settings of pytest and of Python (`conftest.py`, `pytest.ini`, `pyproject.toml`,
      `setup.cfg`, `tox.ini`, `sitecustomize.py`, `usercustomize.py`, `*.pth`), metadata that registers plugins
      (`*.egg-info`, `*.dist-info`) and the folder of the tests are the base's: a patch loses its changes to them.
    - The standard library, pytest and all of the wheelhouse are imported from where they belong, whatever has their
      names in the workspace; byte code of the patch's is not used.
    - Outcomes are what the runner told over a pipe, in lines with a token of that run, and its last line stands behind
      them. What is printed, what exit code there is, and what files are left mean nothing. A process that ends early,
      by `os._exit(0)` or a crash, passes no test.
    - No process of a run reads or changes files of another run, of the runner or of the guard that judges; none looks
      into their memory, and from Linux 6.12 on none signals them. All are dead before the report is written, which is
      sealed with a proof that they never saw.
    - It ends: time and output are limited, memory and disk are the sandbox's.

    Found out, though not beyond a way around:
    - Whatever makes tests pass regardless of what they say: changes to pytest, its reports, its plugins, `assert`, the
      builtins, the tests' own code. The same tests are run in a control form at the same time, each with a false
      assertion at its end, and one that passes there gives it away. So does a function of pytest's or the builtins'
      that is another at the end than at the start.
    - Return values that are equal to everything: the control form compares them to more than the test does.
    - Exceptions of the test runner's own by which a library ends tests without failing them.
    - Answers that are read in the tests, or equal to everything: where a test has written out what it expects, it is
      run once more in a decoy form that expects something else, and must fail. That is the test file to the byte but
      for such values, so a library that takes its answers from the test cannot know which of the two it is in.

    Not guaranteed:
    - Code that reads the tests while they run, tells the forms apart by what is in them, and acts on it: that knows
      what the answer would be, or takes from the variables of a test what no assertion has written out. To share a
      process means this cannot be ruled out; nothing that works on all tests alike gets by.
    - That a fix is general: one that answers just what the hidden tests ask is a pass, as anywhere.
    - That the two runs, which share /tmp, /dev/shm and the loopback, do not talk: they could agree that one of them
      plays honest, and would be right about which in half of the cases.
    - That a patch cannot bring the sandbox down: then the job fails for want of its sandbox, without a reward.
    - Without Landlock, a process of a run may reach the others of its user.
"""

from __future__ import annotations

import hmac
import json
import posixpath
import secrets
import time
from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import Any

from prorl_celery.errors import BadImage, EvalError, SandboxError
from prorl_celery.grading.swe.apply import apply_patch
from prorl_celery.grading.swe.form import InChild, Instance, SweLimits, SweVerdict
from prorl_celery.grading.swe.inside.trees import test_places
from prorl_celery.grading.swe.patch import keep_base
from prorl_celery.grading.swe.pypi_fields import check_fields
from prorl_celery.grading.swe.pypi_material import find, roots_of, site_archive, workspace_tar
from prorl_celery.grading.swe.pypi_verdict import judge
from prorl_celery.sandbox.base import Sandbox
from prorl_celery.settings import Settings

WORKDIR = "/workspace/repo"
TOOLS = "/workspace/.tools"
"""What the tests need, unpacked in `site`, and `bin` with a `python` that has it."""
GRADE = "/workspace/.grade"
INSIDE = f"{GRADE}/prorl_celery/grading/swe/inside"
REPORT_BYTES = 32 << 20
SHORT_SECONDS = 60.0
"""Most for a step that takes a fraction of a second."""
GUARD_SECONDS = 30.0
"""What the guard may take beside the tests' own time."""
MOST_RUNS = 3
"""Runs of the tests that may follow one another: see `inside/guard.py`."""
SHIM = """#!/bin/sh
PYTHONPATH="${PYTHONPATH:+$PYTHONPATH:}%s/site" exec "%s" "$@"
"""

PROMPT = """The repository of the Python package {package} (version {version}) is in {workdir}. It has this problem:

<problem>
{problem}
</problem>

Find what causes it and fix it in the repository's code, so that everything that works goes on working. There is no
network, and nothing can be installed. `python -m pytest` runs tests: `python` is {tools}/bin/python, which has pytest.
{source}Tests that you do not see will check the fix; changes to existing tests and to settings of pytest do not count.
When you are done, call finish."""


class PypiForm:
    """See `SweForm`, and above."""

    def __init__(self, settings: Settings | None = None, image_of: Callable[[Instance], str] | None = None) -> None:
        """`settings`: default, those of this process's environment, when they are needed. `image_of`: where the image
        of an instance that names one is; default, its name says it.
        """
        self._settings = settings
        self._image_of = image_of or (lambda instance: str(instance["image"]))

    def validate(self, instance: Instance) -> None:
        check_fields(instance)

    def image(self, instance: Instance) -> str | None:
        return None if instance.get("image") is None else self._image_of(instance)

    def workdir(self, instance: Instance) -> str:
        return WORKDIR

    def protected(self, instance: Instance) -> tuple[str, ...]:
        root = posixpath.normpath(instance.get("source_root") or ".")
        return tuple(test_places(posixpath.normpath(instance["test_file"]), root))

    def prompt(self, instance: Instance) -> str:
        root = instance.get("source_root") or "."
        return PROMPT.format(
            package=instance.get("package") or "here",
            version=instance.get("base_version") or "unknown",
            workdir=WORKDIR,
            problem=instance["problem_statement"].strip(),
            tools=TOOLS,
            source="" if root == "." else f"The package is in {root}: PYTHONPATH={root} makes it importable.\n",
        )

    def prepare(self, sandbox: Sandbox, instance: Instance, *, timeout: float) -> dict[str, Any]:
        self._lay(sandbox, instance, timeout)
        base = keep_base(sandbox, WORKDIR, timeout=timeout)
        _run(sandbox, f"rm -f {GRADE}.tar; export PATH={TOOLS}/bin:$PATH; cd {WORKDIR}", timeout)
        return {"base": base}

    def grade(
        self, sandbox: Sandbox, instance: Instance, patch: str | bytes, *, limits: SweLimits, in_child: InChild
    ) -> SweVerdict:
        began = time.monotonic()
        self._lay(sandbox, instance, SHORT_SECONDS)
        keep_base(sandbox, WORKDIR, timeout=SHORT_SECONDS)
        laid = time.monotonic()
        applied = apply_patch(sandbox, WORKDIR, patch, timeout=limits.apply_seconds)
        seconds = {"lay": round(laid - began, 3), "apply": round(time.monotonic() - laid, 3)}
        both = (instance["FAIL_TO_PASS"], instance["PASS_TO_PASS"])
        if applied.by is None:
            nothing = _nothing_ran()
            verdict = judge(nothing, *both)
            return SweVerdict(
                resolved=False, why=applied.why, seconds=seconds,
                fail_to_pass=verdict.fail_to_pass, pass_to_pass=verdict.pass_to_pass,
            )  # fmt: skip
        tests = time.monotonic()
        left = limits.total_seconds - (tests - began)
        facts = self._run_guard(sandbox, instance, limits, left)
        verdict = judge(facts, *both)
        seconds["tests"] = round(time.monotonic() - tests, 3)
        return SweVerdict(
            resolved=verdict.resolved, why=verdict.why, applied_by=applied.by, seconds=seconds, dropped=verdict.dropped,
            fail_to_pass=verdict.fail_to_pass, pass_to_pass=verdict.pass_to_pass, timed_out=verdict.timed_out,
        )  # fmt: skip

    def _lay(self, sandbox: Sandbox, instance: Instance, timeout: float) -> None:
        """The workspace at WORKDIR, what tests need at TOOLS. Raises: `BadInstance`, `BadImage`, `SandboxError`."""
        roots = roots_of(self._settings or Settings.from_env())
        workspace = workspace_tar(find(instance["workspace"], "workspace", roots))
        named = instance.get("wheelhouse")
        site = None if named is None else site_archive(find(named, "wheelhouse", roots))
        have = sandbox.shell.run("type -P python3 && type -P tar && type -P git && type -P gzip", timeout=timeout)
        if have.exit_code != 0:
            raise BadImage(f"the sandbox lacks one of python3, tar, git, gzip: it has {have.output.split()}")
        python = have.output.split()[0]
        _write(sandbox, f"{GRADE}.tar", workspace)
        _run(sandbox, f"mkdir -p {WORKDIR} {TOOLS}/site && tar -xf {GRADE}.tar --no-same-owner -C {WORKDIR}", timeout)
        if site is not None:
            _write(sandbox, f"{TOOLS}/site.tar.gz", site)
            unpack = f"cd {TOOLS} && tar -xzf site.tar.gz --no-same-owner -C site && rm site.tar.gz"
            _run(sandbox, f"({unpack})", timeout)
        for name in ("python", "python3"):
            _write(sandbox, f"{TOOLS}/bin/{name}", (SHIM % (TOOLS, python)).encode())
        _run(sandbox, f"chmod 755 {TOOLS}/bin/*", timeout)

    def _run_guard(self, sandbox: Sandbox, instance: Instance, limits: SweLimits, left: float) -> dict[str, Any]:
        """Run the guard, and return its report. Raises: `EvalError` where there is none; `SandboxError`."""
        seconds = max(1.0, min(limits.test_seconds, (left - GUARD_SECONDS) / MOST_RUNS))
        report, proof = f"/workspace/.report-{secrets.token_hex(8)}", secrets.token_hex(32)
        root = posixpath.normpath(instance.get("source_root") or ".")
        job = {
            "base": f"{GRADE}/base", "patched": WORKDIR, "tools": f"{TOOLS}/site" if instance.get("wheelhouse") else "",
            "test_file": posixpath.normpath(instance["test_file"]), "test_source": instance["test_source"],
            "test_command": instance["test_command"], "source_root": root,
            "ids": [*instance["FAIL_TO_PASS"], *instance["PASS_TO_PASS"]], "keep": list(instance["PASS_TO_PASS"]),
            "seconds": seconds, "output_bytes": limits.output_bytes, "report": report,
        }  # fmt: skip
        for name in ("child", "controls", "decoys", "guard", "jail", "probe", "runs", "told", "trees"):
            _write(sandbox, f"{INSIDE}/{name}.py", _script(name))
        _write(sandbox, f"{GRADE}/job.json", json.dumps(job).encode())
        _run(sandbox, f"mkdir {GRADE}/base && tar -xf {GRADE}.tar --no-same-owner -C {GRADE}/base", SHORT_SECONDS)
        program = f"/usr/bin/env -u PYTHONPATH python3 -I -S {INSIDE}/guard.py {GRADE}/job.json"
        command = f"(cd / && printf '{proof}\\n' | {program})"
        ran = sandbox.shell.run(command, timeout=MOST_RUNS * seconds + GUARD_SECONDS)
        said = ran.output.replace(proof, "")[-2000:]
        if ran.timed_out or ran.exit_code != 0:
            raise EvalError(f"the tests could not be run (exit code {ran.exit_code}): {said}")
        try:
            text, _, seal = sandbox.files.read(report, limit_bytes=REPORT_BYTES).decode().rstrip("\n").rpartition("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise EvalError(f"the tests' report cannot be read: {error}") from error
        if not hmac.compare_digest(seal, hmac.new(proof.encode(), text.encode(), "sha256").hexdigest()):
            raise EvalError("the tests' report has been changed")
        facts: dict[str, Any] = json.loads(text)
        return facts


def _nothing_ran() -> Mapping[str, Any]:
    run = {
        "outcomes": {}, "messages": {}, "alien": [], "changed": [], "uncollected": [], "forged": 0, "ended": True,
        "no_pytest": None, "escaped": {}, "stopped": None, "status": None, "output": "",
    }  # fmt: skip
    return {"real": run, "control": None, "dropped": [], "controlled": [], "decoyed": []}


def _script(name: str) -> bytes:
    return files("prorl_celery.grading.swe.inside").joinpath(f"{name}.py").read_bytes()


def _write(sandbox: Sandbox, path: str, data: bytes) -> None:
    try:
        sandbox.files.write(path, data)
    except OSError as error:
        raise SandboxError(f"{path} could not be written into the sandbox: {error.strerror or error}") from error


def _run(sandbox: Sandbox, command: str, timeout: float) -> None:
    ran = sandbox.shell.run(command, timeout=timeout)
    if ran.exit_code != 0:
        raise SandboxError(f"the workspace could not be laid (exit code {ran.exit_code}): {ran.output[-500:]}")
