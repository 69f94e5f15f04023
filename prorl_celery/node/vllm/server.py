"""A vLLM server of our own on this machine's processor: its command line, its environment, its readiness.

`ServerSpec` says how it is run. `model_units` gives it to a supervisor (`prorl up --model smollm2`), prepared and
registered with the API; `VllmServer` runs it for the time of a `with` block. Ready means: `/health` answered and one
request was sampled, since the first one of a server is slow.

It runs under a guard (`guard`), which ends all of its processes when it is told to, or when its owner dies.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Self

from prorl_celery.errors import ModelServerFailed
from prorl_celery.node.children import Call
from prorl_celery.node.pause import until
from prorl_celery.node.readiness import answers, ask, local_url, register_backend
from prorl_celery.node.vllm.guard import guard
from prorl_celery.node.vllm.install import Prepared, prepare
from prorl_celery.node.vllm.machine import fast_dtype
from prorl_celery.settings import Settings

if TYPE_CHECKING:
    from prorl_celery.node.units import Unit

READY_S = 300.0
"""From start to the first sampled token: 45 s on an idle machine of two cores; 178 s were seen at a load of 14."""
STOP_S = 20.0
MAX_MODEL_LEN = 4096
KV_CACHE_GIB = 1
BLOCK_TOKENS = 32
"""The unit of its prefix cache; the default of 128 never hits a short prompt, and 16 is refused."""
FIRST_REQUEST_S = 120.0

KEPT = ("PATH", "HOME", "USER", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH")
"""What of our environment it gets: no settings of ours, no secrets, no PYTHONPATH."""


@dataclass(frozen=True, slots=True)
class ServerSpec:
    """How a prepared model is served. `scratch`: a directory for its sockets and caches, made at each start.

    `trainer_routes`: also the routes by which a trainer pauses it, gives it weights and names their version, and the
    one that tells each token's version. Whoever reaches its port may use them.
    """

    prepared: Prepared
    port: int
    scratch: Path
    max_model_len: int = MAX_MODEL_LEN
    trainer_routes: bool = False

    @property
    def url(self) -> str:
        """Where it listens, on loopback alone."""
        return f"http://127.0.0.1:{self.port}"

    def argv(self) -> list[str]:
        """The command line: its module, since the `vllm` command looks for a distribution of another name."""
        options = {
            "--model": str(self.prepared.model),
            "--served-model-name": self.prepared.name,
            "--host": "127.0.0.1",
            "--port": str(self.port),
            "--dtype": fast_dtype(),
            "--max-model-len": str(self.max_model_len),
            "--block-size": str(BLOCK_TOKENS),
            "--generation-config": "vllm",  # what a job does not say is not decided by a file of the model's
        }
        flags = ["--enforce-eager", "--enable-request-id-headers", "--enable-prompt-tokens-details"]
        if self.trainer_routes:
            flags.append("--enable-scale-out")
        argv = [str(self.prepared.python), "-P", "-m", "vllm.entrypoints.openai.api_server"]
        return [*argv, *(part for option in options.items() for part in option), *flags]

    def environment(self, environ: Mapping[str, str] | None = None) -> dict[str, str]:
        """Its whole environment: it asks no hub, tells nobody it runs, compiles nothing, writes to `scratch`."""
        environ = os.environ if environ is None else environ
        kept = {name: environ[name] for name in KEPT if name in environ}
        kept["PATH"] = f"{self.prepared.python.parent}{os.pathsep}{kept.get('PATH', os.defpath)}"
        scratch = str(self.scratch)
        if self.trainer_routes:
            kept["VLLM_SERVER_DEV_MODE"] = "1"
        return kept | {
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
            "VLLM_CPU_KVCACHE_SPACE": str(KV_CACHE_GIB),
            "TORCH_COMPILE_DISABLE": "1",  # else the first request waits 25 s for a C++ compiler, and needs one
            "TMPDIR": scratch,
            "XDG_CACHE_HOME": scratch,
            "XDG_CONFIG_HOME": scratch,
            "HF_HOME": scratch,
            "PYTHONUNBUFFERED": "1",
        }

    def run(self) -> int:
        """Serve, in a process of one thread that leads its process group, until SIGTERM. Returns an exit code."""
        return guard(self.argv(), self.environment(), self.scratch)

    def wait_ready(self, timeout: float = READY_S) -> bool:
        """Whether it is healthy and has sampled a token within `timeout` seconds. Blocks."""
        deadline = time.monotonic() + timeout
        if not until(lambda: answers(self.url + "/health"), timeout, every=0.25):
            return False
        return until(self.samples, max(1.0, deadline - time.monotonic()), every=1.0)

    def samples(self) -> bool:
        """Whether it answers a small request with token ids."""
        body = {"model": self.prepared.name, "prompt": [1], "max_tokens": 1, "return_token_ids": True}
        status, reply = ask(self.url + "/v1/completions", body=body, timeout=FIRST_REQUEST_S)
        return status == 200 and bool(reply["choices"][0]["token_ids"])

    def backend(self) -> dict[str, Any]:
        """What the API is told of it."""
        return {
            "url": self.url,
            "model": self.prepared.name,
            "kind": "vllm",
            "tokenizer": str(self.prepared.model),
            "policy_version": 0,  # the weights as they were published
        }


def model_units(name: str, settings: Settings, *, port: int, token: str | None, logs: Path) -> list[Unit]:
    """The server of model `name`, at `port`, and its registration, for a supervisor that also has a unit `api`.

    Prepares the model first, with lines of progress on stderr. Raises `ModelError` and `SettingsError`.
    """
    from prorl_celery.node import services
    from prorl_celery.node.units import Unit

    prepared = prepare(name, settings.data_dir, torch_index=settings.torch_index, say=_to_stderr)
    spec = ServerSpec(prepared, port, settings.run_dir / "vllm")
    registration = Call(_register, (local_url(settings), spec.backend(), token))
    return [
        Unit(
            "vllm",
            lambda: Call(spec.run),
            kept=True,
            probe=spec.wait_ready,
            death_signal=signal.SIGTERM,
            stop_phase=services.KEEPER_STOPS,
            grace_seconds=STOP_S,
            log=services.log_of("vllm", logs),
        ),
        Unit(
            "vllm-registration",
            lambda: registration,
            after=("api", "vllm"),
            once=True,
            vital=True,
            log=services.log_of("vllm-registration", logs),
        ),
    ]


def _register(url: str, backend: dict[str, Any], token: str | None) -> int:
    return register_backend(url, backend, token=token)


def _to_stderr(line: str) -> None:
    os.write(2, f"prorl: {line}\n".encode())


def free_port() -> int:
    """A port of loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class VllmServer:
    """A server for the time of a `with` block, ready when it is entered.

        with VllmServer(prepare("smollm2", data_dir)) as server:
            server.url

    `log`: a file for its output, else it is thrown away. Raises `ModelServerFailed`, after which nothing runs.
    """

    def __init__(
        self,
        prepared: Prepared,
        *,
        log: Path | None = None,
        ready_seconds: float = READY_S,
        trainer_routes: bool = False,
    ) -> None:
        scratch = Path(tempfile.gettempdir()) / f"vllm-{secrets.token_hex(4)}"
        self.spec = ServerSpec(prepared, free_port(), scratch, trainer_routes=trainer_routes)
        self.log = log
        self._ready_seconds = ready_seconds
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where it listens."""
        return self.spec.url

    @property
    def pid(self) -> int:
        """Of its guard, which leads its process group."""
        assert self._process is not None
        return self._process.pid

    def __enter__(self) -> Self:
        spec = self.spec
        asked = {"argv": spec.argv(), "environ": spec.environment(), "scratch": str(spec.scratch)}
        guarded = ["prorl_celery.node.vllm.guard", str(os.getpid()), json.dumps(asked)]
        with self._output() as output:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", *guarded],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                process_group=0,
            )
        try:
            self._wait(self._process)
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def _output(self) -> IO[bytes]:
        if self.log is None:
            return Path(os.devnull).open("wb")
        self.log.parent.mkdir(parents=True, exist_ok=True)
        return self.log.open("ab")

    def _wait(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + self._ready_seconds
        healthy = self.url + "/health"
        if not until(lambda: process.poll() is not None or answers(healthy), self._ready_seconds, every=0.25):
            raise ModelServerFailed(f"vLLM was not ready after {self._ready_seconds:.0f} s{self._see_log()}")
        if process.poll() is not None:
            raise ModelServerFailed(f"vLLM ended at its start, exit code {process.returncode}{self._see_log()}")
        if not self.spec.wait_ready(max(1.0, deadline - time.monotonic())):
            raise ModelServerFailed(f"vLLM is healthy but samples nothing{self._see_log()}")

    def _see_log(self) -> str:
        return f"; its log is {self.log}" if self.log else ""

    def _stop(self) -> None:
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise ModelServerFailed(f"vLLM's guard did not end within {STOP_S:.0f} s") from None
