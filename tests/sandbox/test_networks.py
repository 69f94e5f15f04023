"""Networks that a node allows, and the loopback addresses of sandboxes that share the host's."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from prorl_celery.errors import SandboxError
from prorl_celery.sandbox import networks
from prorl_celery.sandbox.base import SandboxSpec
from prorl_celery.sandbox.networks import VARIABLE, Loopbacks, check_network
from prorl_celery.settings import Settings

HOST = SandboxSpec(job_id="j", attempt=1, network="host")


@pytest.fixture(scope="module")
def sandbox_settings(tmp_path_factory):
    return Settings(run_dir=tmp_path_factory.mktemp("run"), node="n1", sandbox_networks=("none", "host"))


@pytest.fixture
def loopbacks():
    made = Loopbacks()
    yield made
    made.close()


@pytest.mark.parametrize(
    ("network", "allowed", "kind", "says"),
    [
        ("host", ("none",), "bubblewrap", "PRORL_SANDBOX_NETWORKS allows none"),
        ("none", (), "singularity", "PRORL_SANDBOX_NETWORKS allows nothing"),
        ("bridge", ("none", "host"), "singularity", "PRORL_SANDBOX_NETWORKS allows none, host"),
        ("bridge", ("bridge",), "bubblewrap", "has no bridge"),
        ("wifi", ("wifi",), "singularity", "none, host, bridge"),
    ],
)
def test_a_network_that_the_node_or_the_kind_has_not_is_refused(network, allowed, kind, says):
    spec = SandboxSpec(job_id="j", attempt=1, network=network)
    with pytest.raises(SandboxError, match=says):
        check_network(spec, Settings(sandbox_networks=allowed), kind)


def test_every_sandbox_on_the_hosts_network_has_an_address_of_its_own(loopbacks):
    given = [loopbacks.give(f"s{number}", HOST).env[VARIABLE] for number in range(1000)]
    assert len(set(given)) == 1000
    assert all(address.startswith("127.") and address.split(".")[3] not in ("0", "255") for address in given)
    for address in given[::250]:
        with socket.create_server((address, 0)) as server:
            assert server.getsockname()[0] == address


def test_a_sandbox_keeps_its_address_and_no_specification_can_take_anothers(loopbacks):
    address = loopbacks.give("s1", HOST).env[VARIABLE]
    assert loopbacks.give("s1", HOST).env[VARIABLE] == address
    wants = SandboxSpec(job_id="j", attempt=1, network="host", env={VARIABLE: address})
    assert loopbacks.give("s2", wants).env[VARIABLE] != address


def test_without_the_hosts_network_there_is_none(loopbacks):
    spec = SandboxSpec(job_id="j", attempt=1)
    assert loopbacks.give("s1", spec) is spec


def test_an_address_is_given_again_when_no_fresh_one_is_left(loopbacks, monkeypatch):
    monkeypatch.setattr(networks, "IN_BLOCK", 2)
    first, second = (loopbacks.give(name, HOST).env[VARIABLE] for name in ("s1", "s2"))
    with pytest.raises(SandboxError, match="in use"):
        loopbacks.give("s3", HOST)
    loopbacks.take_back("s1")
    loopbacks.take_back("s1")
    assert loopbacks.give("s3", HOST).env[VARIABLE] == first
    assert first != second


def test_two_keepers_never_give_the_same_and_one_that_is_gone_leaves_its_block(loopbacks, monkeypatch):
    monkeypatch.setattr(networks, "BLOCKS", range(201, 203))
    mine = loopbacks.give("s1", HOST).env[VARIABLE]
    code = (
        "from prorl_celery.sandbox import networks\n"
        "from prorl_celery.sandbox.base import SandboxSpec\n"
        "networks.BLOCKS = range(201, 203)\n"
        "spec = SandboxSpec(job_id='j', attempt=1, network='host')\n"
        "kept = networks.Loopbacks()\n"
        "print(kept.give('s1', spec).env[networks.VARIABLE])\n"
        "try: networks.Loopbacks().give('s1', spec)\n"
        "except Exception as error: print(error)\n"
    )
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=60, check=True
        )
        theirs, refusal = done.stdout.splitlines()
        assert theirs.split(".")[:2] != mine.split(".")[:2]
        assert "2 keepers" in refusal


def test_servers_of_two_sandboxes_on_one_port_do_not_meet(start):
    serve = "python3 -m http.server --bind $PRORL_LOOPBACK 18973 >/dev/null 2>&1 & "
    ask = """
        for i in {1..200}; do exec 5<>/dev/tcp/$PRORL_LOOPBACK/18973 && break; sleep 0.1; done 2>/dev/null
        printf 'GET /who HTTP/1.0\\r\\n\\r\\n' >&5; cat <&5"""
    sandboxes = {name: start(network="host") for name in ("one", "two")}
    for name, sandbox in sandboxes.items():
        sandbox.files.write("/workspace/who", name.encode())
        sandbox.shell.run(serve, timeout=20)
    for name, sandbox in sandboxes.items():
        assert sandbox.shell.run(ask, timeout=60).output.endswith(name)
