"""The fields of a materialised instance, checked before a job is accepted."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from typing import Any

from prorl_celery.errors import BadInstance

TEXTS = ("problem_statement", "test_file", "test_source", "test_command", "workspace")
OPTIONAL = ("wheelhouse", "source_root", "image", "package", "base_version")
LISTS = ("FAIL_TO_PASS", "PASS_TO_PASS")


def check_fields(instance: Mapping[str, Any]) -> None:
    """Raises: `BadInstance` that names the field."""
    if "workspace" not in instance and "base_version" in instance:
        raise BadInstance(
            "the instance names a release, and no 'workspace' made of it: see prorl datasets prepare swe-pypi",
            field="workspace",
        )
    for name in TEXTS:
        if name not in instance:
            raise BadInstance(f"the instance has no {name!r}", field=name)
    for name in (*TEXTS, *OPTIONAL):
        value = instance.get(name)
        if value is None and name in OPTIONAL:
            continue
        if not isinstance(value, str) or not value.strip() or "\0" in value:
            raise BadInstance(f"{name!r} must be text, not {str(value)[:60]!r}", field=name)
    for name in LISTS:
        _check_tests(instance, name)
    if not instance["FAIL_TO_PASS"]:
        raise BadInstance("'FAIL_TO_PASS' is empty: no test would tell a fix", field="FAIL_TO_PASS")
    if twice := set(instance["FAIL_TO_PASS"]) & set(instance["PASS_TO_PASS"]):
        raise BadInstance(f"{min(twice)} is in FAIL_TO_PASS too", field="PASS_TO_PASS")
    for name in ("test_file", "source_root"):
        _check_inside(instance.get(name) or ".", name)
    if posixpath.normpath(instance["test_file"]) in (".", "") or instance["test_file"].endswith("/"):
        raise BadInstance("'test_file' must be a file", field="test_file")
    for name in ("workspace", "wheelhouse"):
        if ".." in (instance.get(name) or "").split("/"):
            raise BadInstance(f"{name!r} must have no '..'", field=name)


def _check_tests(instance: Mapping[str, Any], name: str) -> None:
    if name not in instance:
        raise BadInstance(f"the instance has no {name!r}", field=name)
    tests = instance[name]
    if not isinstance(tests, list | tuple) or not all(isinstance(test, str) and test for test in tests):
        raise BadInstance(f"{name!r} must be a list of test ids", field=name)


def _check_inside(text: str, name: str) -> None:
    path = posixpath.normpath(text)
    if text.startswith("/") or "\\" in text or path == ".." or path.startswith("../"):
        raise BadInstance(f"{name!r} must be a path within the workspace, not {text!r}", field=name)
