"""Escapes: taking the machine's disk, memory or processes from everybody else."""

from __future__ import annotations

import secrets
from contextlib import suppress
from pathlib import Path

import pytest
from jails import Jail, marked

from prorl_celery.errors import SandboxError
from prorl_celery.node.pause import until

MB = 1 << 20
DISK = 8 * MB
MEMORY = 64 * MB
PLACES = 5
"""Most writable places that have a size of their own: the workspace and four small ones, none larger than it."""
MOST_FILES = 1_500_000
TOO_MUCH = 3 * (MEMORY + PLACES * DISK)

WRITABLE = "find / \\( -path /proc -o -path /sys -o -path /usr \\) -prune -o -type d -writable -print 2>/dev/null"
FILL = """
import sys
total = 0
for folder in sys.argv[1:]:
    try:
        with open(folder + "/fill", "wb", buffering=0) as file:
            while total < {most}:
                total += file.write(bytes(1 << 16))
    except OSError as error:
        print(folder, error.strerror)
print("took", total)
"""
FILES = """
import os
count = 0
try:
    while count < {most}:
        os.close(os.open(f"/workspace/{{count}}", os.O_CREAT | os.O_WRONLY))
        count += 1
        if not count % 1000: print("took", count, flush=True)
except OSError as error:
    print(error.strerror)
print("took", count, flush=True)
"""
BOMB = """
import os, time
count = 0
try:
    while count < 2000:
        if not os.fork():
            time.sleep(600)
        count += 1
except OSError as error:
    print(error.strerror)
print("took", count, flush=True)
os.system("kill -9 -1")
"""
WAIT = """
while not os.path.exists("/workspace/go"): time.sleep(0.01)
"""
ALONE = """
held = bytearray({each})
held[::4096] = b"x" * len(held[::4096])
time.sleep(600)
"""
UNMAPPED = """
held = []
for _ in range(20):
    held.append(os.memfd_create("x"))
    for _ in range({each} // 20 >> 16):
        os.write(held[-1], bytes(1 << 16))
time.sleep(600)
"""
ON_THEIR_WAY = """
import array, resource, socket, time
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
held = []
try:
    while True:
        held += socket.socketpair()
        held[-1].setblocking(False)
        try:
            while True:
                held[-1].sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0] * 253))])
        except BlockingIOError: pass
except OSError as error:
    open("/workspace/done", "w").write(error.strerror)
time.sleep(600)
"""
FORK = """
for _ in range({count} - 1):
    if not os.fork(): break
"""


def took(said: str) -> int:
    """The last number that a program said it took."""
    return int(next(line for line in reversed(said.splitlines()) if line.startswith("took ")).split()[1])


def usable(jail: Jail) -> None:
    """The neighbour's sandbox and the keeper go on."""
    result = jail.neighbour.shell.run("x=$(seq 100 | tail -1); echo $x >/tmp/x; cat /tmp/x", timeout=60)
    assert result.output == "100\n"
    assert jail.keeper.client.status()["boot"] == jail.keeper.boot


def test_a_full_disk_is_the_sandboxs_alone(jail: Jail):
    sandbox = jail.start(disk_bytes=DISK)
    sandbox.files.write("/workspace/fill.py", FILL.format(most=10 * PLACES * DISK).encode())
    said = sandbox.shell.run(f"python3 fill.py $({WRITABLE})", timeout=60).output
    assert "/workspace No space left on device" in said
    assert took(said) <= PLACES * DISK, said
    usable(jail)
    sandbox.stop()


def test_files_without_a_byte_are_bounded_too(jail: Jail):
    """Each costs the kernel a KiB, which no size of a tmpfs counts. They outlive who made them: the sandbox may end."""
    sandbox = jail.start(disk_bytes=DISK, memory_bytes=MEMORY)
    sandbox.files.write("/workspace/files.py", FILES.format(most=MOST_FILES).encode())
    with suppress(SandboxError):
        assert took(sandbox.shell.run("python3 files.py", timeout=60).output) < MOST_FILES
    usable(jail)
    sandbox.stop()


def test_processes_are_bounded(jail: Jail):
    sandbox = jail.start(processes=64)
    sandbox.files.write("/workspace/bomb.py", BOMB.encode())
    said = sandbox.shell.run("python3 bomb.py", timeout=60).output
    assert took(said) < 64
    usable(jail)
    assert sandbox.shell.run("echo back", timeout=30).output == "back\n"
    sandbox.stop()


def test_a_bomb_that_goes_on_forking_harms_nobody_else(jail: Jail):
    sandbox = jail.start(processes=64)
    sandbox.shell.run("bomb() { bomb | bomb & }; bomb; sleep 1", timeout=3)
    usable(jail)
    sandbox.stop()


@pytest.mark.parametrize(("take", "count"), [(ALONE, 1), (ALONE, 20), (UNMAPPED, 1)], ids=["one", "many", "unmapped"])
def test_memory_is_bounded(jail: Jail, take: str, count: int):
    """Of processes that together take several times a sandbox's memory, only as many are left as it has room for."""
    mark = f"mark{secrets.token_hex(6)}"
    each = TOO_MUCH // count
    sandbox = jail.start(disk_bytes=DISK, memory_bytes=MEMORY)
    program = "import os, time\n" + FORK.format(count=count) + WAIT + take.format(each=each)
    sandbox.files.write("/workspace/take.py", program.encode())
    sandbox.shell.run(f"python3 take.py {mark} >/dev/null 2>&1 &", timeout=10)
    assert until(lambda: len(marked(mark)) == count, 30, every=0.05)
    sandbox.files.write("/workspace/go", b"")
    assert until(lambda: len(marked(mark)) * each <= MEMORY + PLACES * DISK, 30, every=0.1)
    usable(jail)
    sandbox.stop()


def test_descriptors_on_their_way_through_sockets_are_not_the_keepers(jail: Jail):
    """They count for a user: where keeper and sandboxes are of the same, it could hand out no terminal any more."""
    sandbox = jail.start()
    sandbox.files.write("/workspace/send.py", ON_THEIR_WAY.encode())
    sandbox.shell.run("python3 send.py >/dev/null 2>&1 &", timeout=10)
    said = sandbox.shell.run("until [[ -s done ]]; do sleep 0.05; done; cat done", timeout=60).output
    assert said == "Too many references: cannot splice"
    jail.start(job_id="other").stop()
    usable(jail)
    sandbox.stop()


def test_every_writable_place_has_a_size(jail: Jail):
    seen = jail.output(
        f"{WRITABLE} | while read -r folder; do df --output=size,target -B1 $folder | tail -1; done | sort -u"
    )
    sizes = {line.split()[1]: int(line.split()[0]) for line in seen.splitlines()}
    assert Path("/workspace").as_posix() in sizes or "/" in sizes
    assert max(sizes.values()) <= 256 * MB, sizes
