"""Apptainer is installed on a Debian 12 with nothing on it, both ways, in a root of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

IMAGES = Path(__file__).parents[2] / "deploy" / "images"
ENTER = """
root=$1; shift
mount --bind "$root" "$root"
for place in dev proc sys; do mount --rbind /$place "$root/$place"; done
mkdir -p "$root/images" "$root/old"
mount --bind "$1" "$root/images"; shift
cp /etc/resolv.conf "$root/etc/resolv.conf"
cd "$root"
pivot_root . old
umount -l old
cd /
exec "$@"
"""
"""Not chroot: in one no user namespace can be made."""
TRIAL = """
set -e
useradd -m tester
/images/make_skeleton.sh /srv/skeleton 2> /dev/null
cd /
setpriv --reuid tester --regid tester --init-groups env HOME=/home/tester bash -ec '
  options="--containall --no-home --cleanenv --bind /usr:/usr:ro --pwd /"
  singularity -q exec $options --net --network none /srv/skeleton id -u
  singularity -q exec $options --fakeroot /srv/skeleton id -u
  singularity -q instance start --containall --bind /usr:/usr:ro /srv/skeleton one
  singularity -q exec instance://one id -u
  kill -9 $(singularity instance list --json | sed -n "s/.*\\"pid\\": \\([0-9]*\\).*/\\1/p")
'
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root installs"),
    pytest.mark.skipif(shutil.which("debootstrap") is None, reason="no debootstrap (a Debian package)"),
]


@pytest.fixture
def inside(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Runs a command in a fresh Debian, with a folder of ours as /images; what it says."""
    root = tmp_path / "root"
    targets = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(RELEASE) $(REPO_URI)"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    mirror = [line.split()[1] for line in targets.stdout.splitlines() if line.startswith("bookworm ")][:1]
    command = ["debootstrap", "--variant=minbase", "--include=python3,ca-certificates", "bookworm", str(root), *mirror]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=900)

    def run(images: Path, *command: str) -> str:
        argv = ["unshare", "--mount", "--propagation", "private", "sh", "-ec", ENTER, "sh", str(root), str(images)]
        environ = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8"}
        done = subprocess.run([*argv, *command], env=environ, capture_output=True, text=True, timeout=900, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    yield run
    shutil.rmtree(root)


def test_retargeted_or_with_a_glibc_of_its_own_it_runs_for_any_user(inside, tmp_path):
    installed = inside(IMAGES, "/images/install_apptainer.sh")
    assert "apptainer version 1" in installed
    assert inside(IMAGES, "bash", "-c", TRIAL).split() == ["1000", "0", "1000"]

    inside(IMAGES, "bash", "-c", "dpkg -r apptainer; userdel -r tester; rm -r /srv/skeleton")
    too_new = tmp_path / "images"  # where a newer package cannot be retargeted
    shutil.copytree(IMAGES, too_new)
    (too_new / "retarget_glibc.py").write_text("raise SystemExit(1)\n")
    assert "apptainer version 1" in inside(too_new, "/images/install_apptainer.sh")
    assert "libc.so.6" in inside(too_new, "sh", "-c", "ls /usr/lib/*/apptainer/glibc")
    assert inside(too_new, "bash", "-c", TRIAL).split() == ["1000", "0", "1000"]
    inside(too_new, "apt-get", "check")


def test_a_wrong_argument_is_refused():
    told = subprocess.run([IMAGES / "install_apptainer.sh", "--help"], capture_output=True, text=True, timeout=60)
    assert told.returncode == 1
    assert "usage" in told.stderr
