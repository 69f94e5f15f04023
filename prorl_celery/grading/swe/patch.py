"""The patch an agent left: the difference between a repository's files now and its base.

    base = keep_base(sandbox, "/testbed", timeout=60)      # init, before the agent
    taken = extract(sandbox, "/testbed", base, ...)        # rollout, after it

What counts is the files, not what the agent's git says of them. `keep_base` puts a store of ours beside the
repository, with one commit of the files as they are; `extract` reads every file anew into an index of its own and
compares. So commits, branches, a stage, flags in the index, hooks, filters, attributes or submodules of the agent's, or
a `.git` that is gone, change nothing, and no program that its configuration names is run. The store is the agent's to
destroy as all in its sandbox is: then there is no patch, and `why` says so.

In the patch are all files that git would commit: changed, new, removed, with modes, symbolic links and bytes as they
are. Left out are

- the paths of `protected`, named in `left_out`;
- files that git ignores, by the repository's own `.gitignore` as it is now and for what Python's tools leave
  (`__pycache__`, `.pytest_cache`, ...), unless the base has them: they are what building and testing makes, and would
  break the patch or the tests elsewhere. An agent that wants one in can say so in `.gitignore`, as a committer must;
- a repository within the repository (a clone, for example), which git would not commit either;
- empty folders, pipes, sockets.

The patch is text: a file that is no UTF-8 is in it as a binary one. Both sides of every binary difference are whole, so
it applies to the base alone.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from prorl_celery.errors import SandboxError
from prorl_celery.grading.swe.patch_script import FULL, GONE, LOST, TOO_MUCH, run_beside, said
from prorl_celery.sandbox.base import Sandbox

LIMIT_BYTES = 4 << 20
NAMES_BYTES = 64 << 10
SECTION = b"diff --git "
"""Begins each file of a patch, and no line within one: those have no blank, or begin with one, `+`, `-`, `\\`, `@`."""
FAULTS = {
    GONE: "the repository's folder is gone",
    LOST: "the base that was kept beside the repository is gone",
    TOO_MUCH: "it is too long",
    FULL: "the sandbox's disk is full",
}
"""What hinders taking a patch out and is the agent's own doing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """A patch, or why there is none."""

    patch: str | None
    """Empty where nothing was changed; None where it could not be taken out for what the agent did."""
    why: str | None = None
    left_out: Sequence[str] = ()
    """Protected files that the agent changed."""


def keep_base(sandbox: Sandbox, workdir: str, *, timeout: float, hide_history: bool = True) -> str:
    """Keep a repository's files as they are as the base, a commit whose id is returned. For a sandbox before the agent.

    `hide_history`: the repository's `.git` becomes one of that commit alone (and of the last tag's name before it, by
    which packages tell their version), so that neither later commits nor the fix can be found in it. A folder that is
    no repository becomes one. It must not be /workspace itself.
    Raises: `SandboxError`, what the cancel signal raises.
    """
    ran = run_beside(sandbox, "patch", workdir, "base", *(["hide"] if hide_history else []), timeout=timeout)
    base = ran.output.strip().rpartition("\n")[2].strip()
    if ran.exit_code != 0 or len(base) not in (40, 64):
        raise SandboxError(f"the repository {workdir} could not be laid (exit code {ran.exit_code}): {said(ran)}")
    return base


def extract(
    sandbox: Sandbox,
    workdir: str,
    base: str,
    *,
    protected: Sequence[str] = (),
    limit_bytes: int = LIMIT_BYTES,
    timeout: float,
) -> Taken:
    """The difference between the repository's files and the base that `keep_base` kept in this sandbox. It may be asked
    for again. `timeout` in seconds, for all of it.

    Raises: `SandboxError` when the sandbox is gone or does not come to an end, what the cancel signal raises.
    """
    scratch = f"/workspace/.patch-{secrets.token_hex(8)}"
    try:
        ran = run_beside(
            sandbox, "patch", workdir, "take", scratch, base, str(limit_bytes), *protected, timeout=timeout
        )
        if ran.exit_code == 0:
            patch = _read(sandbox, f"{scratch}/patch", limit_bytes)
            if patch and (odd := _not_text(patch)):
                numbers = map(str, odd)
                ran = run_beside(
                    sandbox, "patch", workdir, "encode", scratch, base, str(limit_bytes), *numbers, timeout=timeout
                )
                patch = _read(sandbox, f"{scratch}/patch", limit_bytes) if ran.exit_code == 0 else None
            left = _read(sandbox, f"{scratch}/left", NAMES_BYTES) or b""
            if patch is not None and (text := _text(patch)) is not None:
                return Taken(patch=text, left_out=_names(left))
    finally:
        sandbox.shell.run(f"\\rm -rf {scratch}", timeout=timeout)
    fault = FAULTS.get(ran.exit_code or 0, f"exit code {ran.exit_code}")
    return Taken(patch=None, why=f"the patch could not be taken out: {fault}: {said(ran)}")


def _read(sandbox: Sandbox, path: str, limit: int) -> bytes | None:
    """A file of ours in the agent's sandbox; None when the agent's processes have put something else in its place."""
    try:
        return sandbox.files.read(path, limit_bytes=limit)
    except OSError:
        return None


def _not_text(patch: bytes) -> list[int]:
    """The files of a patch, by number, whose part is no UTF-8."""
    odd = []
    starts = [0] if patch.startswith(SECTION) else []
    at = patch.find(b"\n" + SECTION)
    while at >= 0:
        starts.append(at + 1)
        at = patch.find(b"\n" + SECTION, at + 1)
    for number, (start, end) in enumerate(zip(starts, [*starts[1:], len(patch)], strict=True)):
        if _text(patch[start:end]) is None:
            odd.append(number)
    return odd


def _text(data: bytes) -> str | None:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _names(data: bytes) -> tuple[str, ...]:
    return tuple(name.decode("utf-8", "replace") for name in data.split(b"\0") if name)
