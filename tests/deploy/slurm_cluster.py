"""A real Slurm of a few nodes on this machine, for the length of a `with`: munged, slurmctld and a slurmd a node.

    with SlurmCluster(directory, nodes=3, cpus=4) as slurm:
        slurm.run("sinfo")

Needs root (slurmd starts other users' programs) and Debian's packages `slurm-wlm slurmd slurmctld munge`. All daemons
are children in the foreground, on free ports, with keys, sockets and state in `directory`: a Slurm that the machine may
have is not touched. The nodes share the machine's address; what tells them apart is `SLURMD_NODENAME`.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scancel", "squeue", "scontrol")
PACKAGES = "slurm-wlm slurmd slurmctld munge"
READY_S = 30.0
END_S = 60.0
PATH = "/usr/sbin:/usr/bin:/sbin:/bin"

CONF = """\
ClusterName=prorltest
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={directory}/munge.socket
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
SlurmdParameters=config_overrides
ReturnToService=2
KillWait={kill_wait}
MessageTimeout=30
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_min_interval=100000
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool.%n
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd.%n.pid
SlurmctldLogFile={directory}/slurmctld.log
SlurmdLogFile={directory}/slurmd.%n.log
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
NODE = "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={cpus} RealMemory=1000"


def missing() -> str | None:
    """What this machine lacks for it, as a reason to skip; None when all is there."""
    if os.geteuid() != 0:
        return "a Slurm of our own needs root"
    lacking = [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]
    return f"no {', '.join(lacking)}: apt-get install {PACKAGES}" if lacking else None


class SlurmCluster:
    """The cluster. `environ` is what its commands need."""

    def __init__(self, directory: Path, *, nodes: int = 3, cpus: int = 4, kill_wait_seconds: int = 30) -> None:
        self.directory = directory
        self.nodes = [f"n{number}" for number in range(1, nodes + 1)]
        self.environ = {"SLURM_CONF": str(directory / "slurm.conf"), "PATH": os.environ.get("PATH", "") + ":" + PATH}
        self._cpus = cpus
        self._kill_wait = kill_wait_seconds
        self._daemons: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        self.directory.mkdir(parents=True, exist_ok=True)
        self.directory.chmod(0o755)  # or munged refuses it
        host = socket.gethostname().split(".")[0]
        controller, *ports = _free_ports(1 + len(self.nodes))
        lines = [
            NODE.format(name=name, host=host, port=port, cpus=self._cpus)
            for name, port in zip(self.nodes, ports, strict=True)
        ]
        conf = CONF.format(
            host=host,
            controller=controller,
            directory=self.directory,
            kill_wait=self._kill_wait,
            nodes="\n".join(lines),
        )
        (self.directory / "slurm.conf").write_text(conf)
        try:
            self._start_munge()
            self._start("slurmctld", "-D", "-f", self.environ["SLURM_CONF"])
            for name in self.nodes:
                (self.directory / f"spool.{name}").mkdir()
                self._start("slurmd", "-D", "-N", name, "-f", self.environ["SLURM_CONF"])
            self._until(self._all_idle, "all nodes are idle", READY_S)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(subprocess.SubprocessError):
            self.run("scancel", "--user=root")
            self._until(lambda: not self.run("squeue", "--noheader"), "no job is left", END_S)
        for daemon in reversed(self._daemons):
            daemon.send_signal(signal.SIGTERM)
            try:
                daemon.wait(END_S)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait(END_S)
        self._daemons.clear()

    def run(self, *command: str, environ: dict[str, str] | None = None, cwd: Path | None = None) -> str:
        """A command's stdout. Raises `CalledProcessError` with its stderr in `stderr`."""
        told = subprocess.run(
            command,
            env=os.environ | (environ or {}) | self.environ,
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=END_S,
            check=True,
        )
        return told.stdout.strip()

    def state(self, job: str) -> str:
        """A job's state as Slurm knows it: RUNNING, COMPLETED, CANCELLED, TIMEOUT, NODE_FAIL and so on."""
        fields = self.run("scontrol", "--oneliner", "show", "job", job).split()
        return next(field.removeprefix("JobState=") for field in fields if field.startswith("JobState="))

    def wait_gone(self, job: str, seconds: float = END_S) -> str:
        """Wait until no process of the job is left; its last state."""
        going = ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING")
        self._until(lambda: self.state(job) not in going, f"job {job} is over", seconds)
        return self.state(job)

    def _start_munge(self) -> None:
        key = self.directory / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o600)
        options = {"socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        files = [f"--{option}={self.directory}/munge.{suffix}" for option, suffix in options.items()]
        self._start("munged", "--foreground", "--force", f"--key-file={key}", *files)
        self._until((self.directory / "munge.socket").exists, "munged listens", READY_S)

    def _start(self, program: str, *arguments: str) -> None:
        with (self.directory / f"{program}.out").open("ab") as output:
            daemon = subprocess.Popen(
                [str(shutil.which(program, path=PATH)), *arguments],
                env={name: value for name, value in os.environ.items() if not name.startswith("PRORL_")} | self.environ,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        self._daemons.append(daemon)

    def _all_idle(self) -> bool:
        try:
            states = self.run("sinfo", "--noheader", "--Node", "--format=%t").split()
        except subprocess.CalledProcessError:
            return False  # the controller is not there yet
        return states == ["idle"] * len(self.nodes)

    def _until(self, true: Callable[[], object], what: str, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not true():
            for daemon in self._daemons:
                assert daemon.poll() is None, f"{daemon.args} ended: {self.logs()}"
            assert time.monotonic() < deadline, f"not within {seconds} s: {what}\n{self.logs()}"
            select.poll().poll(100)

    def logs(self) -> str:
        """The ends of the daemons' logs."""
        files = sorted([*self.directory.glob("*.log"), *self.directory.glob("*.out")])
        return "\n".join(f"--- {file.name}\n{file.read_text(errors='replace')[-2000:]}" for file in files)


def _free_ports(count: int) -> Sequence[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
