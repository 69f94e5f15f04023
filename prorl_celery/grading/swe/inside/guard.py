"""Runs in an eval's sandbox: has tests run in processes that it watches, and says what became of them.

    printf 'PROOF\\n' | python3 -I -S guard.py JOB.json

JOB.json: `base` (folder of the base), `patched` (of what the patch made of it), `tools` (folder of pytest),
`test_file`, `test_source`, `test_command`, `source_root`, `ids` (of FAIL_TO_PASS and PASS_TO_PASS), `keep` (of
PASS_TO_PASS), `seconds` (most of one run), `output_bytes` (most output of one run), `report` (file to write).

The patched tree is run twice at the same time: with the test file as it is (`real`) and in its control form
(`control`), in folders whose names do not tell which is which. Where every test passed, or something went wrong that
may be nobody's fault, the base is run by the same means (`base`), and beside it, where every test passed, the patched
tree with the test file's decoy form (`decoy`). Where one of those is odd, the base's own says what is by nature
(`base_control`, `base_decoy`). Each run is confined by `jail`, what it left in shared folders is not there in the next,
and every process below this one is dead before the report is written, so nothing that an agent left can touch it. The
report ends with an HMAC by PROOF.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import random
import shutil
import sys
import tempfile
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = HERE.rsplit("/prorl_celery/", 1)[0]
"""Where runs have their folders: the name of a Unix socket in one may have 107 characters."""
sys.path.insert(0, TOP)

from prorl_celery.grading.swe.inside.controls import control_form, function_name  # noqa: E402
from prorl_celery.grading.swe.inside.decoys import decoy_form  # noqa: E402
from prorl_celery.grading.swe.inside.jail import (  # noqa: E402
    COMMON,
    PR_SET_CHILD_SUBREAPER,
    PR_SET_DUMPABLE,
    prctl,
    version,
)
from prorl_celery.grading.swe.inside.runs import Run, run_together  # noqa: E402
from prorl_celery.grading.swe.inside.trees import make_tree, put_test, test_places, top_level_names  # noqa: E402

GOOD = ("passed", "xfailed")
SHIM = """#!/bin/sh
PRORL_PYTHONPATH="$PYTHONPATH"
export PRORL_PYTHONPATH
unset PYTHONPATH PYTHONHOME
exec {python} -s -S {here}/child.py {name} "$@"
"""


class Grading:
    """One job's runs."""

    def __init__(self, job: dict[str, Any], proof: str) -> None:
        self._job = job
        self._proof = proof
        self._work = tempfile.mkdtemp(prefix="r", dir=TOP)
        os.chmod(self._work, 0o711)
        self._names = top_level_names(job["base"], [".", job["source_root"]])
        self._places = test_places(job["test_file"], job["source_root"])
        control, self._spoilt = control_form(job["test_source"], job["ids"])
        decoy, self._decoyed = decoy_form(job["test_source"], job["ids"])
        forms = {"real": job["test_source"], "control": control, "decoy": decoy}
        self._forms = {form: (text or "").encode("utf-8", "surrogatepass") for form, text in forms.items()}
        self._there = {path: _names(path) for path in COMMON}
        self.dropped: list[str] = []

    def _make(self, tree: str, form: str) -> Run:
        folder = os.path.join(self._work, os.urandom(4).hex())
        for inner in ("", "home", "tmp"):
            os.mkdir(os.path.join(folder, inner))
        repository = os.path.join(folder, "repo")
        self.dropped = make_tree(tree, self._job["base"], repository, self._places) or self.dropped
        test = self._forms[form]
        put_test(repository, self._job["test_file"], test)
        return Run(
            folder, self._job["test_command"], self._job["tools"], self._job["test_file"], test, self._names,
            shims=HERE + "/bin",
            readable=[HERE, self._job["tools"], sys.prefix, sys.base_prefix, sys.exec_prefix],
        )  # fmt: skip

    def _run(self, named: dict[str, tuple[str, str]]) -> dict[str, dict[str, Any]]:
        """Run these at the same time: names with tree and form."""
        runs = {name: self._make(self._job[tree], form) for name, (tree, form) in named.items()}
        mixed = list(runs.values())
        random.SystemRandom().shuffle(mixed)
        run_together(mixed, self._job["seconds"], self._job["output_bytes"])
        found = {name: run.told() for name, run in runs.items()}
        for run in mixed:
            shutil.rmtree(run.folder, ignore_errors=True)
        for place, there in self._there.items():  # else a run could tell the next of itself
            for name in _names(place) - there:
                _remove(os.path.join(place, name))
        return found

    def grade(self) -> dict[str, Any]:
        job = self._job
        ids = list(job["ids"])
        facts: dict[str, Any] = {"control": None, "decoy": None}
        facts["controlled"] = [i for i in ids if function_name(i) in self._spoilt]
        facts["decoyed"] = [i for i in ids if function_name(i) in self._decoyed]
        first = {"real": ("patched", "real"), "control": ("patched", "control")}
        facts.update(self._run(first if self._spoilt else {"real": first["real"]}))
        facts["dropped"] = self.dropped
        statuses = [outcome_of(facts["real"], i) for i in ids]
        good = {i: outcome_of(facts["real"], i) in GOOD for i in ids}
        regular = facts["real"]["ended"] and None not in statuses
        more = {}
        if not regular or all(good.values()) or not all(good[i] for i in job["keep"]):
            more["base"] = ("base", "real")
        if all(good.values()) and self._decoyed:
            more["decoy"] = ("patched", "decoy")
        facts.update(self._run(more) if more else {})
        by_nature = {}
        if all(good.values()) and self._in_doubt(facts):
            by_nature["base_control"] = ("base", "control")
        if facts["decoy"] and any(outcome_of(facts["decoy"], i) == "passed" for i in facts["decoyed"]):
            by_nature["base_decoy"] = ("base", "decoy")
        facts.update(self._run(by_nature) if by_nature else {})
        facts["landlock"] = version()
        return facts

    def _in_doubt(self, facts: dict[str, Any]) -> bool:
        """Whether the control run is not as that of an honest library: then the base says what it is by nature."""
        control = facts["control"]
        if control is None:
            return False
        missing = any(outcome_of(control, i) in (None, "passed") for i in facts["controlled"])
        return bool(control["alien"]) or not control["ended"] or missing

    def close(self) -> None:
        shutil.rmtree(self._work, ignore_errors=True)


def outcome_of(run: dict[str, Any], test_id: str) -> Any:
    """A test's outcome in a run, None where it was not run."""
    return run["outcomes"].get(test_id)


def _names(folder: str) -> set[str]:
    return set(os.listdir(folder)) if os.path.isdir(folder) else set()


def _remove(path: str) -> None:
    """What a run left; what cannot be removed stays."""
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            os.unlink(path)


def make_shims() -> None:
    """Programs that a test command calls for Python or pytest, which run `child.py` in the real one."""
    os.mkdir(HERE + "/bin")
    names = ["python", "python3", f"python{sys.version_info[0]}.{sys.version_info[1]}", "pytest", "py.test"]
    for name in names:
        path = os.path.join(HERE, "bin", name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(SHIM.format(python=sys.executable, here=HERE, name=name))
        os.chmod(path, 0o755)


def main() -> None:
    proof = sys.stdin.readline().strip()
    with open(sys.argv[1], encoding="utf-8") as file:
        job = json.load(file)
    os.unlink(sys.argv[1])
    prctl(PR_SET_DUMPABLE, 0)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    make_shims()
    grading = Grading(job, proof)
    try:
        text = json.dumps(grading.grade())
    finally:
        grading.close()
    seal = hmac.new(proof.encode(), text.encode(), "sha256").hexdigest()
    with open(job["report"], "w", encoding="utf-8") as file:
        file.write(text + "\n" + seal + "\n")


if __name__ == "__main__":
    main()
