"""What SWE-bench-form and R2E-form instances must say, and what is told of them."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from prorl_celery.errors import BadInstance
from prorl_celery.grading.swe import bench_specs
from prorl_celery.grading.swe.bench import END, START, BenchForm, framed, listed_in
from prorl_celery.grading.swe.bench_specs import COMMANDS, changed_files, directives, parsers, spec_of
from prorl_celery.grading.swe.form import Tally
from prorl_celery.grading.swe.r2e import R2eForm, compared, expected_of, results_of

PATCH = """diff --git a/tests/queries/test_q.py b/tests/queries/test_q.py
--- a/tests/queries/test_q.py
+++ b/tests/queries/test_q.py
@@ -1 +1,2 @@
 x
+diff --git a/no b/no
diff --git a/tests/data.json b/tests/data.json
new file mode 100644
diff --git "a/tests/test_\\303\\274.py" "b/tests/test_\\303\\274.py"
new file mode 100644
"""
BENCH: dict[str, Any] = {
    "instance_id": "django__django-1",
    "repo": "django/django",
    "version": "4.0",
    "base_commit": "a" * 40,
    "problem_statement": "It is broken.",
    "test_patch": PATCH,
    "FAIL_TO_PASS": ["test_a (queries.test_q.T)"],
    "PASS_TO_PASS": "[]",
}
R2E: dict[str, Any] = {
    "docker_image": "namanjain12/orange3_final:abc",
    "problem_statement": "[ISSUE]\nIt is broken.\n[/ISSUE]",
    "expected_output_json": '{"TestA.test_b": "PASSED", "test_c[x::y]": "FAILED"}',
}


def bench(**changes: Any) -> dict[str, Any]:
    return BENCH | changes


def form() -> BenchForm:
    return BenchForm(lambda instance: f"/images/{instance['instance_id']}")


def test_an_instance_as_published_is_taken() -> None:
    form().validate(BENCH)
    form().validate(bench(FAIL_TO_PASS='["a"]', PASS_TO_PASS=["b", "c"], version=None))
    R2eForm(lambda _: "/image").validate(R2E)
    assert form().image(BENCH) == "/images/django__django-1"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("FAIL_TO_PASS", []),
        ("FAIL_TO_PASS", "[]"),
        ("FAIL_TO_PASS", None),
        ("FAIL_TO_PASS", "test_a"),
        ("FAIL_TO_PASS", {"a": 1}),
        ("FAIL_TO_PASS", [1]),
        ("FAIL_TO_PASS", [""]),
        ("PASS_TO_PASS", '"a"'),
        ("PASS_TO_PASS", None),
        ("problem_statement", " "),
        ("problem_statement", 3),
        ("test_patch", ""),
        ("test_patch", "rubbish"),
        ("repo", "nobody/knows"),
        ("repo", ["django/django"]),
        ("base_commit", None),
        ("version", ["4.0"]),
        ("log_parser", "parse_log_of_nobody"),
        ("log_parser", 3),
        ("eval_type", "both"),
        ("eval_script", ["a"]),
        ("test_cmd", 3),
    ],
)
def test_a_bad_field_is_named(field: str, value: Any) -> None:
    with pytest.raises(BadInstance) as told:
        form().validate(bench(**{field: value}))
    assert told.value.field == field


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("docker_image", ""),
        ("docker_image", 3),
        ("problem_statement", None),
        ("expected_output_json", "{"),
        ("expected_output_json", "[]"),
        ("expected_output_json", {}),
        ("expected_output_json", {"a": "passed"}),
        ("expected_output_json", {"a": "FAILED"}),
    ],
)
def test_a_bad_field_of_r2es_form_is_named(field: str, value: Any) -> None:
    with pytest.raises(BadInstance) as told:
        R2eForm(lambda _: "/image").validate(R2E | {field: value})
    assert told.value.field == field


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    parsers.cache_clear()
    monkeypatch.setattr(bench_specs, "find_spec", lambda _: None)
    with pytest.raises(BadInstance, match=r"prorl-celery\[swe\]") as told:
        form().validate(BENCH)
    assert told.value.field == "data_source"
    parsers.cache_clear()


@pytest.mark.skipif(importlib.util.find_spec("swebench") is None, reason="the extra swe is not installed")
def test_every_parser_of_ours_is_one_of_the_packages() -> None:
    assert {parser for _, parser, _ in COMMANDS.values()} <= parsers()


def test_an_instance_may_say_how_its_tests_are_run() -> None:
    said = spec_of(bench(repo="nobody/knows", test_cmd=["make", "make test"], log_parser="parse_log_gotest"))
    assert (said.command, said.parser, said.script) == ("make\nmake test", "parse_log_gotest", None)
    said = spec_of(bench(eval_script="true", log_parser="parse_log_marked", eval_type="fail_only"))
    assert (said.script, said.parser, said.eval_type) == ("true", "parse_log_marked", "fail_only")
    assert spec_of(bench(repo="Project-MONAI/MONAI")).parser == "parse_log_pytest"


def test_what_a_test_patch_changes_is_what_is_run() -> None:
    assert changed_files(PATCH) == ("tests/queries/test_q.py", "tests/data.json", "tests/test_ü.py")
    assert directives(BENCH) == "queries.test_q 'test_ü'"
    assert directives(bench(repo="psf/requests")) == "tests/queries/test_q.py 'tests/test_ü.py'"
    cases = "diff --git a/x.test b/x.test\n+[case testA]\n [case testB-only]\n+[case testA]\n"
    assert directives(bench(repo="python/mypy", test_patch=cases)) == "'testA or testB-only'"
    assert form().protected(BENCH) == changed_files(PATCH)


def test_test_ids_are_taken_as_list_or_as_text_and_once() -> None:
    assert listed_in({"F": '["a", "b", "a"]'}, "F") == listed_in({"F": ["a", "b"]}, "F") == ("a", "b")


def test_a_prompt_says_the_issue_and_nothing_of_the_tests() -> None:
    said = form().prompt(bench(patch="the fix"))
    assert "It is broken." in said
    assert "/testbed" in said
    assert not {"test_q", "test_a", "the fix"} & set(said.split())
    assert "[ISSUE]" not in R2eForm(lambda _: "").prompt(R2E)
    assert "It is broken." in R2eForm(lambda _: "").prompt(R2E)


def test_marks_around_a_scripts_tests_are_ones_that_nothing_can_have_printed() -> None:
    script = f"set -x\n: '{START}'\nrun\n: '{END}'\ngit checkout x\n"
    assert framed(script, "T").splitlines() == [
        "set -x",
        "echo T",
        "run",
        "code=$?; echo; echo T:$code",
        "git checkout x",
    ]
    assert framed("run\n", "T") == "run\n"


def test_r2es_results_are_read_from_pytests_summary() -> None:
    log = (
        "PASSED r2e_tests/x.py::test_before_the_summary\n=== short test summary info ===\n"
        "\x1b[32mPASSED\x1b[0m r2e_tests/test_1.py::\x1b[1mTestA::test_b\x1b[0m\r\n"
        "FAILED r2e_tests/test_1.py::test_c[x::y] - AssertionError: PASSED r2e_tests/a.py::test_d\n"
        "ERROR r2e_tests/test_2.py\nSKIPPED [1] x.py:3: no\n 1 passed\n"
    )
    assert results_of(log) == {"TestA.test_b": "PASSED", "test_c[x.y]": "FAILED", "": "ERROR"}
    assert results_of("PASSED a::b") == {}
    assert expected_of({"expected_output_json": {"\x1b[1mTestA.b\x1b[0m": "PASSED", "c - why": "ERROR"}}) == {
        "TestA.b": "PASSED",
        "c": "ERROR",
    }


def test_r2es_tests_must_end_just_as_expected_and_be_all() -> None:
    expected = {"a": "PASSED", "b": "FAILED", "c": "PASSED"}
    assert compared(expected, expected) == Tally(passed=["a", "b", "c"], failed=[])
    assert compared(expected, {"a": "PASSED", "b": "PASSED", "d": "PASSED"}) == Tally(
        passed=["a"], failed=["b", "c", "d"]
    )
    assert compared(expected, expected | {"": "ERROR"}).failed == [""]
