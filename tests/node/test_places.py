"""Directories and locks of a service."""

import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from prorl_celery.errors import SettingsError
from prorl_celery.node.places import SHORT, locked, private_directory, run_dir_for


def test_a_private_directory_is_closed_to_others(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir(mode=0o777)
    assert stat.S_IMODE(private_directory(tmp_path / "open").stat().st_mode) == 0o700


def test_a_link_in_its_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(SettingsError, match="PRORL_RUN_DIR"):
        private_directory(tmp_path / "link")


def test_services_with_different_data_share_no_directory(tmp_path: Path) -> None:
    assert run_dir_for(tmp_path / "a") != run_dir_for(tmp_path / "b")
    assert run_dir_for(tmp_path / "a") == run_dir_for(tmp_path / "a")


def test_sockets_have_a_short_path_however_long_the_temporary_directory_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / ("x" * 100)))
    assert len(str(run_dir_for(tmp_path).parent)) <= SHORT


def test_a_lock_has_one_holder_and_names_it(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from prorl_celery.node.places import locked\n"
        f"with locked(Path({str(tmp_path / 'lock')!r}), 'the place'): print('held', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdin
    assert holder.stdout
    with holder:
        holder.stdout.readline()
        with pytest.raises(SettingsError, match=rf"the place is in use by another prorl \(pid {holder.pid}\)"):
            with locked(tmp_path / "lock", "the place"):
                pass
        holder.stdin.close()
        holder.wait(20)
    with locked(tmp_path / "lock", "the place"):
        pass
