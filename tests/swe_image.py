"""An image with a small repository in it, such as SWE-bench's have, and instances that are about it.

The image borrows the machine's /usr; pytest is in /opt. Its files are the sandbox user's, as a pulled image's are.
"""

from __future__ import annotations

import importlib.util
import json
import os
import pwd
import shutil
import subprocess
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

from small_root import _copy as copy_program
from small_root import make_borrowing_root, make_small_root

from prorl_celery.sandbox import singularity

BUILD_SECONDS = 120
PACKAGES = ("pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments", "py")
MORE_PROGRAMS = (
    "git", "patch", "python3", "find", "xargs", "sort", "comm", "tar", "cmp", "df", "stat", "tail", "dd", "truncate",
    "cp", "ln", "wc", "dirname",
)  # fmt: skip
CODE = """def get(url):
    return url.lower()


def join(base, path):
    return base + "/" + path
"""
FIXED = CODE.replace("url.lower()", "url.strip().lower()")
TESTS = """import requests


def test_lower():
    assert requests.get("A") == "a"


def test_join():
    assert requests.join("a", "b") == "a/b"
"""
MORE_TESTS = (
    TESTS
    + """

def test_strip():
    assert requests.get(" A ") == "a"
"""
)
GIT = ("git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "safe.directory=*", "-c", "core.fileMode=true")


def git(repository: Path, *arguments: str) -> str:
    """What a git command prints."""
    return subprocess.run(
        [*GIT, *arguments], cwd=repository, check=True, capture_output=True, text=True, timeout=60
    ).stdout


def diff(repository: Path, files: dict[str, str | None]) -> str:
    """The patch that makes these files of a repository so (None: not there), which is left as it was."""
    for name, text in files.items():
        path = repository / name
        if text is None:
            path.unlink()
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    git(repository, "add", "-A")
    patch = git(repository, "diff", "--cached", "--binary")
    git(repository, "reset", "-q", "--hard")
    return patch


def make_repository(place: Path, *, later: bool = True) -> Path:
    """A repository with a bug, at the commit before its fix; `later`: the fix is in its history."""
    (place / "tests").mkdir(parents=True)
    (place / "requests.py").write_text(CODE)
    (place / "tests" / "test_requests.py").write_text(TESTS)
    (place / "conftest.py").write_text("")
    (place / ".gitignore").write_text("*.pyc\n.venv\n")
    git(place, "init", "-q", "-b", "main")
    git(place, "add", "-A")
    git(place, "commit", "-qm", "base")
    git(place, "tag", "v2.0")
    if later:
        (place / "requests.py").write_text(FIXED)
        git(place, "commit", "-qam", "the fix of later")
        git(place, "tag", "v2.1")
        git(place, "reset", "-q", "--hard", "v2.0")
    return place


def add_pytest(root: Path) -> None:
    """pytest in /opt of an image's tree."""
    site = root / "opt" / "site"
    site.mkdir(parents=True)
    for name in PACKAGES:
        found = importlib.util.find_spec(name)
        assert found is not None
        if not found.submodule_search_locations:
            shutil.copy(found.origin or "", site)
        for place in found.submodule_search_locations or ():
            shutil.copytree(place, site / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pytest", "pluggy"):
        metadata = distribution(name).locate_file(f"{name}-{distribution(name).version}.dist-info")
        shutil.copytree(str(metadata), site / Path(str(metadata)).name)
    (root / "opt" / "bin").mkdir()
    program = root / "opt" / "bin" / "pytest"
    program.write_text('#!/bin/sh\nexec python3 -m pytest "$@"\n')
    program.chmod(0o755)


def build(image: Path, tree: Path) -> Path:
    """Make the image, a folder, or a file by its suffix, of a tree."""
    folder = image if not image.suffix else image.with_suffix("")
    program = singularity.command() or ""
    quiet = [program, "-q", "build", "--force"]
    subprocess.run([*quiet, "--sandbox", folder, tree], check=True, timeout=BUILD_SECONDS)
    with (folder / ".singularity.d/env/90-environment.sh").open("a") as file:
        file.write("\nexport PATH=/opt/bin:$PATH PYTHONPATH=/opt/site PYTHONDONTWRITEBYTECODE=1\n")
    if image.suffix:
        subprocess.run([*quiet, image, folder], check=True, timeout=BUILD_SECONDS)
        shutil.rmtree(folder)
        image.chmod(0o644)
    else:
        image.chmod(0o755)
        if os.geteuid() == 0:
            user = pwd.getpwnam("nobody")
            subprocess.run(["chown", "-R", f"{user.pw_uid}:{user.pw_gid}", folder], check=True, timeout=60)
    return image


def make_full_root(tree: Path) -> Path:
    """A tree with all that grading needs of its own: git, patch, Python, usual programs. Its image may be a file."""
    make_small_root(tree)
    for name in MORE_PROGRAMS:
        program = Path(os.path.realpath(shutil.which(name, path="/usr/bin:/bin") or ""))
        copy_program(program, tree, f"/usr/bin/{name}")
    library = Path("/usr/lib", Path(os.path.realpath("/usr/bin/python3")).name)
    left_out = shutil.ignore_patterns("__pycache__", "test", "dist-packages", "site-packages", "*.a", "config-*")
    shutil.copytree(library, tree / str(library)[1:], ignore=left_out, dirs_exist_ok=True)
    for module in (library / "lib-dynload").glob("*.so"):
        copy_program(module, tree, str(module))
    return tree


def make_bench_image(place: Path, *, packed: bool = False) -> tuple[Path, dict[str, Any]]:
    """An image in SWE-bench's form, a folder or (`packed`) a file, and an instance of it."""
    tree = make_full_root(place / "tree") if packed else make_borrowing_root(place / "tree")
    add_pytest(tree)
    repository = make_repository(tree / "testbed")
    instance = {
        "data_source": "swebench",
        "instance_id": "psf__requests-1",
        "repo": "psf/requests",
        "version": "2.0",
        "base_commit": git(repository, "rev-parse", "HEAD").strip(),
        "problem_statement": "get() keeps blanks around what it is given.",
        "patch": diff(repository, {"requests.py": FIXED}),
        "test_patch": diff(repository, {"tests/test_requests.py": MORE_TESTS}),
        "FAIL_TO_PASS": '["tests/test_requests.py::test_strip"]',
        "PASS_TO_PASS": ["tests/test_requests.py::test_lower", "tests/test_requests.py::test_join"],
        "image": str(build(place / ("bench.sif" if packed else "bench"), tree)),
    }
    shutil.copytree(repository, place / "repository", symlinks=True)
    shutil.rmtree(tree)
    return place / "repository", instance


def make_r2e_image(place: Path) -> dict[str, Any]:
    """An image in R2E-Gym's form, a folder, and an instance of it."""
    tree = make_borrowing_root(place / "tree-r2e")
    add_pytest(tree)
    repository = make_repository(tree / "testbed")
    patch = diff(repository, {"requests.py": FIXED})
    (repository / "run_tests.sh").write_text(".venv/bin/python -W ignore -m pytest -rA r2e_tests\n")
    (repository / ".venv" / "bin").mkdir(parents=True)
    (repository / ".venv" / "bin" / "python").symlink_to("/usr/bin/python3")
    (tree / "r2e_tests").mkdir()
    (tree / "r2e_tests" / "__init__.py").touch()
    (tree / "r2e_tests" / "test_1.py").write_text(MORE_TESTS + "\n\ndef test_never():\n    assert False\n")
    expected = {"test_lower": "PASSED", "test_join": "PASSED", "test_strip": "PASSED", "test_never": "FAILED"}
    instance = {
        "data_source": "r2e",
        "instance_id": "requests__1",
        "docker_image": str(build(place / "r2e", tree)),
        "problem_statement": "[ISSUE]\nget() keeps blanks around what it is given.\n[/ISSUE]",
        "expected_output_json": json.dumps(expected),
        "patch": patch,
    }
    shutil.rmtree(tree)
    return instance
