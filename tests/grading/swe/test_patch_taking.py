"""What an agent left is what the patch says, whatever was done to its git."""

from __future__ import annotations

import re

import pytest
from swe_repositories import COMMIT, HISTORY, WORKDIR, Repository, cases

from prorl_celery.errors import SandboxError
from prorl_celery.grading.swe.patch import extract, keep_base

ODD = "src/$(printf 'n\\374\\tn \"\\\\ .txt')"
CHANGES = {
    "a change": "echo 41 >>src/numbers",
    "a change that is committed": f"echo 41 >>src/numbers; {COMMIT} commit -qam mine",
    "a change that is staged": "echo 41 >>src/numbers; git add -A; git checkout -q HEAD -- src/code.py",
    "a new file": "echo new >src/new.py",
    "a new folder": "mkdir -p a/b/c && echo new >a/b/c/d",
    "a new empty file": ": >src/empty",
    "a file made empty": ": >src/numbers",
    "an empty file filled": "echo 1 >src/nothing",
    "a removed file": "rm src/code.py src/nothing src/binary src/link src/latin",
    "a removed folder": "rm -r sub",
    "a renamed file": "mv src/numbers src/counted",
    "a renamed and changed file": "mv src/numbers src/counted && sed -i s/20/twenty/ src/counted",
    "a mode": "chmod +x src/code.py && chmod -x run",
    "a mode and a change": "chmod +x src/code.py && echo >>src/code.py",
    "a new program": "printf '#!/bin/sh\\n' >go && chmod +x go",
    "a symbolic link": "ln -s /etc/passwd out && ln -s nowhere src/broken && ln -sfn code.py src/link",
    "a file that becomes a link": "rm src/code.py && ln -s numbers src/code.py",
    "a link that becomes a file": "rm src/link && echo file >src/link",
    "a folder that becomes a file": "rm -r sub && echo file >sub",
    "a file that becomes a folder": "rm src/code.py && mkdir src/code.py && echo 1 >src/code.py/one",
    "a folder that becomes a link": "rm -r sub && ln -s src sub",
    "binary files": "head -c 100000 /dev/urandom >blob && printf '\\0\\1\\3' >src/binary",
    "bytes that are no UTF-8": "printf 'caf\\351\\n' >>src/latin && "
    "printf '\\377\\376 new\\n' >bytes && echo text >text",
    "a renamed file before one that is no UTF-8": "mv src/code.py src/aaa && printf '\\377' >>src/latin",
    "line ends": "printf 'a\\r\\nc\\r\\n' >src/crlf && printf 'x\\r\\ny\\n' >mixed && printf 'a\\rb\\r' >mac",
    "line ends that change": "printf 'a\\nb\\n' >src/crlf && sed -i 's/$/\\r/' src/code.py",
    "no end of the last line": "printf 'new' >src/noend && printf 'more' >>src/code.py && echo end >>src/numbers",
    "an end of the last line": "echo >>src/noend",
    "blanks at line ends": "printf 'a \\t\\n\\n\\n  \\n' >>src/code.py",
    "odd names": f"echo more >>\"{ODD}\" && echo 1 >'a b' && echo 1 >'-x' && "
    "echo 1 >\"$(printf 'new\\nline')\" && echo 1 >ünï"
    " && echo 1 >':(glob)x' && echo 1 >'x*?[y]' && echo 1 >'a -> b'",
    "lines like a patch's": "printf 'diff --git a/x b/x\\n--- a/x\\n+++ b/x\\n@@ -1 +1 @@\\n-a\\n+b\\n' >>src/numbers",
    "an ignored file that was there": "echo more >>src/kept.log",
    "what git ignores no more": "echo >.gitignore && mkdir -p ignored && echo 1 >ignored/x.py",
    "all of it": "rm -rf ./* && echo 1 >only",
}  # fmt: skip


MANY = (
    "a change", "a new folder", "a new empty file", "an empty file filled", "a removed folder", "a mode",
    "a new program", "binary files", "bytes that are no UTF-8", "line ends", "no end of the last line", "odd names",
    "lines like a patch's", "an ignored file that was there", "a symbolic link",
)  # fmt: skip


def test_a_patch_of_many_changes_makes_them_all_elsewhere(agents: Repository, graders: Repository) -> None:
    agents.begin()
    agents.run("; ".join(CHANGES[change] for change in MANY))
    patch = agents.patch()
    graders.ready()
    assert graders.apply(patch) == ("git", None)
    assert graders.files() == agents.files()


@pytest.mark.parametrize(
    "change",
    cases(
        CHANGES,
        "a renamed file before one that is no UTF-8",
        "all of it",
        "a renamed and changed file",
        "a folder that becomes a link",
    ),
)
def test_a_patch_makes_elsewhere_what_the_agent_left(agents: Repository, graders: Repository, change: str) -> None:
    agents.begin()
    agents.run(CHANGES[change])
    patch = agents.patch()
    assert patch
    graders.ready()
    assert graders.apply(patch) == ("git", None)
    assert graders.files() == agents.files()


TAMPERED = {
    "no git": "rm -rf .git",
    "another git": f"rm -rf .git && git init -q && git add -A && {COMMIT} commit -qm all",
    "an empty git": "rm -rf .git && mkdir .git",
    "git is a file": "rm -rf .git && echo gitdir: /nowhere >.git",
    "git is a link": "mv .git /workspace/elsewhere && ln -s /workspace/elsewhere .git",
    "a branch, a commit, a stash": f"git checkout -qb other && git add -A && {COMMIT} commit -qm x && "
    f"echo 1 >ignored.py && {COMMIT} stash -q -u && git checkout -q v1.2 && git checkout -q other",
    "a detached head": f"git add -A && {COMMIT} commit -qm x && git checkout -q --detach",
    "all is committed and the history gone": f"git add -A && {COMMIT} commit -qm x && git checkout -q --orphan none && "
    f"{COMMIT} commit -qm one && git reflog expire --expire=now --all && git gc -q --prune=now",
    "assume unchanged": "git update-index --assume-unchanged src/code.py src/numbers",
    "skip worktree": "git update-index --skip-worktree src/code.py src/numbers",
    "intent to add": "git add -N .",
    "a broken index": "echo rubbish >.git/index",
    "a huge index": "dd if=/dev/zero of=.git/index bs=1M count=20 status=none",
    "a locked index": "touch .git/index.lock",
    "broken configuration": "echo '[[[' >.git/config",
    "another work tree": "git config core.worktree /workspace/elsewhere",
    "no modes, no links": "git config core.fileMode false && git config core.symlinks false && "
    "git config core.ignoreCase true",
    "an exclude file": "printf '*\\n' >.git/info/exclude && git config core.excludesFile /dev/null",
    "attributes": "mkdir -p .git/info && "
    "printf '* -diff filter=evil diff=evil eol=crlf text ident\\n' >.git/info/attributes",
    "replaced objects": "git replace HEAD^{tree} $(git mktree </dev/null)",
    "grafts": "mkdir -p .git/info && git rev-parse HEAD >.git/info/grafts",
    "objects elsewhere": "mkdir -p .git/objects/info && echo /nowhere >.git/objects/info/alternates",
    "another git program": "git() { echo fooled; }; alias git='echo fooled'; PATH=/nowhere",
    "variables": "export GIT_DIR=/nowhere GIT_INDEX_FILE=/nowhere GIT_WORK_TREE=/ GIT_EXTERNAL_DIFF=/bin/false "
    "GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=core.bare GIT_CONFIG_VALUE_0=true GIT_DIFF_OPTS=-u0 LD_PRELOAD=/nowhere",
    "a shell in another place": "mkdir -p /workspace/gone && cd /workspace/gone && \\rmdir /workspace/gone",
    "files that cannot be read": "chmod 000 src/code.py && chmod 000 sub",
    "pipes and sockets": "mkfifo pipe && python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"sock\")'",
}  # fmt: skip


QUICK = (
    "no git", "another git", "all is committed and the history gone", "skip worktree", "a broken index", "attributes",
    "variables", "files that cannot be read",
)  # fmt: skip


@pytest.mark.parametrize("tampering", cases(TAMPERED, *QUICK))
def test_what_is_done_to_git_changes_no_patch(agents: Repository, tampering: str) -> None:
    agents.begin()
    agents.run("echo 41 >>src/numbers; rm src/code.py; echo new >src/new")
    expected = agents.patch()
    assert re.findall(r"^diff --git a/(\S+)", expected, re.M) == ["src/code.py", "src/new", "src/numbers"]
    if "cannot be read" in tampering:
        agents.run("touch src/code.py; printf 'def f():\\n    return 1\\n' >src/code.py")
        expected = "".join(
            part for part in re.split(r"(?=^diff --git )", expected, flags=re.M) if "src/code.py" not in part
        )
    agents.run(TAMPERED[tampering])
    taken = agents.extract()
    if tampering in ("another git program", "variables"):
        agents.sandbox.shell.run("exit", timeout=5)
    assert taken.patch == expected


def test_no_program_that_the_agents_configuration_names_is_run(agents: Repository) -> None:
    agents.begin()
    agents.run(
        "printf '#!/bin/sh\\ntouch /workspace/was-run\\nexec cat\\n' >/workspace/evil && chmod +x /workspace/evil && "
        "for hook in pre-commit post-checkout post-index-change fsmonitor-watchman reference-transaction; do "
        "mkdir -p .git/hooks; cp /workspace/evil .git/hooks/$hook; done && cp .git/config /workspace/config && "
        "for key in core.fsmonitor core.pager pager.diff diff.external core.editor core.sshCommand diff.evil.textconv "
        "diff.evil.command filter.evil.clean filter.evil.smudge filter.evil.process core.gitProxy core.askPass; do "
        "git config $key /workspace/evil; git config --global $key /workspace/evil; done; "
        "printf '* filter=evil diff=evil\\n' >.gitattributes; cp .git/hooks/pre-commit sub/; "
        "git init -q sub/inner; cp -r .git/hooks .git/config sub/inner/.git/; "
        "echo 41 >>src/numbers; rm -f /workspace/was-run"
    )
    patch = agents.patch()
    assert "+41" in patch
    assert ".gitattributes" in patch
    agents.run("test ! -e /workspace/was-run; rm ~/.gitconfig")


def test_attributes_of_the_repository_leave_bytes_as_they_are(agents: Repository, graders: Repository) -> None:
    attributes = (
        "printf '* text=auto eol=lf ident\\n*.py -diff\\n*.u16 working-tree-encoding=UTF-16\\n' >.gitattributes"
    )
    agents.begin(f"{attributes}; printf '$Id$\\n' >id; {COMMIT} add -A; {COMMIT} commit -qm more")
    agents.run("printf 'a\\r\\nnew\\r\\n' >src/crlf; printf '$Id: 1 $\\n' >id; echo x >x.u16; echo new >>src/code.py")
    patch = agents.patch()
    graders.ready(f"{attributes}; printf '$Id$\\n' >id")
    assert graders.apply(patch) == ("git", None)
    assert graders.files() == agents.files()
    assert "+new\n" in patch, "what .gitattributes calls binary is text here"


def test_a_pipe_in_a_files_place_is_a_file_that_is_gone(agents: Repository) -> None:
    agents.begin()
    agents.run("rm src/code.py run; mkfifo src/code.py; mkfifo run")
    assert re.findall(r"^deleted file|^diff --git a/(\S+)", agents.patch(), re.M) == ["run", "", "src/code.py", ""]


def test_what_is_left_out_is_what_git_ignores_and_repositories_within(agents: Repository) -> None:
    agents.begin()
    agents.run(
        "mkdir -p ignored src/__pycache__ .pytest_cache x.egg-info && touch ignored/a b.log c.pyc "
        "src/__pycache__/a.pyc src/__pycache__/text "
        f".pytest_cache/x x.egg-info/PKG-INFO && git init -q clone && echo 1 >clone/a && git -C clone add a && "
        f"{COMMIT} -C clone commit -qm 1 && git init -q unborn && echo 1 >unborn/a && git init -q src && mkdir empty"
    )
    assert agents.extract().patch == ""
    agents.run("echo 1 >src/of_mine; echo 2 >sub/one")
    assert re.findall(r"^diff --git a/(\S+)", agents.patch(), re.M) == ["src/of_mine", "sub/one"]


@pytest.mark.parametrize("way", ["git add -A", "true", f"git add -A; {COMMIT} commit -qm x"])
def test_changes_to_protected_paths_are_taken_out(agents: Repository, way: str) -> None:
    agents.begin()
    agents.run(
        f"echo 41 >>src/numbers; git mv tests/test_code.py tests/moved.py; rm sub/one; echo 1 >'sub/*'; "
        f"echo 1 >subs; {way}"
    )
    taken = agents.extract(protected=("tests/test_code.py", "tests/moved.py", "sub", "src/*"))
    assert re.findall(r"^diff --git a/(\S+)", taken.patch or "", re.M) == ["src/numbers", "subs"]
    assert sorted(taken.left_out) == ["sub/*", "sub/one", "tests/moved.py", "tests/test_code.py"]


def test_nothing_changed_is_an_empty_patch_and_it_may_be_asked_for_again(agents: Repository) -> None:
    agents.begin()
    assert agents.extract().patch == ""
    agents.run("touch src/code.py; echo x >>src/numbers; sed -i '$d' src/numbers")
    assert agents.extract().patch == ""
    agents.run("echo x >>src/numbers; git add -A")
    before = agents.run("git status; ls -A /workspace")
    assert agents.patch() == agents.patch()
    assert agents.run("git status; ls -A /workspace") == before


def test_later_history_is_put_away(agents: Repository) -> None:
    agents.begin(HISTORY)
    assert agents.run("git log --all --format=%s; git tag; git stash list; git status --porcelain") == "base\nv1.2"
    assert agents.run("git cat-file --batch-all-objects --batch | grep -ac 'the fix' || true") == "0"
    assert agents.run("grep -rc 'the fix' /workspace | grep -v ':0$' || true") == ""
    agents.run('echo 1 >>src/numbers && git commit -qam mine && git checkout -q v1.2 && test -z "$(git diff HEAD)"')


def test_what_was_not_committed_is_of_the_base(agents: Repository) -> None:
    agents.begin("echo dirty >>src/numbers; echo untracked >new; rm sub/one")
    assert agents.extract().patch == ""


def test_a_folder_that_is_no_repository_becomes_one(agents: Repository) -> None:
    agents.begin("rm -rf .git")
    assert agents.run("git log --format=%s; git status --porcelain") == "base"
    agents.run("echo 1 >src/new")
    assert "src/new" in agents.patch()


UNTAKEN = {
    "the folder is gone": (f"cd / && rm -rf {WORKDIR}", "the repository's folder is gone"),
    "the base is gone": ("rm -rf /workspace/.base .git", "the base that was kept"),
    "the patch is too long": (
        "head -c 300000 /dev/urandom | base64 >new",
        "too long: the patch is longer than 100000",
    ),
    "files are too many bytes": ("head -c 9000000 /dev/zero >new", "too long: files of more than 1600000 bytes"),
    "a file has no end": ("truncate -s 300G new", "too long: files of more than"),
    "the disk is full": ("cat /dev/zero >ignored.log 2>/dev/null; echo 1 >>src/numbers; true", "disk is full"),
}


@pytest.mark.parametrize("case", cases(UNTAKEN, "the folder is gone", "the base is gone", "the patch is too long"))
def test_a_patch_that_cannot_be_taken_out_is_said_to_be_none(agents: Repository, case: str) -> None:
    agents.begin()
    agents.run(UNTAKEN[case][0])
    taken = agents.extract(limit_bytes=100_000)
    assert taken.patch is None
    assert taken.why is not None
    assert UNTAKEN[case][1] in taken.why


def test_a_base_that_is_gone_is_found_in_the_agents_repository(agents: Repository) -> None:
    agents.begin()
    agents.run("rm -rf /workspace/.base; echo 41 >>src/numbers")
    assert "+41" in agents.patch()


def test_what_cannot_be_laid_is_a_fault_of_the_sandbox(agents: Repository) -> None:
    agents.lay()
    with pytest.raises(SandboxError, match="/workspace/none could not be laid"):
        keep_base(agents.sandbox, "/workspace/none", timeout=30)
    agents.run("git hash-object -w src/code.py; find .git/objects -type f -delete")
    with pytest.raises(SandboxError, match="could not be laid"):
        keep_base(agents.sandbox, WORKDIR, timeout=30)


def test_one_that_does_not_end_is_a_fault_of_the_sandbox(agents: Repository) -> None:
    agents.begin()
    with pytest.raises(SandboxError, match=r"did not end in 0 s|stuck|time"):
        extract(agents.sandbox, WORKDIR, agents.base, timeout=0.0)
