"""A whole service that is to be hurt: `prorl up` with quick settings, ways to find, kill, stop and continue each of its
processes, a second node beside it, and the question whether all adds up in the end.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from e2e_service import Service, eventually, running

from prorl_celery.checking import check
from prorl_celery.jobs.models import TERMINAL, Stage
from prorl_celery.jobs.store import JobStore
from prorl_celery.node.places import run_dir_for
from prorl_celery.sandbox.client import KeeperClient
from prorl_celery.settings import Settings
from prorl_celery.store.clients import script_client

QUICK = {
    "PRORL_LEASE": "3",
    "PRORL_HEARTBEAT": "0.5",
    "PRORL_SWEEP": "0.5",
    "PRORL_REPUBLISH_AFTER": "2",
    "PRORL_DRAIN": "2",
    "PRORL_WEDGE_GRACE": "1.5",
    "PRORL_STALL": "1.5",
    "PRORL_SPARE_SANDBOXES": "2",
    "PRORL_SANDBOX_MEMORY": str(256 << 20),
    "PRORL_MAX_BLOB": str(4 << 20),
}
"""Times and sizes that let a fault be over within seconds."""

HANDLERS = ",".join(
    [
        "prorl_celery.bench.handlers:WaitHandler",
        "prorl_celery.bench.handlers:NoopHandler",
        "prorl_celery.bench.handlers:StepsHandler",
        *(
            f"{Path(__file__).with_name('fault_handlers.py')}:{name}"
            for name in ("HurtHandler", "NapHandler", "ScoreHandler")
        ),
    ]
)
MARKS = "FAULT_MARKS"
"""The variable that names the folder in which handlers leave notes, see `fault_handlers`."""

WITHIN_S = 60.0
"""For what takes a second or two on a quiet machine."""


class FaultService(Service):
    """A service that is hurt. Jobs that are submitted through it are those that `assert_sound` asks for."""

    def __init__(self, process: subprocess.Popen[str], data_dir: Path, url: str) -> None:
        super().__init__(process, data_dir, url)
        self.run_dir = run_dir_for(data_dir)
        self.redis_url = f"unix://{self.run_dir / 'redis.sock'}?db=0"
        self.marks = data_dir.parent / "marks"
        self.submitted: list[str] = []

    @cached_property
    def settings(self) -> Settings:
        """Of its node."""
        return Settings.from_env(QUICK | {"PRORL_REDIS_URL": self.redis_url, "PRORL_RUN_DIR": str(self.run_dir)})

    @cached_property
    def redis(self) -> Any:
        return script_client(self.settings)

    @cached_property
    def store(self) -> JobStore:
        return JobStore(self.redis, self.settings)

    def record(self, job_id: str) -> dict[str, str]:
        """A job's record, as the store has it."""
        return {name.decode(): value.decode() for name, value in self.redis.hgetall(f"prorl:job:{job_id}").items()}

    # Jobs

    def submit(self, jobs: Iterable[Mapping[str, Any]]) -> list[str]:
        """Submit jobs; their ids."""
        ids = [status.job_id for status in self.client.submit(list(jobs))]
        self.submitted += ids
        return ids

    def in_stage(self, ids: Iterable[str], stage: Stage) -> bool:
        """Whether all these jobs run in this stage."""
        return all((s.state, s.stage) == ("running", stage) for s in map(self.client.status, ids))

    def await_stage(self, ids: Sequence[str], stage: Stage) -> None:
        assert eventually(lambda: self.in_stage(ids, stage), WITHIN_S), self.told(ids)

    def await_turns(self, ids: Sequence[str], turns: int) -> None:
        """Wait until the jobs have so many turns in their logs."""
        assert eventually(lambda: all(self.client.status(i).turns >= turns for i in ids), WITHIN_S), self.told(ids)

    def states(self, ids: Sequence[str], seconds: float = 2 * WITHIN_S) -> Counter[str]:
        """Wait for the jobs' ends; how many ended in each state."""
        for job_id in ids:
            with contextlib.suppress(TimeoutError):
                self.client.wait(job_id, timeout=seconds)
        return Counter(self.client.status(job_id).state for job_id in ids)

    def logs(self) -> str:
        """The end of every log, without what Celery says of itself at its start."""
        return "\n".join(line for line in super().logs().splitlines() if line.strip() and line[:1] not in " -*")

    def told(self, ids: Sequence[str]) -> str:
        """What a failed test shows of jobs: their records and the logs' ends."""
        return "\n".join([*(f"{job_id}: {self.record(job_id)}" for job_id in ids), self.logs()])

    # Processes

    def child(self, name: str) -> int:
        """The pid of the supervisor's child of that name: `rollout-0`, `upkeep`, `api`. The latest where there are two,
        since one that retires ends beside its successor.
        """
        found = [pid for pid, comm in direct_children(self.process.pid) if comm == f"prorl-{name}"[:15]]
        if not found:
            raise LookupError(f"no process {name}")
        return max(found, key=_started)

    def stage_children(self, stage: str) -> list[int]:
        """The pids of a stage's processes."""
        return [pid for pid, comm in direct_children(self.process.pid) if comm.startswith(f"prorl-{stage}-")]

    def holder(self, job_id: str) -> int:
        """The pid of the process that holds a running job."""
        held_by = self.record(job_id)["process"]
        for node in self.client.nodes():
            for process in node["processes"]:
                if process["id"] == held_by:
                    return int(process["pid"])
        raise LookupError(f"{job_id} is held by {held_by}, which no node names")

    def kill_stage(self, stage: str) -> None:
        """`kill -9` all processes of a stage."""
        for pid in self.stage_children(stage):
            send(pid, signal.SIGKILL)

    def is_whole(self) -> bool:
        """Whether the node's processes are all there and say so."""
        nodes = self.client.nodes()
        told = {p["pid"] for node in nodes for p in node["processes"] if not p.get("retiring")}
        there = {pid for stage in ("init", "rollout", "eval") for pid in self.stage_children(stage)}
        return len(nodes) >= 1 and len(there) >= 4 and there <= told and not self.client.service_status().get("missing")

    # The end

    def assert_sound(self) -> None:
        """Every job submitted has ended once; nothing is left of any: no lease, no sandbox, no count, no finding."""
        states = {job_id: self.client.status(job_id).state for job_id in self.submitted}
        assert set(states.values()) <= TERMINAL, self.told([i for i, state in states.items() if state not in TERMINAL])
        entries = Counter(fields[b"job"].decode() for _, fields in self.redis.xrange("prorl:results"))
        assert {job_id: entries[job_id] for job_id in self.submitted} == dict.fromkeys(self.submitted, 1)
        assert eventually(lambda: self.left() == {}, WITHIN_S), (self.left(), self.logs())
        findings = check(self.redis, self.settings, KeeperClient(self.settings))
        assert not findings, (findings, self.logs())

    def clear_away(self) -> None:
        """End what runs, and forget what was submitted."""
        for job_id in self.submitted:
            if self.client.status(job_id).state not in TERMINAL:
                self.client.cancel(job_id)
                self.client.wait(job_id, timeout=WITHIN_S)
        self.submitted.clear()

    def left(self) -> dict[str, Any]:
        """What is there of jobs when none runs."""
        counts = {one["url"]: one["assigned"] for one in self.client.backends() if one["assigned"]}
        heap = {url: score for key in self.redis.keys("prorl:heap:*")
                for url, score in self.redis.zrange(key, 0, -1, withscores=True) if score}  # fmt: skip
        there = {
            "leases": self.redis.zrange("prorl:leases", 0, -1),
            "sandboxes": KeeperClient(self.settings).list(),
            "placed": [key for key in self.redis.keys("prorl:on:*") if self.redis.scard(key)],
            "assigned": counts,
            "heap": heap,
        }
        return {name: found for name, found in there.items() if found}


@contextmanager
def hurt_service(folder: Path, *options: str, **environ: str) -> Iterator[FaultService]:
    """A service in a folder of its own; four init and eval slots, eight of rollout in two processes."""
    (folder / "marks").mkdir(parents=True, exist_ok=True)
    slots = ("--init", "4", "--rollout", "8", "--eval", "4")
    variables = {**QUICK, "PRORL_HANDLERS": HANDLERS, MARKS: str(folder / "marks"), **environ}
    with running(folder / "data", *slots, *options, **variables) as plain:
        service = FaultService(plain.process, plain.data_dir, plain.url)
        with service.client:
            yield service


@contextmanager
def second_node(
    service: FaultService, name: str = "n2", *, rollout: int = 8, **environ: str
) -> Iterator[subprocess.Popen[str]]:
    """Another node of the same service: `prorl worker` under a name and a run directory of its own."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("PRORL_")} | QUICK
    env |= {"PRORL_HANDLERS": HANDLERS, MARKS: str(service.marks), "PRORL_ROLLOUT_PROCESSES": "1", "PRORL_NODE": name}
    before = boots_of(service, name)
    with tempfile.TemporaryDirectory(prefix="prorl-n") as run_dir:
        env |= {"PRORL_RUN_DIR": run_dir, "PRORL_REDIS_URL": service.redis_url, **environ}
        log = (service.data_dir / "logs" / f"{name}.log").open("a")
        argv = [str(Path(sys.executable).with_name("prorl")), "worker", "--init", "4", "--eval", "4"]
        argv += ["--rollout", str(rollout)]
        process = subprocess.Popen(argv, env=env, cwd=run_dir, text=True, stderr=log, stdout=log)
        try:
            assert eventually(lambda: boots_of(service, name) - before, WITHIN_S), service.logs()
            yield process
        finally:
            log.close()
            end(process)


def boots_of(service: FaultService, name: str, processes: int = 3) -> set[str]:
    """The boots of a node that are there with all their stage processes."""
    nodes = [node for node in service.client.nodes() if node["node"] == name]
    return {str(node["boot"]) for node in nodes if len(node["processes"]) >= processes}


def end(process: subprocess.Popen[str]) -> None:
    """Stop a process that may have been killed or stopped already."""
    if process.poll() is None:
        process.send_signal(signal.SIGCONT)
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)


def send(pid: int, signum: signal.Signals) -> None:
    """Send a signal; nothing where the process has ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signum)


@contextmanager
def stopped(*pids: int) -> Iterator[None]:
    """Hold processes by SIGSTOP for the time of the block."""
    for pid in pids:
        send(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            send(pid, signal.SIGCONT)


def await_end(pid: int, seconds: float = WITHIN_S) -> bool:
    """Whether a process ends within these seconds."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(seconds * 1000))
    finally:
        os.close(descriptor)


def commands_like(*argv: str) -> int:
    """How many processes of the machine run exactly this command."""
    wanted, found = "\0".join([*argv, ""]).encode(), 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
                found += (entry / "cmdline").read_bytes() == wanted
    return found


def direct_children(pid: int) -> list[tuple[int, str]]:
    """The children of a process: pid and name."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                stat = (entry / "stat").read_text(errors="replace")
                state, parent = stat.rpartition(")")[2].split()[:2]
                if int(parent) == pid and state != "Z":
                    found.append((int(entry.name), stat[stat.index("(") + 1 : stat.rindex(")")]))
    return found


def _started(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[19])
    except (FileNotFoundError, ProcessLookupError):
        return 0
