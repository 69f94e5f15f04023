"""Everything that an instance can write is of the size asked for, together."""

from __future__ import annotations

import pytest
from sandbox_images import needs_singularity

pytestmark = needs_singularity
MB = 1 << 20
DISK = 8 * MB
PLACES = ("/workspace", "/tmp", "/var/tmp", "/dev/shm", "/home/agent", "/")


@pytest.fixture(scope="module")
def image(jail_parts) -> str:
    """A skeleton that belongs to the sandbox user."""
    return str(jail_parts.image)


@pytest.fixture
def small(start, image):
    return start(image=image, disk_bytes=DISK)


@pytest.mark.parametrize("first", ["/workspace", "/dev/shm", "/"])
def test_one_full_place_fills_them_all(small, first):
    script = f"""
        head -c {2 * DISK} /dev/zero >{first}/fill; rm -f /workspace/none
        for place in {" ".join(PLACES)}; do head -c 100000 /dev/zero >$place/more 2>/dev/null; done
        cat {first}/fill {" ".join(f"{place}/more" for place in PLACES)} | wc -c"""
    assert DISK * 3 // 4 < int(small.shell.run(script, timeout=60).output.split()[-1]) <= DISK


def test_room_that_is_given_back_can_be_used_again(small):
    small.shell.run(f"head -c {DISK} /dev/zero >/tmp/fill; rm /tmp/fill", timeout=60)
    assert small.shell.run(f"head -c {DISK // 2} /dev/zero >/workspace/x && echo fits", timeout=60).output == "fits\n"


def test_empty_files_are_bounded_too(small):
    script = "for n in {1..4000}; do : >/workspace/$n || break; done 2>/dev/null; ls /workspace | wc -l"
    assert int(small.shell.run(script, timeout=60).output) <= DISK // 4096


def test_a_size_above_the_sites_is_given(start, image):
    sandbox = start(image=image, disk_bytes=100 * MB)
    script = f"head -c {90 * MB} /dev/zero >/opt-of-mine && echo fits; df --output=size -B1 /workspace | tail -1"
    fits, size = sandbox.shell.run(script, timeout=60).output.split()
    assert (fits, int(size)) == ("fits", 100 * MB)


def test_no_other_place_can_be_written(small):
    script = """
        find / -path /proc -prune -o -type d -writable -printf '%D %p\\n' 2>/dev/null >/tmp/found
        stat -c '%d /' / ; stat -c '%d /workspace' /workspace; cat /tmp/found"""
    found = [line.split(" ", 1) for line in small.shell.run(script, timeout=60).output.splitlines()]
    bounded = {device for device, _ in found[:2]}
    assert len(found) > 5
    assert {place for device, place in found if device not in bounded} <= {"/dev/mqueue"}


def test_nothing_more_can_be_mounted(small):
    for attempt in (
        "mount -t tmpfs x /mnt",
        "unshare -Urm mount -t tmpfs x /tmp",
        "umount /dev/shm",
        "mount -o remount,size=1g /tmp",
    ):
        assert small.shell.run(attempt, timeout=20).exit_code != 0
    refused = small.shell.run("echo 100 >/proc/sys/user/max_user_namespaces", timeout=20)
    assert refused.exit_code != 0


def test_posix_shared_memory_works_within_the_size(small):
    script = """python3 -c '
from multiprocessing import shared_memory
block = shared_memory.SharedMemory(create=True, size=1 << 20)
block.buf[:4] = b"here"
again = shared_memory.SharedMemory(block.name)
print(bytes(again.buf[:4]).decode()); again.close(); block.close(); block.unlink()' 2>&1"""
    assert "here\n" in small.shell.run(script, timeout=60).output
