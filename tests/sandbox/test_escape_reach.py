"""Escapes: to the host's processes, environment, network and sockets, and to another job's sandbox."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from jails import Jail

from prorl_celery.sandbox import wire

CONNECT = """
import socket, sys
def attempt(family, address):
    with socket.socket(family, socket.SOCK_STREAM) as s:
        s.settimeout(2)
        try:
            s.connect(address)
            print("REACHED", address)
        except OSError as error:
            print("not reached:", address, error)
"""


@contextmanager
def listeners() -> Iterator[tuple[int, str]]:
    """A port on all the host's addresses, as Redis or the API may have, and an abstract socket; nobody may connect."""
    name = f"\0prorl-test-{secrets.token_hex(8)}"
    with ExitStack() as stack:
        tcp = stack.enter_context(socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True))
        abstract = stack.enter_context(socket.socket(socket.AF_UNIX))
        abstract.bind(name)
        abstract.listen()
        yield tcp.getsockname()[1], name
        for listener in (tcp, abstract):
            listener.settimeout(0)
            try:
                listener.accept()
            except BlockingIOError:
                continue
            raise AssertionError("somebody connected")


def host_addresses() -> list[str]:
    if shutil.which("hostname") is None:
        return []
    said = subprocess.run(["hostname", "-I"], capture_output=True, text=True, timeout=30, check=False).stdout
    return said.split()


def test_the_hosts_environment_is_nowhere(jail: Jail):
    seen = jail.output("env; set; cat /proc/*/environ /proc/*/task/*/environ | tr '\\0' '\\n'; ps auxeww")
    assert "TERM=dumb" in seen
    assert "do-not-tell" not in seen
    assert "HOST_SECRET" not in seen
    assert "PRORL_" not in seen


def test_processes_of_the_host_can_be_neither_seen_nor_signalled(jail: Jail):
    pids = [jail.keeper.process.pid, os.getpid(), os.getppid()]
    seen = jail.output("cat /proc/*/cmdline | tr '\\0' ' '")
    assert "prorl_celery.node.keeper" not in seen
    assert "pytest" not in seen
    inside = jail.output("echo /proc/[0-9]* | wc -w")
    assert int(inside) < 20, "a pid namespace of its own"
    for pid in pids:
        assert jail.sandbox.shell.run(f"kill -0 {pid} || cat /proc/{pid}/maps", timeout=10).exit_code != 0
    assert jail.keeper.client.status()["live"] >= 1


def test_no_process_inside_leads_to_another_root(jail: Jail):
    roots = jail.output("stat -Lc %d:%i / /proc/[0-9]*/root /proc/self/root 2>/dev/null | sort -u | wc -l")
    assert roots == "1\n"
    secret = str(jail.secret)
    seen = jail.output(f"cat /proc/[0-9]*/root{secret} /proc/[0-9]*/cwd{secret} /proc/[0-9]*/fd/*{secret}")
    assert "of the host" not in seen
    assert "No such file" in seen


def test_the_kernels_knobs_cannot_be_turned(jail: Jail):
    """Some are a namespace's own, and may be written there: the host's are to stay as they are."""
    sandbox = jail.start()
    found = sandbox.shell.run("find /proc/sys /proc/irq /proc/fs /sys -type f -writable 2>/dev/null", timeout=30)
    knobs = [Path(path) for path in found.output.split() if not path.endswith("/ns_last_pid")]
    before = [knob.read_bytes() for knob in knobs]
    sandbox.shell.run(f"for knob in {' '.join(map(str, knobs))}; do echo 1 >$knob; done", timeout=30)
    assert [knob.read_bytes() for knob in knobs] == before
    for knob in ("/proc/sys/kernel/core_pattern", "/proc/sys/kernel/hostname", "/proc/sysrq-trigger"):
        assert sandbox.shell.run(f"echo 1 >{knob}", timeout=10).exit_code != 0
    for secret in ("/proc/kcore", "/proc/kmsg", "/dev/kmsg", "/dev/mem"):
        assert sandbox.shell.run(f"head -c 1 {secret}", timeout=10).exit_code != 0
    sandbox.stop()


def test_no_port_of_the_host_can_be_reached(jail: Jail):
    with listeners() as (port, name):
        attempts = [f"attempt(socket.AF_INET, ({address!r}, {port}))" for address in ("127.0.0.1", "0.0.0.0")]
        attempts.append(f"attempt(socket.AF_INET6, ('::1', {port}))")
        for address in host_addresses():
            family = "AF_INET6" if ":" in address else "AF_INET"
            attempts.append(f"attempt(socket.{family}, ({address!r}, {port}))")
        attempts.append(f"attempt(socket.AF_UNIX, {name!r})")
        seen = jail.python(CONNECT + "\n".join(attempts))
    assert seen.count("not reached") == len(attempts), seen
    assert jail.output("tail -n +3 /proc/net/dev | cut -d: -f1").split() == ["lo"]


def test_no_socket_of_the_service_can_be_reached(jail: Jail):
    keeper = str(wire.keeper_socket(jail.keeper.settings))
    redis = str(jail.folder / "redis.sock")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(redis)
        listener.listen()
        Path(redis).chmod(0o777)
        seen = jail.python(f"{CONNECT}\nattempt(socket.AF_UNIX, {keeper!r})\nattempt(socket.AF_UNIX, {redis!r})")
    assert seen.count("No such file") == 2, seen
    assert str(jail.folder) not in jail.output("cat /proc/net/unix")


def test_another_jobs_sandbox_can_be_neither_seen_nor_reached(jail: Jail):
    mark = f"mark{secrets.token_hex(6)}"
    name = f"\0{mark}"
    serve = (
        f"import socket, threading\nu = socket.socket(socket.AF_UNIX); u.bind({name!r}); u.listen()\n"
        "t = socket.create_server(('127.0.0.1', 47112))\nprint('ready', flush=True)\nthreading.Event().wait(600)"
    )
    neighbour = jail.neighbour
    neighbour.files.write("/workspace/serve.py", serve.encode())
    places = "/workspace /tmp /var/tmp /dev/shm"
    begun = neighbour.shell.run(
        f"for place in {places}; do echo {mark} >$place/{mark}; done; ipcmk -M 4096 >/dev/null; "
        f"(exec -a {mark} python3 /workspace/serve.py >/tmp/said &); until grep -q ready /tmp/said; do :; done; "
        f"ls /tmp/{mark}",
        timeout=30,
    )
    assert f"/tmp/{mark}" in begun.output
    seen = jail.output(f"cat /proc/*/cmdline | tr '\\0' ' '; find / -name '{mark}' 2>/dev/null; ipcs -m")
    assert mark not in seen.replace(f"'{mark}'", "")
    assert not [line for line in seen.splitlines() if line.startswith("0x")], "no shared memory of another"
    tried = jail.python(f"{CONNECT}\nattempt(socket.AF_UNIX, {name!r})\nattempt(socket.AF_INET, ('127.0.0.1', 47112))")
    assert tried.count("not reached") == 2, tried
    again = neighbour.shell.run(f"cat /tmp/{mark}", timeout=10)
    assert again.output == f"{mark}\n"


def test_no_instance_of_another_job_can_be_entered_with_the_hosts_own_programs(jail: Jail):
    mark = f"mark{secrets.token_hex(6)}"
    jail.neighbour.shell.run(f"echo {mark} >/tmp/entered", timeout=10)
    listed = jail.keeper.client.list()
    pids = " ".join(str(entry["pid"]) for entry in listed)
    names = " ".join(f"prorl-{jail.keeper.process.pid}-{entry['sandbox_id']}" for entry in listed)
    seen = jail.output(
        f"for pid in {pids}; do nsenter -t $pid -a cat /tmp/entered; done; "
        f"for name in {names}; do singularity exec instance://$name cat /tmp/entered; done; singularity instance list"
    )
    assert mark not in seen


def test_no_descriptor_of_ours_is_in_a_command(jail: Jail):
    assert jail.output("ls -l /proc/self/fd | grep -c socket:") == "0\n"
    assert jail.output("ls -l /proc/$$/fd | grep -c socket:") == "0\n"
