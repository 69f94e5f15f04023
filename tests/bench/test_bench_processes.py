"""What a tree of processes uses."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from prorl_celery.bench import processes

BURN = "import time\nwhile time.process_time() < 0.5: pass"


def test_the_cpu_of_a_child_that_has_ended_stays_in_the_sum():
    before = processes.cpu_seconds(os.getpid())
    subprocess.run([sys.executable, "-S", "-c", BURN], check=True, timeout=60)
    assert processes.cpu_seconds(os.getpid()) - before >= 0.4


def test_a_process_that_lives_is_in_the_tree_with_its_memory():
    with subprocess.Popen(["sleep", "60"]) as child:
        try:
            assert child.pid in [p.pid for p in processes.tree(os.getpid())]
            assert processes.rss_bytes(child.pid) > 0
            assert 0 < processes.pss_bytes(os.getpid()) <= processes.rss_bytes(os.getpid()) * 2
        finally:
            child.kill()
    assert processes.tree(child.pid) == []


def test_the_peak_of_pss_is_that_of_a_tree():
    with subprocess.Popen(["sleep", "60"]) as child:
        try:
            with processes.peak_pss(os.getpid(), every_seconds=0.01) as peak:
                child_seen = _until(lambda: "sleep" in peak.by_name)
        finally:
            child.kill()
    assert child_seen
    assert peak.total >= processes.pss_bytes(os.getpid()) // 2
    assert peak.unreadable == 0


def test_parts_are_the_children_of_the_root():
    with subprocess.Popen(["sh", "-c", "sleep 60; true"], start_new_session=True) as child:
        try:
            assert _until(lambda: len(processes.tree(child.pid)) == 2)
            assert set(processes.cpu_by_part(child.pid)) == {"supervisor", "sleep"}
        finally:
            os.killpg(child.pid, 9)


def test_a_name_with_brackets_and_spaces_is_read():
    fields = " ".join(["S", "17", *["0"] * 9, "100", "50", "25", "25", "0"])
    read = processes._parsed(f"42 (a) b (c) {fields}")
    ticks = os.sysconf("SC_CLK_TCK")
    assert (read.pid, read.parent, read.name) == (42, 17, "a) b (c")
    assert read.cpu_s == pytest.approx(200 / ticks)


def _until(true) -> bool:
    from prorl_celery.node.pause import until

    return until(true, 20.0, every=0.02)
