"""Applying patches in a sandbox that the agent never touched, and keeping its tests' files what they were.

    lay_base(sandbox, "/testbed", timeout=60)
    apply_patch(sandbox, "/testbed", test_patch, keep=True, timeout=60)
    guard(sandbox, "/testbed", test_files, timeout=60)
    applied = apply_patch(sandbox, "/testbed", patch, timeout=60)
    dropped = restore(sandbox, "/testbed", test_files, timeout=60)

A patch is what an agent says it left: whatever it holds is dealt with by what it did to the files, never by reading
it. It is applied by `git apply`, which does all or nothing and leaves the repository's folder nowhere; where that fails
by `patch`, which finds the place of a change some lines off and with up to five lines of context that are otherwise.
What a failed attempt has changed is undone before the next.

`guard` notes the tests' files, and those by which Python and pytest take in code that nobody asked for: `conftest.py`,
`sitecustomize.py`, `usercustomize.py`, `*.pth`, `pytest.ini`. `restore` puts them back, removes new ones, and new files
and folders that would stand before the test runner's own modules (`pytest`, `_pytest`, `pluggy`, `unittest`). What this
cannot hinder: code under test that lies about the tests that import it, since it runs in their process.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from prorl_celery.errors import SandboxError
from prorl_celery.grading.swe.form import AppliedBy
from prorl_celery.grading.swe.patch import keep_base
from prorl_celery.grading.swe.patch_script import DOES_NOT_APPLY, run_beside, said
from prorl_celery.sandbox.base import Sandbox


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """How a patch was applied, or why it was not."""

    by: AppliedBy | None
    why: str | None = None


def lay_base(sandbox: Sandbox, workdir: str, *, timeout: float) -> str:
    """Keep the files as they are as the base to go back to; the repository's own history stays. Returns the base's id.

    Raises: as `keep_base`.
    """
    return keep_base(sandbox, workdir, timeout=timeout, hide_history=False)


def apply_patch(sandbox: Sandbox, workdir: str, patch: str | bytes, *, keep: bool = False, timeout: float) -> Applied:
    """Apply it to the files, all of it or nothing of it; `timeout` in seconds. The base must have been laid.

    `keep`: it must fit exactly, and what comes later and fails goes back to the files with this patch.

    Raises: `SandboxError` where it could not be tried, what the cancel signal raises.
    """
    path = f"/workspace/.{secrets.token_hex(8)}.diff"
    try:
        sandbox.files.write(path, patch if isinstance(patch, bytes) else patch.encode("utf-8", "surrogatepass"))
    except OSError as error:
        raise SandboxError(f"the patch could not be written into the sandbox: {error}") from error
    ran = run_beside(sandbox, "apply", workdir, "apply", path, *(["keep"] if keep else []), timeout=timeout)
    sandbox.shell.run(f"\\rm -f {path}", timeout=timeout)
    if ran.exit_code == 0:
        return Applied(by="patch" if ran.output.strip().endswith("patch") else "git")
    if ran.exit_code == DOES_NOT_APPLY:
        return Applied(by=None, why=f"the patch does not apply: {said(ran)}")
    raise SandboxError(f"a patch could not be tried at {workdir} (exit code {ran.exit_code}): {said(ran)}")


def guard(sandbox: Sandbox, workdir: str, paths: Sequence[str], *, free: Sequence[str] = (), timeout: float) -> None:
    """Note these files or folders, and the files that test runners take in by themselves, but for those of `free`: what
    a known solution changes. Raises: `SandboxError`, as above.
    """
    _done(sandbox, workdir, "guard", paths, free, timeout)


def restore(
    sandbox: Sandbox, workdir: str, paths: Sequence[str], *, free: Sequence[str] = (), timeout: float
) -> tuple[str, ...]:
    """Put back what `guard` noted, and return what was otherwise or new, by name. Raises: `SandboxError`, as above."""
    names = _done(sandbox, workdir, "restore", paths, free, timeout)
    return tuple(name for name in names.splitlines() if name)


def undo(sandbox: Sandbox, workdir: str, *, timeout: float) -> None:
    """Go back to the base, with the patches that were kept. Raises: `SandboxError`, as above."""
    ran = run_beside(sandbox, "apply", workdir, "undo", timeout=timeout)
    if ran.exit_code != 0:
        raise SandboxError(f"a patch could not be undone at {workdir} (exit code {ran.exit_code}): {said(ran)}")


def _done(
    sandbox: Sandbox, workdir: str, command: str, paths: Sequence[str], free: Sequence[str], timeout: float
) -> str:
    spared = "".join(f"./{name}\n" for name in free)
    ran = run_beside(sandbox, "apply", workdir, command, spared, *paths, timeout=timeout)
    if ran.exit_code != 0:
        raise SandboxError(f"`{command}` failed at {workdir} (exit code {ran.exit_code}): {said(ran)}")
    return ran.output
