"""Keepers of ordinary users, and of two users on one machine."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from keeper_help import eventually, guard_of, share_of, spec, things_of
from other_user import readable_python, user_named

from prorl_celery.node.janitor.removal import clear_left
from prorl_celery.settings import Settings
from prorl_celery.testing.keeper import KeeperProcess

OTHER = "nobody"
"""Also whom root's sandboxes run as: by uid their processes cannot be told apart."""


@pytest.fixture(scope="module")
def other_python() -> Iterator[tuple[str, dict[str, str]]]:
    if os.geteuid() != 0:
        pytest.skip("only root can be two users")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield readable_python(Path(folder), user_named(OTHER))


@pytest.fixture
def other_settings() -> Iterator[Settings]:
    folder = Path(tempfile.mkdtemp())
    os.chown(folder, user_named(OTHER).uid, user_named(OTHER).gid)
    yield Settings(run_dir=folder, node="n1", spare_sandboxes=0)
    shutil.rmtree(folder)


def of_other(settings: Settings, python: tuple[str, dict[str, str]], boot: str = "other") -> KeeperProcess:
    program, environment = python
    return KeeperProcess(settings, boot=boot, user=OTHER, program=program, extra_env=environment)


def test_an_ordinary_user_can_run_a_keeper_too(other_settings, other_python, never):
    with of_other(other_settings, other_python) as keeper:
        sandbox = keeper.client.start(spec(), cancel=never, timeout=60)
        seen = sandbox.shell.run("id -u; touch /usr/x; ulimit -u", timeout=20).output
        assert seen == "1000\ntouch: cannot touch '/usr/x': Read-only file system\n256\n"
        sandbox.shell.run("trap '' INT; sleep 100", timeout=0.3)
        assert sandbox.shell.run("echo back", timeout=20).output == "back\n"
        sandbox.stop()


def test_what_one_users_keeper_left_is_not_the_others_to_remove(keeper, other_settings, other_python, never):
    ours = keeper.client.start(spec("ours"), cancel=never, timeout=60)
    with of_other(other_settings, other_python) as other:
        other.client.start(spec("theirs"), cancel=never, timeout=60).close()
        theirs = share_of(other)
        os.kill(guard_of(other), signal.SIGKILL)
        other.kill()
    clear_left(keeper.settings.with_(run_dir=other_settings.run_dir))
    assert theirs.is_dir(), "root lets others' be"
    assert (other_settings.run_dir / "n1" / "keeper.sock").exists()
    with of_other(other_settings, other_python, boot="again") as again:
        assert eventually(lambda: not theirs.exists())
        assert things_of(keeper, share_of(keeper)), "nor does another touch root's"
        assert ours.shell.run("echo here", timeout=20).output == "here\n"
        place = share_of(keeper)
        os.kill(guard_of(keeper), signal.SIGKILL)
        keeper.kill()
        again.client.start(spec("more"), cancel=never, timeout=60).stop()
    assert eventually(lambda: clear_left(keeper.settings) is not None and not place.exists())
    ours.close()
