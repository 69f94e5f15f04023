"""A cell in a kernel that lasts: the ipython tool in bubblewrap, jupyter_client alone on the host, a kernel gateway.

All of them run the same IPython kernel with its history off, and end a cell where its answer has come and the kernel
says that it is idle. A gateway's cell is mostly TCP waiting for itself (Nagle's algorithm and delayed ACKs).
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from prorl_celery.bench.report import BenchFailed
from prorl_celery.bench.tools.companions import READY_SECONDS, companion
from prorl_celery.bench.tools.ours import Place, attached
from prorl_celery.sandbox.waiting import NeverCancelled
from prorl_celery.tools.toolbox import Toolbox

CELL = "1+1"
NO_HISTORY = "--HistoryManager.enabled=False"


class IPythonTool:
    """The ipython tool, called as an agent's turn calls it."""

    copied_bytes = None

    def __init__(self, toolbox: Toolbox) -> None:
        self._toolbox = toolbox

    def run(self, command: str, *, timeout: float) -> str:
        """As `Way.run`."""
        return self._toolbox.call("ipython", {"code": command, "timeout": timeout}).content


@contextmanager
def ours(place: Place) -> Iterator[IPythonTool]:
    """The tool on a sandbox of its own in bubblewrap."""
    with attached(place.keeper, place.specs["kernel"]) as sandbox, NeverCancelled() as never:
        yield IPythonTool(Toolbox(["ipython"], sandbox=sandbox, settings=place.keeper.settings, cancel=never))


def first_cell_ms(place: Place) -> float:
    """From attaching to a sandbox that init made until a first cell has ended, as rollout does."""
    keeper = place.keeper
    with NeverCancelled() as never:
        started = keeper.client.start(place.specs["kernel"], cancel=never, timeout=READY_SECONDS)
        try:
            started.close()
            began = time.perf_counter()
            sandbox = keeper.client.attach(started.handle, cancel=never)
            try:
                tools = Toolbox(["bash", "ipython"], sandbox=sandbox, settings=keeper.settings, cancel=never)
                said = tools.call("ipython", {"code": CELL}).content
                took = time.perf_counter() - began
            finally:
                sandbox.close()
        finally:
            started.stop()
    if said != "2":
        raise BenchFailed(f"a first cell `{CELL}` came to {said!r}")
    return took * 1000


class BareClient:
    """jupyter_client's own blocking client."""

    copied_bytes = None

    def __init__(self, client: Any) -> None:
        self._client = client

    def run(self, command: str, *, timeout: float) -> str:
        """As `Way.run`."""
        deadline = time.monotonic() + timeout
        cell = self._client.execute(command)
        said = ""
        while True:
            message = self._client.get_iopub_msg(timeout=max(0.0, deadline - time.monotonic()))
            if message["parent_header"].get("msg_id") != cell:
                continue
            if message["msg_type"] == "execute_result":
                said = str(message["content"]["data"]["text/plain"])
            elif message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                break
        while (
            self._client.get_shell_msg(timeout=max(0.0, deadline - time.monotonic()))["parent_header"]["msg_id"] != cell
        ):
            continue
        return said


@contextmanager
def bare(transport: str, folder: str) -> Iterator[BareClient]:
    """A kernel on the host over `ipc` or `tcp`."""
    from jupyter_client.manager import KernelManager

    place = Path(folder, f".{transport}")
    place.mkdir(mode=0o700, exist_ok=True)
    manager = KernelManager(transport=transport, connection_file=str(place / "c.json"))
    if transport == "ipc":
        manager.ip = str(place / "s")
    nowhere = subprocess.DEVNULL
    manager.start_kernel(
        extra_arguments=[NO_HISTORY], cwd=folder, env=_environment(folder), stdout=nowhere, stderr=nowhere
    )
    try:
        client = manager.blocking_client()
        client.start_channels()
        try:
            client.wait_for_ready(timeout=READY_SECONDS)
            yield BareClient(client)
        finally:
            client.stop_channels()
    finally:
        manager.shutdown_kernel(now=True)


class Gateway:
    """A kernel behind a gateway's WebSocket."""

    copied_bytes = None

    def __init__(self, runner: asyncio.Runner, channels: Any) -> None:
        self._runner = runner
        self._channels = channels

    def run(self, command: str, *, timeout: float) -> str:
        """As `Way.run`."""
        return self._runner.run(asyncio.wait_for(self._run(command), timeout))

    async def _run(self, command: str) -> str:
        cell = uuid.uuid4().hex
        header = {"msg_id": cell, "msg_type": "execute_request", "session": cell, "username": "", "version": "5.3"}
        await self._channels.send_json(
            {
                "channel": "shell",
                "header": header,
                "parent_header": {},
                "metadata": {},
                "content": {"code": command, "silent": False, "store_history": True, "allow_stdin": False},
            }
        )
        said, answered, idle = "", False, False
        while not (answered and idle):
            message = await self._channels.receive_json()
            if message["parent_header"].get("msg_id") != cell:
                continue
            content = message["content"]
            answered = answered or message["msg_type"] == "execute_reply"
            idle = idle or content.get("execution_state") == "idle"
            if message["msg_type"] == "execute_result":
                said = str(content["data"]["text/plain"])
        return said


@contextmanager
def gateway(folder: str) -> Iterator[Gateway]:
    """A gateway on a loopback port, and a kernel of it."""
    port = _free_port()
    profile = Path(folder, ".ipython", "profile_default")
    profile.mkdir(parents=True, exist_ok=True)
    (profile / "ipython_kernel_config.py").write_text("c.HistoryManager.enabled = False\n")
    argv = [sys.executable, "-P", "-m", "kernel_gateway", "--ip=127.0.0.1", f"--port={port}", "--port_retries=0"]
    with companion(argv, _environment(folder), folder, ready=lambda: _listens(port)), asyncio.Runner() as runner:
        session, channels = runner.run(_connect(f"http://127.0.0.1:{port}"))
        try:
            yield Gateway(runner, channels)
        finally:
            runner.run(session.close())


def lacks_gateway() -> str | None:
    """Why a gateway cannot be measured here; None when it can."""
    if importlib.util.find_spec("kernel_gateway") is None:
        return "jupyter_kernel_gateway is not installed: pip install 'prorl-celery[bench]'"
    return None


async def _connect(url: str) -> tuple[Any, Any]:
    import aiohttp

    session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=READY_SECONDS))
    try:
        async with session.post(f"{url}/api/kernels", json={}) as answer:
            answer.raise_for_status()
            kernel = (await answer.json())["id"]
        return session, await session.ws_connect(f"{url}/api/kernels/{kernel}/channels")
    except (aiohttp.ClientError, TimeoutError) as error:
        await session.close()
        raise BenchFailed(f"the kernel gateway gave no kernel: {error}") from error


def _environment(folder: str) -> dict[str, str]:
    """A home without anybody's settings."""
    kept = {name: os.environ[name] for name in ("PATH", "TMPDIR") if name in os.environ}
    return {**kept, "HOME": folder, "IPYTHONDIR": f"{folder}/.ipython", "LANG": "C.UTF-8"}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
