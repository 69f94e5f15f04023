"""Escapes: to the host's files, by paths, links, mounts, devices and privileges."""

from __future__ import annotations

import secrets
import subprocess
from pathlib import Path

import pytest
from jails import SETUID, Jail

from prorl_celery.tools.toolbox import Toolbox

USER_NAMESPACE = "unshare --user --map-root-user --mount --pid --fork"


def test_a_workers_files_are_not_there(jail: Jail):
    seen = jail.output(f"cat {jail.secret}; ls -la {jail.folder}; ls {Path(__file__).parent}; cat /etc/shadow")
    assert "of the host" not in seen
    assert Path(__file__).name not in seen
    assert "root:" not in seen
    assert jail.output(f"find / -name {jail.secret.name} -path '*{jail.folder.name}*' 2>/dev/null") == ""
    assert jail.output("ls -A /root /home/* 2>/dev/null | grep -v :").strip() == ""


def test_nothing_that_is_written_inside_is_on_the_host(jail: Jail):
    mark = f"mark{secrets.token_hex(6)}"
    written = jail.output(
        f"find / -path /proc -prune -o -type d -writable -print 2>/dev/null | "
        f"while read -r folder; do echo x 2>/dev/null >$folder/{mark} && echo $folder; done"
    )
    assert "/workspace" in written.split()
    places = ["/tmp", "/var/tmp", "/dev/shm", "/etc", str(jail.folder), *filter(None, [jail.image])]
    for arguments in (["/", "-maxdepth", "1"], [*places, "-maxdepth", "3"]):
        seen = subprocess.run(
            ["find", *arguments, "-name", mark], capture_output=True, text=True, timeout=60, check=False
        )
        assert seen.stdout == ""


def test_what_is_not_the_sandboxs_own_cannot_be_changed(jail: Jail):
    seen = jail.output(
        "for place in /usr /usr/bin /usr/lib /bin /lib; do touch $place/new && echo made in $place; done; "
        "echo x >>/usr/bin/env && echo changed; rm -f /usr/bin/env && echo removed; echo done"
    )
    assert "done" in seen
    for word in ("made in", "changed", "removed"):
        assert word not in seen
    assert Path("/usr/bin/env").exists()


@pytest.mark.parametrize("what", ["{secret}", "/proc/self/root{secret}", "/proc/1/root{secret}", "../..{secret}"])
def test_a_link_in_the_workspace_leads_no_file_operation_to_the_host(jail: Jail, what: str):
    target = what.format(secret=jail.secret)
    sandbox = jail.sandbox
    sandbox.shell.run(f"ln -sfn {target} /workspace/leak; ln -sfn {Path(target).parent} /workspace/folder", timeout=10)
    for path in ("/workspace/leak", f"/workspace/folder/{jail.secret.name}"):
        with pytest.raises(OSError):
            sandbox.files.read(path)
        with pytest.raises(OSError):
            sandbox.files.write(path, b"changed")
    with pytest.raises(OSError):
        sandbox.files.listing("/workspace/folder")
    toolbox = Toolbox(["str_replace_editor"], sandbox=sandbox, settings=jail.keeper.settings, cancel=jail.never)
    for arguments in (
        {"command": "view", "path": "/workspace/leak"},
        {"command": "create", "path": f"/workspace/folder/{jail.secret.name}", "file_text": "changed"},
        {"command": "str_replace", "path": "/workspace/leak", "old_str": "host", "new_str": "changed"},
    ):
        assert "of the host" not in toolbox.call("str_replace_editor", arguments).content
    assert jail.secret.read_text() == "of the host"


def test_the_agent_has_no_privilege_and_gets_none(jail: Jail):
    status = jail.output("grep -E '^(CapPrm|CapEff|CapBnd|NoNewPrivs)' /proc/self/status")
    assert status.split() == [
        "CapPrm:", "0000000000000000", "CapEff:", "0000000000000000", "CapBnd:", "0000000000000000", "NoNewPrivs:", "1",
    ]  # fmt: skip
    assert jail.output("id -u") != "0\n"
    assert jail.sandbox.shell.run("python3 -c 'import os; os.setuid(0)'", timeout=20).exit_code != 0


def test_a_setuid_file_gives_nothing(jail: Jail):
    own = "cp /bin/bash /workspace/own && chmod 6755 /workspace/own; /workspace/own -p -c 'id -u; id -g'; id -u; id -g"
    made = jail.output(own).split()
    assert made[:2] == made[2:]
    seen = jail.output(
        f"test -u {SETUID} && {SETUID} -p -c 'echo euid $EUID'; timeout 0.3 su -c 'echo euid $EUID' </dev/null; "
        "mount -t tmpfs none /mnt && echo mounted; chroot / echo rooted"
    )
    assert "euid 0" not in seen
    assert "mounted" not in seen
    assert "rooted" not in seen
    if jail.image is not None:
        assert "euid " in seen, "the image's setuid bash runs, as nobody else"


def test_no_device_node_can_be_made_and_those_that_are_there_are_harmless(jail: Jail):
    seen = jail.output(
        "mknod /workspace/disk b 254 0; mknod /workspace/mem c 1 1; mknod /tmp/null c 1 3; "
        f"{USER_NAMESPACE} mknod /tmp/null c 1 3; ls -l /workspace /tmp | grep '^[bc]'"
    )
    assert not [line for line in seen.splitlines() if line[0] in "bc" and line[1:3] in ("rw", "r-")]
    devices = jail.output("find / -type b -print -o -type c -print 2>/dev/null").split()
    harmless = {"null", "zero", "full", "random", "urandom", "tty", "ptmx", "console"}
    strange = [path for path in devices if Path(path).name not in harmless and not path.startswith("/dev/pts/")]
    assert strange == []


def test_no_mount_can_be_made_or_undone(jail: Jail):
    assert jail.sandbox.shell.run("unshare --user true", timeout=10).exit_code != 0
    before = jail.output("cut -d' ' -f5 /proc/self/mountinfo")
    seen = jail.output(
        f"{USER_NAMESPACE} bash -c 'mount -t tmpfs none /tmp && echo mounted; mount --bind / /tmp && echo bound; "
        "umount -l /usr && echo undone; mount -o remount,rw /usr && echo remounted; "
        "mount -t proc none /proc && cat /proc/1/environ'"
    )
    for word in ("mounted", "bound", "undone", "remounted", "do-not-tell"):
        assert word not in seen.split("\n"), seen
    assert jail.output("cut -d' ' -f5 /proc/self/mountinfo") == before
