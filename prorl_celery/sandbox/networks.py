"""Networks of sandboxes: which the node allows, and an address of its own for each that shares the host's.

With `network: host` a sandbox sees the host's network. So that two which serve on the same port do not meet, each gets
a loopback address that no other live sandbox on the machine has, in PRORL_LOOPBACK. It binds to that, and connects to
it; nothing makes it.
"""

from __future__ import annotations

import dataclasses
import random
import socket
from collections import deque
from contextlib import suppress

from prorl_celery.errors import SandboxError, SandboxRefused
from prorl_celery.sandbox.base import SandboxSpec
from prorl_celery.settings import Settings

NETWORKS = ("none", "host", "bridge")
VARIABLE = "PRORL_LOOPBACK"
BLOCKS = range(1, 255)
"""127.N.0.0/16 for each keeper on a machine, N from these. 127.0 is everybody's."""
IN_BLOCK = (256 - 2) * 256
"""Addresses in a block, without those that end on 0 or 255."""


def check_network(spec: SandboxSpec, settings: Settings, kind: str) -> None:
    """Raises `SandboxRefused` where a node does not allow a network, or a kind does not have it."""
    if spec.network not in NETWORKS:
        raise SandboxRefused(f"network must be one of {', '.join(NETWORKS)}, not {spec.network!r}")
    if spec.network not in settings.sandbox_networks:
        raise SandboxRefused(
            f"the network {spec.network!r} is not allowed on this node: PRORL_SANDBOX_NETWORKS allows "
            f"{', '.join(settings.sandbox_networks) or 'nothing'}"
        )
    if spec.network == "bridge" and kind != "singularity":
        raise SandboxRefused(f"a {kind} sandbox has no bridge; it has the networks none and host")


class Loopbacks:
    """The addresses that one keeper gives out.

    Its block is claimed by a name in the kernel's abstract socket space, which is the network namespace's as loopback
    addresses are, and ends with the process: two keepers on a machine never have the same, and there is no file.
    """

    def __init__(self) -> None:
        self._claim: socket.socket | None = None
        self._block = 0
        self._next = 0
        self._held: dict[str, str] = {}
        self._free: deque[str] = deque()

    def give(self, sandbox_id: str, spec: SandboxSpec) -> SandboxSpec:
        """The specification with the sandbox's address in its environment, where it shares the host's network.

        Raises: `SandboxError` when there is none left.
        """
        if spec.network != "host":
            return spec
        if sandbox_id not in self._held:
            self._held[sandbox_id] = self._take()
        address = self._held[sandbox_id]
        return dataclasses.replace(spec, env={**spec.env, VARIABLE: address})

    def take_back(self, sandbox_id: str) -> None:
        """The sandbox is gone. Idempotent."""
        address = self._held.pop(sandbox_id, None)
        if address is not None:
            self._free.append(address)

    def close(self) -> None:
        """Give up the block."""
        if self._claim is not None:
            self._claim.close()

    def _take(self) -> str:
        if self._claim is None:
            self._claim, self._block = _claim_block()
        # A fresh one as long as there is any: on one just given back, connections may still linger.
        if self._next < IN_BLOCK:
            third, last = divmod(self._next, 254)
            self._next += 1
            return f"127.{self._block}.{third}.{last + 1}"
        if not self._free:
            raise SandboxError(f"all {IN_BLOCK} loopback addresses of this keeper are in use")
        return self._free.popleft()


def _claim_block() -> tuple[socket.socket, int]:
    for block in random.sample(BLOCKS, len(BLOCKS)):
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        with suppress(OSError):
            claim.bind(f"\0prorl-loopback-127.{block}")
            return claim, block
        claim.close()
    raise SandboxError(f"{len(BLOCKS)} keepers on this machine share the host's network with sandboxes already")
