"""How memory is read: of processes, and of a control group in the form of v2."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from prorl_celery.sandbox import limits, memory
from prorl_celery.sandbox.base import SandboxSpec
from prorl_celery.sandbox.cgroups.readings import MemoryReading

MIB = 1 << 20


def test_children_of_every_thread_are_found():
    process = None
    started, done = threading.Event(), threading.Event()

    def start() -> None:
        nonlocal process
        process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        started.set()
        done.wait(60)

    thread = threading.Thread(target=start)
    thread.start()
    assert started.wait(30)
    assert process is not None
    assert process.pid in {found.pid for found in memory.walk([os.getpid()], 1000)}
    assert process.pid in memory.children(os.getpid())
    assert memory.parent(process.pid) == os.getpid()
    process.communicate(b"\n", timeout=30)
    done.set()
    thread.join()
    assert memory.parent(process.pid) == 0
    assert memory.name(process.pid) == "?"


def test_a_walk_ends_at_so_many_processes():
    assert len(memory.walk([1, os.getpid()], 1)) == 1


def test_own_and_shared_memory_are_told_apart():
    before = memory.walk([os.getpid()], 1)[0]
    own, shared = bytearray(64 * MIB), mmap.mmap(-1, 32 * MIB)
    shared.write(bytes(own[: 32 * MIB]))
    after = memory.walk([os.getpid()], 1)[0]
    assert 60 * MIB < after.anonymous - before.anonymous < 80 * MIB
    assert after.resident - before.resident > 90 * MIB
    assert 31 * MIB < memory.shared([after]) < 64 * MIB
    exactly, exactly_shared = memory.exact(os.getpid())
    assert exactly > 60 * MIB
    assert 31 * MIB < exactly_shared < 64 * MIB
    shared.close()


def test_an_older_kernel_tells_all_in_one(monkeypatch):
    monkeypatch.setattr(memory, "_whole", lambda path: b"00-ff ---p [rollup]\nRss: 9 kB\nPss:  7 kB\nSwapPss: 2 kB\n")
    assert memory.exact(1) == (9 << 10, 0)


def test_a_v2_group_is_read_by_its_own_names(tmp_path: Path):
    (tmp_path / "memory.current").write_text("1000\n")
    (tmp_path / "memory.stat").write_text("anon 600\nfile 300\nkernel 50\nshmem 200\nanon_thp 7\n")
    (tmp_path / "memory.events").write_text("low 0\nhigh 0\nmax 9\noom 4\noom_kill 3\noom_group_kill 0\n")
    reading = MemoryReading(tmp_path, 2)
    assert (reading.usage(), reading.parts(), reading.kills()) == (1000, (600, 200), 3)
    alarm, readable = reading.alarm()
    assert not readable
    os.close(alarm)


def test_one_processs_data_is_bounded_loosely_where_it_is_watched_and_strictly_where_nothing_is(monkeypatch):
    spec = SandboxSpec(job_id="job", attempt=1, memory_bytes=1 << 30)
    assert limits.data_kib(spec) >= 4 << 20
    monkeypatch.setattr(limits, "can_walk", lambda: False)
    assert limits.data_kib(spec) == 1 << 20


@pytest.mark.parametrize(("disk", "room"), [(256 << 20, 512 << 20), (16 << 20, 80 << 20)])
def test_a_group_has_room_for_the_files_of_a_sandbox(disk, room):
    spec = SandboxSpec(job_id="job", attempt=1, memory_bytes=1 << 30, disk_bytes=disk)
    assert limits.group_limits(spec).memory_bytes == (1 << 30) + room
