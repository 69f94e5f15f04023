"""What `prorl doctor` says of machines that are not this one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from prorl_celery.cli.examination import containers, limits, sandboxes
from prorl_celery.cli.examination.finding import UNKNOWN, Finding, code_as
from prorl_celery.errors import SandboxUnavailable
from prorl_celery.sandbox.cgroups.places import Nowhere, Places
from prorl_celery.sandbox.singularity.program import Program
from prorl_celery.settings import Settings


def by_name(findings) -> dict[str, Finding]:
    found = {finding.what: finding for finding in findings}
    assert all(finding.remedy for finding in found.values() if finding.verdict != "ok")
    return found


def limits_of(monkeypatch, *, place, walk=True, counted=True, **settings) -> dict[str, Finding]:
    monkeypatch.setattr(limits.places, "find", lambda: place)
    monkeypatch.setattr(limits, "can_walk", lambda: walk)
    monkeypatch.setattr(limits, "processes_counted_per_namespace", lambda: counted)
    return by_name(limits.examine_limits(Settings(**settings)))


def test_with_groups_no_gap_is_left(monkeypatch):
    place = Places(2, dict.fromkeys(("memory", "pids", "cpu"), Path("/x")))
    found = limits_of(monkeypatch, place=place, counted=False)
    assert {finding.verdict for finding in found.values()} == {"ok"}
    assert "cgroup v2" in found["memory limit"].seen


def test_without_groups_the_gaps_and_their_cure_are_named(monkeypatch):
    found = limits_of(monkeypatch, place=Nowhere("others live there"))
    assert "watchdog" in found["memory limit"].seen
    assert "others live there" in found["memory limit"].seen
    assert "bursts" in found["memory limit"].remedy
    assert "Delegate=yes" in found["memory limit"].remedy
    assert found["CPU limit"].verdict == "lacking"
    assert found["process limit"].verdict == "ok"


def test_groups_that_are_switched_off_are_the_setting_s_business(monkeypatch):
    found = limits_of(monkeypatch, place=Places(1, {"memory": Path("/x")}), sandbox_cgroups="off")
    assert "PRORL_SANDBOX_CGROUPS=auto" in found["memory limit"].remedy


def test_a_group_without_a_cpu_controller_and_a_kernel_that_counts_a_users_processes_say_so(monkeypatch):
    found = limits_of(monkeypatch, place=Places(1, {"memory": Path("/x")}), counted=False)
    assert (found["memory limit"].verdict, found["CPU limit"].verdict) == ("ok", "lacking")
    assert found["process limit"].verdict == "lacking"
    assert "5.14" in found["process limit"].remedy


def test_a_kernel_on_which_nothing_can_be_watched_says_so(monkeypatch):
    found = limits_of(monkeypatch, place=Nowhere("none"), walk=False)
    assert "each process by itself" in found["memory limit"].seen


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for Apptainer that says how it was built; set-uid, with a site's size of 64 MiB."""
    conf = tmp_path / "apptainer.conf"
    conf.write_text("# sessiondir max size = 16\nsessiondir max size = 64\n")
    path = tmp_path / "apptainer"
    path.write_text(f"#!/bin/sh\necho APPTAINER_CONF_FILE={conf}\necho APPTAINER_SUID_INSTALL=1\n")
    path.chmod(0o755)
    found = Program(path=str(path), product="apptainer", version=(1, 4), said="apptainer version 1.4.5")
    monkeypatch.setattr(containers.program, "find", lambda: found)
    monkeypatch.setattr(containers.program, "why_no_user_namespaces", lambda: None)
    return path


def test_a_set_uid_program_is_told_and_its_size_matters_only_without_user_namespaces(program, monkeypatch):
    found = by_name(containers.examine_containers(Settings()))
    assert found["apptainer"].verdict == "ok"
    assert "set-uid" in found["apptainer"].seen
    assert found["sessiondir max size"].verdict == "ok"
    monkeypatch.setattr(containers.program, "why_no_user_namespaces", lambda: "they are switched off")
    found = by_name(containers.examine_containers(Settings(sandbox_disk_bytes=256 << 20)))
    assert found["apptainer"].verdict == "lacking"
    assert "global --set 'sessiondir max size' 256" in found["sessiondir max size"].remedy
    found = by_name(containers.examine_containers(Settings(sandbox_disk_bytes=64 << 20)))
    assert found["sessiondir max size"].verdict == "ok"


def test_an_image_file_that_cannot_be_mounted_says_what_is_missing(program, monkeypatch, tmp_path):
    monkeypatch.setattr(containers.unpack, "can_mount", lambda program: False)
    monkeypatch.setattr(containers.unpack, "FUSE", tmp_path / "fuse")
    assert "chmod 666" in by_name(containers.examine_containers(Settings()))["image files (SIF)"].remedy
    (tmp_path / "fuse").touch()
    (tmp_path / "fuse").chmod(0o666)
    assert "squashfuse" in by_name(containers.examine_containers(Settings()))["image files (SIF)"].remedy


def test_a_machine_without_the_program_or_with_an_old_one_says_how_to_get_it(monkeypatch):
    def old() -> Program:
        raise SandboxUnavailable("'singularity version 2.6' is too old")

    monkeypatch.setattr(containers.program, "find", old)
    (found,) = containers.examine_containers(Settings())
    assert (found.verdict, "too old" in found.seen) == ("lacking", True)
    assert "install_apptainer" in found.remedy


def test_a_setting_of_the_kernel_that_is_in_the_way_is_named_with_its_cure(monkeypatch):
    wrong = {name: value for name, value, _ in sandboxes.KNOBS}
    monkeypatch.setattr(sandboxes, "sysctl", wrong.get)
    monkeypatch.setattr(sandboxes, "code_as", lambda user, function: 1)
    found = by_name(sandboxes.examine_sandboxes(Settings()))
    assert all(found[name].verdict != "ok" and found[name].remedy for name in wrong)
    assert (found["user namespaces"].verdict, found["user namespaces"].seen) == ("missing", os.strerror(1))


@pytest.mark.parametrize(
    ("option", "uid", "capable", "verdict"),
    [
        ("rw", 0, False, "ok"),
        ("rw,hidepid=0", 0, False, "ok"),
        ("rw,hidepid=invisible", 0, True, "ok"),
        ("rw,hidepid=2", 1000, False, "ok"),
        ("rw,hidepid=2,gid=5", 0, False, "lacking"),
    ],
)
def test_a_proc_that_hides_processes_matters_to_a_root_that_may_not_look_past_it(
    monkeypatch, tmp_path, option, uid, capable, verdict
):
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"22 1 0:21 / /proc rw,nosuid - proc proc {option}\n")
    monkeypatch.setattr(sandboxes, "MOUNTS", mounts)
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    monkeypatch.setattr(sandboxes, "_has_capability", lambda number: capable)
    assert by_name(sandboxes.examine_sandboxes(Settings()))["/proc"].verdict == verdict


def test_kernels_without_their_packages_are_told(monkeypatch):
    names = ("ipykernel", "no-such-package-here")
    found = by_name(sandboxes.examine_sandboxes(Settings(kernel_packages=names)))["kernels (ipykernel)"]
    assert "no-such-package-here" in found.remedy
    found = by_name(sandboxes.examine_sandboxes(Settings(kernel_packages=())))["kernels (ipykernel)"]
    assert "pip install ipykernel" in found.remedy


def test_a_child_that_looks_as_another_user_gives_its_answer_or_none():
    assert code_as(None, lambda: 3) == 3
    assert code_as(None, lambda: [][0]) == UNKNOWN
