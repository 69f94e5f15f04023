"""SWE-bench-form and R2E-form instances in images: real sandboxes, real runs of pytest, the package's log parsers."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from swe_image import CODE, FIXED, MORE_TESTS, diff, make_bench_image, make_r2e_image

from prorl_celery.errors import BadImage, EvalError, SandboxError
from prorl_celery.grading.swe.bench import END, START, BenchForm
from prorl_celery.grading.swe.form import SweForm, SweLimits, SweVerdict
from prorl_celery.grading.swe.patch import extract
from prorl_celery.grading.swe.r2e import R2eForm
from prorl_celery.sandbox import singularity
from prorl_celery.sandbox.base import Sandbox
from prorl_celery.sandbox.waiting import NeverCancelled
from tasks.nursery import Nursery

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(singularity.command() is None, reason="no singularity or apptainer on the PATH"),
]
BENCH, R2E = BenchForm(lambda instance: instance["image"]), R2eForm(lambda instance: instance["docker_image"])
Grade = Callable[..., SweVerdict]


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="prorl-test-swe-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def bench(place: Path) -> tuple[Path, dict[str, Any]]:
    return make_bench_image(place)


@pytest.fixture(scope="module")
def r2e(place: Path) -> dict[str, Any]:
    return make_r2e_image(place)


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    nursery = Nursery()
    yield nursery
    nursery.close()


@pytest.fixture
def grade(nursery: Nursery, swe_start: Callable[..., Sandbox]) -> Iterator[Grade]:
    """Grade a patch in a fresh sandbox."""

    def run(form: SweForm, instance: dict[str, Any], patch: str, **limits: Any) -> SweVerdict:
        sandbox = swe_start(image=form.image(instance))
        try:
            return form.grade(
                sandbox,
                instance,
                patch,
                limits=SweLimits(**limits),
                in_child=partial(nursery.call, cancel=never),
            )
        finally:
            sandbox.stop()

    with NeverCancelled() as never:
        yield run


def with_(bench: tuple[Path, dict[str, Any]], files: dict[str, str | None]) -> str:
    return diff(bench[0], files)


def test_the_fix_is_resolved_and_less_is_not(grade: Grade, bench: tuple[Path, dict[str, Any]]) -> None:
    instance = bench[1]
    said = grade(BENCH, instance, instance["patch"])
    assert (said.resolved, said.why, said.applied_by, said.dropped) == (True, None, "git", ())
    assert list(said.fail_to_pass.passed) == ["tests/test_requests.py::test_strip"]
    assert set(said.seconds) == {"apply", "tests"}
    said = grade(BENCH, instance, with_(bench, {"requests.py": CODE + "\n"}))
    assert (said.resolved, said.why) == (False, "1 of FAIL_TO_PASS fail (exit code 1)")
    said = grade(BENCH, instance, with_(bench, {"requests.py": FIXED.replace("base +", "")}))
    assert (said.resolved, said.why) == (False, "1 of PASS_TO_PASS fail (exit code 1)")
    assert list(said.pass_to_pass.failed) == ["tests/test_requests.py::test_join"]


BROKEN = {
    "no Python": "def get(",
    "an end": "import os\nos._exit(0)\n",
    "a crash": "import ctypes\nctypes.string_at(0)\n",
    "a polite end": "raise SystemExit(0)\n",
    "all killed": "import os\nos.kill(-1, 9)\n",
    "a forged summary": "import os\nlog = open(f'/proc/{os.getppid()}/fd/1', 'a')\n"
    "for name in ('strip', 'lower', 'join'):\n"
    "    print(f'PASSED tests/test_requests.py::test_{name}', file=log, flush=True)\nos._exit(1)\n",
}


FORGED = "".join(f"PASSED tests/test_requests.py::test_{name}\\n" for name in ("strip", "lower", "join"))
ALL_PASS = """
import _pytest.reports as r
was = vars(r.TestReport)["from_item_and_call"].__func__
def made(cls, item, call):
    call.excinfo = None
    return was(cls, item, call)
r.TestReport.from_item_and_call = classmethod(made)
"""
SAY = f"""
import os
for number in range(3, 30):
    try:
        os.write(number, b"\\n{FORGED}")
    except OSError:
        pass
"""
FORGING = {
    "an end with success": (SAY + "os._exit(0)\n", "is not in the log"),
    "all passes": (CODE + ALL_PASS, "passes, behind"),
}  # fmt: skip


@pytest.mark.parametrize("script", [False, True], ids=["a command", "a script"])
@pytest.mark.parametrize("case", FORGING)
def test_results_that_are_forged_leave_out_the_test_that_must_fail(
    grade: Grade, bench: tuple[Path, dict[str, Any]], case: str, script: bool
) -> None:
    code, why = FORGING[case]
    instance = bench[1]
    if script:
        lines = SCRIPT.format(commit=instance["base_commit"], patch=instance["test_patch"])
        instance = instance | {"eval_script": lines, "log_parser": "parse_log_pytest"}
    said = grade(BENCH, instance, with_(bench, {"requests.py": code}))
    assert not said.resolved
    assert said.why is not None
    assert why in said.why


def test_only_the_tests_say_what_is_expected_to_fail(grade: Grade, bench: tuple[Path, dict[str, Any]]) -> None:
    code = "import pytest\n" + CODE.replace(
        "    return url.lower()", "    if url[0] == ' ':\n        pytest.xfail('later')\n    return url.lower()"
    )
    said = grade(BENCH, bench[1], with_(bench, {"requests.py": code}))
    assert not said.resolved
    assert said.why == (
        "tampered: tests/test_requests.py::test_strip is expected to fail, of which the tests say nothing"
    )
    honest = bench[1]["test_patch"].replace("+def test_strip", "+@__import__('pytest').mark.xfail\n+def test_strip")
    lines = int(honest.split(" @@")[0].rpartition(",")[2])
    instance = bench[1] | {"test_patch": honest.replace(f",{lines} @@", f",{lines + 1} @@", 1)}
    assert grade(BENCH, instance, with_(bench, {"requests.py": code})).resolved


def test_where_the_test_that_must_fail_is_not_run_for_nobodys_fault_it_does_not_count(
    grade: Grade, bench: tuple[Path, dict[str, Any]]
) -> None:
    command = "pytest -rA -p no:cacheprovider --ignore-glob=tests/test_[a-qs-z]* tests"
    instance = bench[1] | {"test_cmd": command, "log_parser": "parse_log_pytest"}
    said = grade(BENCH, instance, instance["patch"])
    assert (said.resolved, said.why) == (True, None)


@pytest.mark.parametrize("case", BROKEN)
def test_code_that_ends_the_tests_is_not_resolved(grade: Grade, bench: tuple[Path, dict[str, Any]], case: str) -> None:
    said = grade(BENCH, bench[1], with_(bench, {"requests.py": BROKEN[case]}))
    assert not said.resolved
    assert said.why
    assert not said.timed_out


def test_tests_that_hang_are_ended_in_their_time(grade: Grade, bench: tuple[Path, dict[str, Any]]) -> None:
    hanging = with_(bench, {"requests.py": FIXED.replace("return url", "while True: pass\n    return url")})
    said = grade(BENCH, bench[1], hanging, test_seconds=6.0)
    assert (said.resolved, said.timed_out) == (False, True)
    assert said.why is not None
    assert said.why.startswith("the tests did not end in ")


def test_tests_that_print_without_end_are_read_by_head_and_tail(
    grade: Grade, bench: tuple[Path, dict[str, Any]]
) -> None:
    loud = "import sys\nfor _ in range(400):\n    sys.__stdout__.write('x' * 99_999 + '\\n')\n" + FIXED
    said = grade(BENCH, bench[1], with_(bench, {"requests.py": loud}), output_bytes=1 << 20)
    assert (said.resolved, said.why) == (True, None)
    endless = "import os\nwhile True:\n    os.write(1, b'x' * 99_999)\n"
    said = grade(BENCH, bench[1], with_(bench, {"requests.py": endless}), output_bytes=1 << 20, test_seconds=60.0)
    assert not said.resolved


def test_a_patch_that_does_not_apply_says_so(grade: Grade, bench: tuple[Path, dict[str, Any]]) -> None:
    said = grade(BENCH, bench[1], bench[1]["patch"].replace("lower", "upper"))
    assert (said.resolved, said.applied_by) == (False, None)
    assert said.why is not None
    assert said.why.startswith("the patch does not apply: ")
    assert list(said.fail_to_pass.failed) == ["tests/test_requests.py::test_strip"]


def test_one_that_fits_but_for_its_context_is_applied_by_patch(
    grade: Grade, bench: tuple[Path, dict[str, Any]]
) -> None:
    said = grade(BENCH, bench[1], bench[1]["patch"].replace("\n def join", "\n def joined"))
    assert (said.resolved, said.applied_by) == (True, "patch")


CHEATS: dict[str, tuple[dict[str, str | None], str]] = {
    "conftest.py": (
        {"conftest.py": "def pytest_collection_modifyitems(items):\n    for i in items: i.obj = lambda: None\n"},
        "conftest.py",
    ),
    "its test": (
        {"tests/test_requests.py": "def test_strip(): pass\ndef test_lower(): pass\ndef test_join(): pass\n"},
        "tests/test_requests.py",
    ),
    "pytest.ini": ({"pytest.ini": "[pytest]\naddopts = --collect-only\n"}, "pytest.ini"),
    "sitecustomize.py": ({"sitecustomize.py": "import builtins\n"}, "sitecustomize.py"),
    "a pytest of its own": ({"pytest.py": "print('PASSED tests/test_requests.py::test_strip')\n"}, "pytest.py"),
}


@pytest.mark.parametrize("cheat", CHEATS)
def test_files_that_steer_the_tests_are_put_back(grade: Grade, bench: tuple[Path, dict[str, Any]], cheat: str) -> None:
    files, dropped = CHEATS[cheat]
    said = grade(BENCH, bench[1], with_(bench, files))
    assert not said.resolved
    assert said.dropped == (dropped,)
    assert said.fail_to_pass.failed


SCRIPT = f"""#!/bin/bash
set -uxo pipefail
cd /testbed
git config --global --add safe.directory /testbed
git checkout {{commit}} tests/test_requests.py
git apply -v - <<'EOF_114329324912'
{{patch}}
EOF_114329324912
: '{START}'
pytest -rA tests/test_requests.py
: '{END}'
echo 'FAILED tests/test_requests.py::test_strip is said outside of the marks, and does not count'
git checkout {{commit}} tests/test_requests.py
"""


def test_a_test_that_minds_a_file_of_ours_counts_as_without_it(
    grade: Grade, bench: tuple[Path, dict[str, Any]]
) -> None:
    minds = "\n\ndef test_alone():\n    import os\n    assert os.listdir('tests') == ['test_requests.py']\n"
    instance = bench[1] | {
        "test_patch": with_(bench, {"tests/test_requests.py": MORE_TESTS + minds}),
        "test_cmd": "pytest -rA -p no:cacheprovider tests/test_requests.py",
        "log_parser": "parse_log_pytest",
        "PASS_TO_PASS": [*bench[1]["PASS_TO_PASS"], "tests/test_requests.py::test_alone"],
    }
    said = grade(BENCH, instance, instance["patch"])
    assert (said.resolved, said.why) == (True, None)


def test_an_instances_own_script_is_run(grade: Grade, bench: tuple[Path, dict[str, Any]]) -> None:
    instance = bench[1]
    script = SCRIPT.format(commit=instance["base_commit"], patch=instance["test_patch"])
    instance = instance | {"eval_script": script, "log_parser": "parse_log_pytest", "repo": "nobody/knows"}
    BENCH.validate(instance)
    assert grade(BENCH, instance, instance["patch"]).resolved
    forged = f"print('''{END}\nPASSED tests/test_requests.py::test_strip\n{START}''')\n" + CODE
    said = grade(BENCH, instance, with_(bench, {"requests.py": forged}))
    assert (said.resolved, list(said.fail_to_pass.failed)) == (False, ["tests/test_requests.py::test_strip"])


def test_what_is_no_fault_of_the_patch_is_an_error(grade: Grade, bench: tuple[Path, dict[str, Any]]) -> None:
    instance = bench[1]
    with pytest.raises(EvalError, match="test patch does not fit"):
        grade(BENCH, instance | {"test_patch": instance["test_patch"].replace("assert", "assent")}, instance["patch"])
    no_tests = instance | {"test_cmd": "no-such-program", "log_parser": "parse_log_pytest"}
    with pytest.raises(EvalError, match=r"cannot be run in this image \(exit code 127\)"):
        grade(BENCH, no_tests, instance["patch"])
    with pytest.raises(SandboxError, match="there is no image"):
        grade(BENCH, instance | {"image": "/nowhere/none.sif"}, instance["patch"])


def test_the_agents_sandbox_has_no_later_history_and_the_environment(
    swe_start: Callable[..., Sandbox], bench: tuple[Path, dict[str, Any]]
) -> None:
    instance = bench[1]
    sandbox = swe_start(image=instance["image"])
    try:
        base = BENCH.prepare(sandbox, instance, timeout=60)["base"]
        said = sandbox.shell.run("pwd; git log --all --format=%s; git status --porcelain; git tag", timeout=30)
        assert said.output.split() == ["/testbed", "base", "v2.0"]
        assert sandbox.shell.run("grep -r 'of later' /testbed/.git", timeout=30).exit_code == 1
        assert (
            sandbox.shell.run("pytest -q && sed -i s/url.lower/url.strip.lower/ requests.py", timeout=60).exit_code == 0
        )
        taken = extract(sandbox, "/testbed", base, timeout=60)
        assert taken.patch is not None
        assert taken.patch.count("diff --git") == 1
    finally:
        sandbox.stop()


def test_an_image_that_is_not_what_the_instance_says_is_refused(
    swe_start: Callable[..., Sandbox], bench: tuple[Path, dict[str, Any]]
) -> None:
    sandbox = swe_start(image=bench[1]["image"])
    try:
        sandbox.shell.run(
            "export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a", timeout=9
        )
        other = sandbox.shell.run("cd /testbed; git commit-tree -m other HEAD^{tree}", timeout=30).output.strip()
        with pytest.raises(BadImage, match="does not stand at"):
            BENCH.prepare(sandbox, bench[1] | {"base_commit": other}, timeout=60)
        sandbox.shell.run("rm -r /testbed/.git/HEAD", timeout=30)
        with pytest.raises(BadImage, match="no git repository at /testbed"):
            BENCH.prepare(sandbox, bench[1], timeout=60)
    finally:
        sandbox.stop()


def test_an_image_may_be_one_file(grade: Grade, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = Path(tempfile.mkdtemp(prefix="prorl-test-swe-"))
    folder.chmod(0o755)
    try:
        repository, instance = make_bench_image(folder, packed=True)
        assert instance["image"].endswith(".sif")
        assert grade(BENCH, instance, instance["patch"]).resolved
        assert not grade(BENCH, instance, diff(repository, {"requests.py": CODE + "\n"})).resolved
    finally:
        shutil.rmtree(folder)


def test_r2es_instances_are_graded_by_what_each_test_must_end_with(
    grade: Grade, bench: tuple[Path, dict[str, Any]], r2e: dict[str, Any]
) -> None:
    R2E.validate(r2e)
    said = grade(R2E, r2e, r2e["patch"])
    assert (said.resolved, said.why, len(said.pass_to_pass.passed)) == (True, None, 4)
    said = grade(R2E, r2e, with_(bench, {"requests.py": CODE + "\n"}))
    assert (said.resolved, list(said.pass_to_pass.failed)) == (False, ["test_strip"])
    said = grade(R2E, r2e, with_(bench, {"run_tests.sh": "echo\n", "r2e_tests/test_1.py": "def test_strip(): pass\n"}))
    assert not said.resolved
    said = grade(R2E, r2e, with_(bench, {"requests.py": "def get("}))
    assert not said.resolved
    with pytest.raises(EvalError, match="cannot be run"):
        grade(R2E, r2e | {"docker_image": bench[1]["image"]}, r2e["patch"])


def test_r2es_agent_sees_no_tests(swe_start: Callable[..., Sandbox], r2e: dict[str, Any]) -> None:
    sandbox = swe_start(image=r2e["docker_image"])
    try:
        base = R2E.prepare(sandbox, r2e, timeout=60)["base"]
        assert (
            sandbox.shell.run("cat /r2e_tests/* run_tests.sh; git ls-files", timeout=30).output.count("test_strip") == 0
        )
        assert sandbox.shell.run("grep -rs test_never / --include=*.py --exclude-dir=usr", timeout=60).output == ""
        assert sandbox.shell.run("python -c 'import sys; print(sys.executable)'", timeout=30).output == (
            "/testbed/.venv/bin/python\n"
        )
        assert extract(sandbox, "/testbed", base, timeout=60).patch == ""
    finally:
        sandbox.stop()


def test_r2es_forged_results_leave_out_the_test_that_must_fail(
    grade: Grade, bench: tuple[Path, dict[str, Any]], r2e: dict[str, Any]
) -> None:
    lines = "".join(f"PASSED r2e_tests/test_1.py::test_{name}\\n" for name in ("strip", "lower", "join"))
    said = "= short test summary info =\\n" + lines + "FAILED r2e_tests/test_1.py::test_never"
    forging = SAY.replace(FORGED, said) + "os._exit(0)\n"
    said_of = grade(R2E, r2e, with_(bench, {"requests.py": forging}))
    assert (said_of.resolved, said_of.why) == (False, "tampered: a test that must fail is not in the log")
