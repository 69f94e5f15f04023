"""Small git repositories in real sandboxes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from prorl_celery.grading.swe.apply import apply_patch, guard, restore
from prorl_celery.grading.swe.patch import Taken, extract, keep_base
from prorl_celery.sandbox.base import Sandbox

WORKDIR = "/workspace/repo"


def cases(table: Mapping[str, Any], *quick: str) -> list[Any]:
    """A parameter for each entry's name; all but the quick ones are slow."""
    return [pytest.param(name, marks=() if name in quick else pytest.mark.slow) for name in table]


COMMIT = "git -c user.name=a -c user.email=a@b"
TREE = f"""
mkdir -p {WORKDIR}/src {WORKDIR}/tests && cd {WORKDIR} && git init -q
seq 1 40 >src/numbers && printf 'def f():\\n    return 1\\n' >src/code.py && printf 'a\\r\\nb\\r\\n' >src/crlf
printf '\\0\\1\\2' >src/binary && ln -s numbers src/link && printf '#!/bin/sh\\n' >run && chmod +x run
printf 'ignored/\\n*.log\\n' >.gitignore && echo kept >src/kept.log && echo t >tests/test_code.py && : >src/nothing
printf 'no end' >src/noend && printf '\\351t\\351\\n' >src/latin && echo odd >"src/$(printf 'n\\374\\tn "\\\\ .txt')"
mkdir sub && echo 1 >sub/one && echo root >conftest.py
git add -A && git add -f src/kept.log && {COMMIT} commit -qm base && git tag v1.2
"""
HISTORY = f"""
echo 'the fix' >src/code.py && {COMMIT} commit -qam 'the fix' && git tag v1.3 && git checkout -q v1.2
git branch -D master main 2>/dev/null; git branch -q later v1.3
"""


class Repository:
    """One in a sandbox."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self.base = ""
        self._bases: dict[tuple[str, bool | None], str] = {}

    def run(self, command: str, timeout: float = 60.0) -> str:
        """Run a command in it; what it printed. Fails where it fails."""
        ran = self.sandbox.shell.run(f"cd {WORKDIR} 2>/dev/null; {command}", timeout=timeout)
        assert ran.exit_code == 0, (command, ran)
        return ran.output.strip()

    def lay(self, more: str = "", *, kept: bool | None = None) -> None:
        """Make it anew. `kept`: with a base, for an agent (True) or for grading. What was made once is copied."""
        self.sandbox.shell.run("cd /workspace; chmod -R u+rwX . 2>/dev/null; rm -rf ./* ./.??*", timeout=30)
        case = (more, kept)
        saved = f"/tmp/saved{list(self._bases).index(case) if case in self._bases else len(self._bases)}"
        if case in self._bases:
            self.run(f"cp -a {saved}/. /workspace")
        else:
            self.run(TREE.strip().replace("\n", " && "))
            if more:
                self.run(more)
            self._bases[case] = (
                keep_base(self.sandbox, WORKDIR, timeout=60, hide_history=kept) if kept is not None else ""
            )
            self.run(f"cp -a /workspace {saved}")
        self.base = self._bases[case]

    def begin(self, more: str = "") -> None:
        """Make it anew for an agent."""
        self.lay(more, kept=True)

    def ready(self, more: str = "") -> None:
        """Make it anew for grading."""
        self.lay(more, kept=False)

    def extract(self, **options: Any) -> Taken:
        return extract(self.sandbox, WORKDIR, self.base, timeout=options.pop("timeout", 60), **options)

    def patch(self, **options: Any) -> str:
        """The patch; there must be one."""
        taken = self.extract(**options)
        assert taken.patch is not None, taken
        return taken.patch

    def files(self) -> str:
        """Every file but git's: kind, mode, what is in it."""
        return self.run(
            "find . -name .git -prune -o ! -type d -printf '%y %m %p %l\\n' | sort; "
            "find . -name .git -prune -o -type f -print0 | sort -z | xargs -0 sha256sum"
        )

    def apply(self, patch: str | bytes) -> tuple[str | None, str | None]:
        applied = apply_patch(self.sandbox, WORKDIR, patch, timeout=60)
        return applied.by, applied.why

    def guard(self, *paths: str, free: tuple[str, ...] = ()) -> None:
        guard(self.sandbox, WORKDIR, paths, free=free, timeout=60)

    def restore(self, *paths: str, free: tuple[str, ...] = ()) -> tuple[str, ...]:
        return restore(self.sandbox, WORKDIR, paths, free=free, timeout=60)


Start = Callable[[], Sandbox]
