"""A patch is applied whole or not at all, and tests' files stay what they were."""

from __future__ import annotations

import pytest
from swe_repositories import WORKDIR, Repository, cases

from prorl_celery.errors import SandboxError
from prorl_celery.grading.swe.apply import apply_patch, undo

ADD = """diff --git a/src/code.py b/src/code.py
--- a/src/code.py
+++ b/src/code.py
@@ -1,2 +1,3 @@
 def f():
     return 1
+# more
"""
NEW = """diff --git a/new b/new
new file mode 100644
--- /dev/null
+++ b/new
@@ -0,0 +1 @@
+new
"""
NUMBERS = """diff --git a/src/numbers b/src/numbers
--- a/src/numbers
+++ b/src/numbers
@@ -{at},7 +{at},7 @@
 {a}
 18
 19
-20
+twenty
 21
 22
 23
"""
BINARY = """diff --git a/src/binary b/src/binary
index 0000000000000000000000000000000000000000..e69de29bb2d1d6434b8b29ae775ad8c2e48c5391 100644
GIT binary patch
literal 0
HcmV?d00001

literal 3
KcmZQzWMX9i0006~04V?f

"""


def test_a_patch_that_fits_is_applied_by_git(graders: Repository) -> None:
    graders.ready()
    assert graders.apply(ADD + NEW) == ("git", None)
    assert graders.run("cat new; tail -1 src/code.py") == "new\n# more"


@pytest.mark.parametrize("patch", [NUMBERS.format(at=17, a="seventeen"), ADD.replace("return 1", "return  1")])
def test_one_whose_context_is_a_little_otherwise_is_applied_by_patch(graders: Repository, patch: str) -> None:
    graders.ready()
    by, why = graders.apply(patch + NEW)
    assert (by, why) == ("patch", None)
    assert graders.run("cat new; git status --porcelain | wc -l") == "new\n2"


UNFIT = {
    "rubbish": "rubbish",
    "another file's": ADD.replace("code.py", "other.py"),
    "the second does not fit": NEW + NUMBERS.format(at=17, a="17").replace("-20", "-2000"),
    "an ignored file and one that does not fit": NEW.replace("/new", "/x.log")
    + NUMBERS.format(at=17, a="17").replace("-20", "-2000"),
    "of another format": "*** a/src/noend\n--- b/src/noend\n***************\n*** 1 ****\n! no end\n"
    "\\ No newline at end of file\n--- 1 ----\n! an end\n",
    "half of one": (NEW + ADD)[:-20],
    "a binary one of another base": BINARY + NEW,
    "one that was applied": NUMBERS.format(at=17, a="17").replace("-20", "-twenty").replace("+twenty", "+20"),
    "a file that is there": NEW.replace("new\n", "src/code.py\n").replace("b/new", "b/src/code.py"),
    "outside": NEW.replace("b/new", "b/../../out").replace("a/new", "a/../../out"),
    "in git, in quotes": NEW.replace("b/new", '"b/\\056git/config"').replace("a/new", '"a/\\056git/config"'),
    "in git": NEW.replace("b/new", "b/.git/hooks/post-checkout").replace("a/new", "a/.git/hooks/post-checkout"),
    "through a link": NEW.replace("diff --git a/new b/new", "diff --git a/out b/out").replace(
        "new file mode 100644\n--- /dev/null\n+++ b/new\n@@ -0,0 +1 @@\n+new\n",
        "new file mode 120000\n--- /dev/null\n+++ b/out\n@@ -0,0 +1 @@\n+/workspace\n\\ No newline at end of file\n",
    )
    + NEW.replace("a/new", "a/out/x").replace("b/new", "b/out/x"),
    "an ed script": "--- src/code.py\n+++ src/code.py\n1d\n!touch /workspace/out\n.\nw\n",
    "no bytes of a text": "\udcff\udcfe",
}


@pytest.mark.parametrize("case", cases(UNFIT, "the second does not fit", "half of one", "in git", "outside"))
def test_one_that_does_not_fit_changes_nothing(graders: Repository, case: str) -> None:
    graders.ready()
    before = graders.files()
    by, why = graders.apply(UNFIT[case])
    assert by is None
    assert why is not None
    assert why.startswith("the patch does not apply: ")
    assert graders.files() == before
    assert (
        graders.run("ls -1A /workspace; ls /tmp/out 2>/dev/null; cat .git/hooks/post-checkout 2>/dev/null; true")
        == ".base\nrepo"
    )


def test_what_is_kept_stays_when_a_later_one_fails(graders: Repository) -> None:
    graders.ready()
    assert apply_patch(graders.sandbox, WORKDIR, NEW, keep=True, timeout=30).by == "git"
    assert graders.apply(ADD.replace("code.py", "other.py"))[0] is None
    assert graders.run("cat new") == "new"
    assert graders.apply(ADD)[0] == "git"
    undo(graders.sandbox, WORKDIR, timeout=30)
    assert graders.run("cat new; cat src/code.py") == "new\ndef f():\n    return 1"


def test_a_sandbox_without_a_base_is_no_fault_of_the_patch(graders: Repository) -> None:
    graders.lay()
    with pytest.raises(SandboxError, match="could not be tried"):
        graders.apply(ADD)


PLANTED = {
    "a conftest": ("echo 1 >sub/conftest.py", "sub/conftest.py"),
    "another conftest": ("echo 1 >conftest.py", "conftest.py"),
    "no conftest": ("rm conftest.py", "conftest.py"),
    "a conftest that is a link": ("ln -sf src/code.py conftest.py", "conftest.py"),
    "sitecustomize": ("echo 1 >sitecustomize.py", "sitecustomize.py"),
    "usercustomize": ("mkdir -p a && echo 1 >a/usercustomize.py", "a/usercustomize.py"),
    "a path file": ("echo 'import os' >src/x.pth", "src/x.pth"),
    "settings": ("echo '[pytest]' >pytest.ini; echo '[pytest]' >.pytest.ini", "pytest.ini", ".pytest.ini"),
    "a pytest": ("echo 1 >src/pytest.py", "src/pytest.py"),
    "a package pytest": ("mkdir _pytest && echo 1 >_pytest/__init__.py", "_pytest"),
    "what is ignored": ("echo 'conftest.py' >.gitignore; echo 1 >sub/conftest.py", "sub/conftest.py"),
    "a test": ("echo 1 >tests/test_code.py", "tests/test_code.py"),
    "no test": ("rm -r tests", "tests/test_code.py"),
    "one more in the tests' folder": ("echo 1 >sub/two; rm sub/one", "sub/two", "sub/one"),
    "a name of options": ("echo 1 >-c; mkdir -- -rf; echo 1 >-rf/conftest.py", "-rf/conftest.py"),
}


@pytest.mark.parametrize(
    "case", cases(PLANTED, "a conftest", "no conftest", "a package pytest", "what is ignored", "no test")
)
def test_files_by_which_tests_are_run_are_put_back(graders: Repository, case: str) -> None:
    graders.ready()
    graders.guard("tests/test_code.py", "sub")
    change, *names = PLANTED[case]
    before = graders.files()
    graders.run(f"{change}; echo more >>src/code.py; echo kept >kept.py")
    assert sorted(graders.restore("tests/test_code.py", "sub")) == sorted(names)
    graders.run("git checkout -q src/code.py .gitignore; rm -f kept.py ./-c")
    assert graders.files() == before


def test_what_a_known_solution_changes_is_not_put_back(graders: Repository) -> None:
    graders.ready()
    graders.guard("tests", free=("conftest.py", "sub/conftest.py"))
    graders.run("echo 1 >conftest.py; echo 1 >sub/conftest.py; echo 1 >src/conftest.py; echo 1 >tests/test_code.py")
    assert graders.restore("tests", free=("conftest.py", "sub/conftest.py")) == (
        "src/conftest.py",
        "tests/test_code.py",
    )
    assert graders.run("cat conftest.py sub/conftest.py tests/test_code.py") == "1\n1\nt"


def test_modules_of_the_repository_itself_are_not_taken_for_planted_ones(graders: Repository) -> None:
    graders.ready("mkdir -p src/_pytest && echo 1 >src/_pytest/a.py")
    graders.guard()
    graders.run("echo 2 >src/_pytest/a.py; echo 1 >src/_pytest/b.py; echo 1 >_pytest.py")
    assert graders.restore() == ("_pytest.py",)
    assert graders.run("cat src/_pytest/*.py") == "2\n1"
