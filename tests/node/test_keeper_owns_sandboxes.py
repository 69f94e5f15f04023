"""The keeper: what it starts, and who may have it."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from keeper_help import eventually, spec

from prorl_celery.errors import KeeperLost, SandboxError
from prorl_celery.sandbox import wire
from prorl_celery.sandbox.base import SandboxHandle
from prorl_celery.sandbox.client import KeeperClient
from prorl_celery.settings import Settings


def test_a_sandbox_is_ready_when_start_returns_and_gone_when_stop_does(keeper, never):
    sandbox = keeper.client.start(spec(), cancel=never, timeout=30)
    (entry,) = keeper.client.list()
    assert (entry["job_id"], entry["attempt"], entry["purpose"], entry["kind"]) == ("job", 1, "rollout", "bubblewrap")
    sandbox.shell.run("sleep 12345 & setsid sleep 12345 &", timeout=5)
    sandbox.stop()
    assert keeper.client.list() == []
    assert not Path(f"/proc/{entry['pid']}").exists()
    sandbox.stop()


def test_another_process_attaches_to_the_same_shell(keeper, never):
    first = keeper.client.start(spec(), cancel=never, timeout=30)
    first.shell.run("x=kept; cd /tmp", timeout=5)
    first.close()
    second = keeper.client.attach(SandboxHandle.from_json(first.handle.to_json()), cancel=never)
    assert second.shell.run("echo $x $PWD", timeout=5).output == "kept /tmp\n"
    third = KeeperClient(keeper.settings).attach(first.handle, cancel=never)
    assert third.shell.run("echo again", timeout=5).output == "again\n"
    status = keeper.client.status()
    assert (status["starts"], status["attaches"]) == (1, 2)
    second.close()
    third.stop()


def test_a_handle_of_another_boot_is_keeper_lost_and_of_a_gone_sandbox_an_error(keeper, never):
    sandbox = keeper.client.start(spec(), cancel=never, timeout=30)
    old = SandboxHandle.from_json({**sandbox.handle.to_json(), "boot": "an-older-one"})
    with pytest.raises(KeeperLost):
        keeper.client.attach(old, cancel=never)
    sandbox.stop()
    with pytest.raises(SandboxError, match="gone"):
        keeper.client.attach(sandbox.handle, cancel=never)


def test_without_a_keeper_every_call_is_keeper_lost(tmp_path, never):
    client = KeeperClient(Settings(run_dir=tmp_path, node="nobody-home"))
    for call in (
        client.status,
        client.list,
        lambda: client.stop("s1"),
        lambda: client.start(spec(), cancel=never, timeout=5),
        lambda: client.admit("job", cancel=never, timeout=5),
    ):
        with pytest.raises(KeeperLost):
            call()


def test_a_sandbox_ends_when_its_lifetime_does(keeper, never):
    sandbox = keeper.client.start(spec(lifetime_seconds=1.0), cancel=never, timeout=30)
    assert eventually(lambda: keeper.client.list() == [])
    with pytest.raises(SandboxError):
        sandbox.shell.run("true", timeout=5)
    sandbox.close()


def test_the_keepers_folder_is_for_its_user_only_and_the_shared_one_goes_with_it(keeper, never):
    folder = wire.keeper_directory(keeper.settings)
    assert folder.stat().st_mode & 0o777 == 0o700
    keeper.client.start(spec(), cancel=never, timeout=30).stop()
    keeper.stop()
    assert not wire.keeper_socket(keeper.settings).exists()
    assert list(folder.iterdir()) == []


def test_the_keeper_stays_small(keeper, never):
    for n in range(10):
        keeper.client.start(spec(f"job-{n}"), cancel=never, timeout=30).stop()
    (line,) = [x for x in Path(f"/proc/{keeper.process.pid}/status").read_text().splitlines() if x.startswith("VmRSS")]
    assert int(line.split()[1]) < 40 << 10
    assert len(list(Path(f"/proc/{keeper.process.pid}/fd").iterdir())) < 16


def test_signals_that_a_terminal_sends_do_not_reach_a_sandbox_through_the_keeper(keeper, never):
    sandbox = keeper.client.start(spec(), cancel=never, timeout=30)
    keeper.process.send_signal(signal.SIGWINCH)
    assert sandbox.shell.run("echo fine", timeout=5).output == "fine\n"
    sandbox.stop()
