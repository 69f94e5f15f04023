"""Where control groups may be made, read from folders that stand in for the kernel's."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from prorl_celery.sandbox.cgroups import places
from prorl_celery.sandbox.cgroups.groups import Groups, Limits
from prorl_celery.sandbox.cgroups.places import LEAF, Nowhere, Places, find

STRANGER = 999_999


@dataclass
class Machine:
    """A /proc, and a folder with trees of groups."""

    folder: Path

    @property
    def proc(self) -> Path:
        return self.folder / "proc"

    def mount(self, name: str, kind: str, options: str, root: str = "/") -> Path:
        """Mount a tree; `root` is the group of it that is seen there."""
        place = self.folder / name
        place.mkdir()
        with (self.proc / "self/mountinfo").open("a") as file:
            file.write(
                f"30 20 0:26 {root} {str(place).replace(' ', chr(92) + '040')} rw shared:4 - {kind} x rw,{options}\n"
            )
        return place

    def is_in(self, *lines: str) -> None:
        """This process's groups."""
        (self.proc / "self/cgroup").write_text("".join(f"{line}\n" for line in lines))

    def process(self, pid: int, parent: int) -> None:
        (self.proc / str(pid)).mkdir()
        (self.proc / str(pid) / "stat").write_text(f"{pid} (a ) b) S {parent} 1 1 0")

    def group(self, path: Path, *, controllers: str = "cpuset cpu memory pids", inhabitants: list[int]) -> Path:
        """A v2 group."""
        path.mkdir(parents=True, exist_ok=True)
        (path / "cgroup.controllers").write_text(controllers + "\n")
        (path / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in inhabitants))
        for name in ("cgroup.subtree_control", "cgroup.events"):
            (path / name).write_text("")
        return path


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    made = Machine(tmp_path / "a machine")
    (made.proc / "self").mkdir(parents=True)
    (made.proc / "self/mountinfo").write_text("22 1 254:1 / / rw - ext4 /dev/root rw\n")
    made.process(os.getpid(), 41)
    made.process(41, 40)
    made.process(40, 1)
    made.process(50, 40)
    made.process(1, 0)
    made.process(STRANGER, 1)
    return made


@pytest.fixture
def delegated(monkeypatch: pytest.MonkeyPatch) -> set[Path]:
    """Groups with systemd's sign."""
    marked: set[Path] = set()

    def getxattr(path: Path, name: str) -> bytes:
        if path not in marked:
            raise OSError(errno.ENODATA, name)
        return b"1"

    monkeypatch.setattr(os, "getxattr", getxattr)
    return marked


def test_v1_is_used_where_its_controllers_are_writable_below_this_processs_own_group(machine):
    trees = {name: machine.mount(name, "cgroup", name) for name in ("memory", "pids")}
    trees["cpu"] = machine.mount("cpu,cpuacct", "cgroup", "cpu,cpuacct")
    for tree in trees.values():
        (tree / "own").mkdir()
    machine.is_in("5:memory:/own", "4:pids:/own", "3:cpu,cpuacct:/own", "1:name=systemd:/x", "0::/")
    found = find(machine.proc)
    assert found == Places(1, {name: tree / "own" for name, tree in trees.items()})


def test_a_tree_that_is_bound_from_a_group_is_entered_at_that_group(machine):
    tree = machine.mount("memory", "cgroup", "memory", root="/docker/abc")
    (tree / "own").mkdir()
    machine.is_in("5:memory:/docker/abc/own")
    assert find(machine.proc) == Places(1, {"memory": tree / "own"})
    machine.is_in("5:memory:/docker/other")
    assert isinstance(find(machine.proc), Nowhere)


def test_controllers_that_this_user_may_not_write_are_not_used(machine, monkeypatch):
    memory, pids = machine.mount("memory", "cgroup", "memory"), machine.mount("pids", "cgroup", "pids")
    machine.is_in("5:memory:/", "4:pids:/")
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != pids)
    assert find(machine.proc) == Places(1, {"memory": memory})
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != memory)
    assert find(machine.proc) == Nowhere("the memory controller of cgroup v1 is not writable for this user")


def test_a_v2_tree_without_a_memory_controller_leaves_it_to_v1(machine):
    machine.group(machine.mount("unified", "cgroup2", ""), controllers="hugetlb", inhabitants=[])
    memory = machine.mount("memory", "cgroup", "memory")
    machine.is_in("5:memory:/", "0::/")
    assert find(machine.proc) == Places(1, {"memory": memory})


def test_a_v2_group_that_is_all_ours_is_emptied_into_a_leaf(machine, delegated):
    tree = machine.mount("cgroup", "cgroup2", "nsdelegate")
    own = machine.group(tree / "system.slice/prorl.service", inhabitants=[40, 41, 50, os.getpid()])
    delegated.add(own)
    machine.is_in("0::/system.slice/prorl.service")
    assert find(machine.proc) == Places(2, dict.fromkeys(("memory", "pids", "cpu"), own), leaf=own / LEAF)


def test_a_v2_group_in_which_others_live_is_left_alone(machine, delegated):
    tree = machine.mount("cgroup", "cgroup2", "")
    own = machine.group(tree / "user.slice/session-3.scope", inhabitants=[41, os.getpid(), STRANGER])
    delegated.add(own)
    machine.is_in("0::/user.slice/session-3.scope")
    assert find(machine.proc) == Nowhere("processes that are not this service's live in its cgroup")
    machine.group(own, inhabitants=[os.getpid(), 0])  # one of another pid namespace
    assert isinstance(find(machine.proc), Nowhere)


def test_root_divides_no_group_of_a_manager_that_did_not_give_it(machine, delegated, monkeypatch):
    tree = machine.mount("cgroup", "cgroup2", "")
    machine.group(tree / "user.slice/session-3.scope", inhabitants=[41, os.getpid()])
    machine.is_in("0::/user.slice/session-3.scope")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert find(machine.proc) == Nowhere("this service's cgroup is its manager's and was not delegated")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert isinstance(find(machine.proc), Places), "what an ordinary user can write to is his"


def test_a_containers_tree_is_its_own(machine, delegated):
    tree = machine.mount("cgroup", "cgroup2", "")
    machine.group(tree, inhabitants=[1, 40, 41, os.getpid()])
    machine.is_in("0::/")
    assert find(machine.proc) == Places(2, dict.fromkeys(("memory", "pids", "cpu"), tree), leaf=tree / LEAF)


def test_a_process_that_ended_since_it_was_listed_is_in_nobodys_way(machine, delegated):
    tree = machine.mount("cgroup", "cgroup2", "")
    delegated.add(machine.group(tree / "own", inhabitants=[41, os.getpid(), 77_777]))
    machine.is_in("0::/own")
    assert isinstance(find(machine.proc), Places)


def test_the_next_keeper_of_a_service_that_moved_down_uses_the_group_above(machine):
    tree = machine.mount("cgroup", "cgroup2", "")
    machine.group(tree / "prorl.service" / LEAF, controllers="", inhabitants=[41, os.getpid()])
    above = machine.group(tree / "prorl.service", inhabitants=[])
    machine.is_in(f"0::/prorl.service/{LEAF}")
    assert find(machine.proc) == Places(2, dict.fromkeys(("memory", "pids", "cpu"), above))


def test_a_group_above_that_nobody_gave_us_is_not_used(machine, delegated):
    tree = machine.mount("cgroup", "cgroup2", "")
    machine.group(tree / "app.slice/some.scope", controllers="", inhabitants=[os.getpid()])
    machine.group(tree / "app.slice", inhabitants=[])
    machine.is_in("0::/app.slice/some.scope")
    assert find(machine.proc) == Nowhere("no memory controller was given to this service's cgroup")
    delegated.add(tree / "app.slice")
    assert find(machine.proc) == Places(2, dict.fromkeys(("memory", "pids", "cpu"), tree / "app.slice"))


def test_the_root_of_all_groups_may_keep_its_processes(machine):
    tree = machine.group(machine.mount("cgroup", "cgroup2", ""), inhabitants=[1, os.getpid(), STRANGER])
    (tree / "cgroup.events").unlink()
    machine.is_in("0::/")
    assert find(machine.proc) == Places(2, dict.fromkeys(("memory", "pids", "cpu"), tree))


def test_a_kernel_without_groups_says_so(machine):
    machine.is_in()
    assert find(machine.proc) == Nowhere("there is no cgroup tree here")
    (machine.proc / "self/cgroup").unlink()
    assert isinstance(find(machine.proc), Nowhere)


def test_trees_are_those_in_which_a_keeper_may_have_made_groups(machine):
    memory = machine.mount("memory", "cgroup", "memory")
    machine.mount("freezer", "cgroup", "freezer")
    unified = machine.mount("unified", "cgroup2", "")
    assert places.trees(machine.proc) == [memory, unified]


def test_v2_limits_are_written_where_the_kernel_reads_them(tmp_path):
    """The folders stand in for what the kernel makes when a group is made."""
    base = Machine(tmp_path).group(tmp_path / "own", inhabitants=[])
    groups = Groups(Places(2, dict.fromkeys(("memory", "pids", "cpu"), base), leaf=base / LEAF), "keeper")
    Machine(tmp_path).group(base / LEAF, inhabitants=[])
    keeper = Machine(tmp_path).group(base / "keeper", inhabitants=[])
    sandbox = Machine(tmp_path).group(base / "keeper/s1", inhabitants=[])
    for name in ("memory.max", "memory.swap.max", "pids.max", "cpu.max"):
        (sandbox / name).write_text("max")
    groups.make()
    assert (base / "cgroup.subtree_control").read_text() == (keeper / "cgroup.subtree_control").read_text()
    assert (keeper / "cgroup.subtree_control").read_text().startswith("+")
    groups.place("s1", Limits(memory_bytes=1 << 30, processes=99, cpus=1.5), 4242)
    written = {name: (sandbox / name).read_text() for name in ("memory.max", "memory.swap.max", "pids.max", "cpu.max")}
    # What was there was longer and is not cut: a stand-in is a file.
    assert {name: text.rstrip("ax") for name, text in written.items()} == {
        "memory.max": "1073741824",
        "memory.swap.max": "0",
        "pids.max": "99",
        "cpu.max": "150000 100000",
    }
    assert (sandbox / "cgroup.procs").read_text() == "4242"


def test_a_group_without_its_memory_limit_is_refused_and_without_another_is_not(tmp_path):
    base = Machine(tmp_path).group(tmp_path / "own", inhabitants=[])
    groups = Groups(Places(2, dict.fromkeys(("memory", "pids", "cpu"), base)), "keeper")
    sandbox = Machine(tmp_path).group(base / "keeper/s1", inhabitants=[])
    with pytest.raises(OSError, match=r"memory\.max"):
        groups.place("s1", Limits(memory_bytes=1 << 30, processes=99), 4242)
    (sandbox / "memory.max").write_text("")
    groups.place("s1", Limits(memory_bytes=1 << 30, processes=99, cpus=2), 4242)
    assert (sandbox / "cgroup.procs").read_text() == "4242"
