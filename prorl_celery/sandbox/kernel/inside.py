"""The kernel's own start, inside a sandbox. `init.sh` gives Python this text, and SHELL IOPUB LIFE KEY LIMIT.

The first three are listening sockets that have no name anywhere, so that nothing in the sandbox can stand in for them
and nothing outside it can reach them: two for ipykernel's channels, and LIFE. Whoever waits for the kernel connects to
LIFE and reads `up` and a name that no other kernel has, or `failed` and why; the connection ends with the kernel,
however that ends. Who asks there for `last` is told what is kept of the last cell (`shown.LastCell`), in packets that
begin with `+`, and one that is `.`. KEY signs messages. LIMIT is how many characters of a text are sent from either end
of it.

Only channels that are used exist: no heartbeat, which would be a thread, and no stdin; an interrupt is a signal. It
runs on the image's Python with the image's ipykernel: any Python from 3.9, any ipykernel from 6.
"""

from __future__ import annotations

import codecs
import collections
import contextlib
import json
import os
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import types
from typing import Any

from prorl_celery.sandbox.kernel.shown import LastCell, small

UNSENT = {"comm_open", "comm_msg", "comm_close", "debug_event", "execute_input"}
"""Nobody outside would read these."""
CONNECTED_SECONDS = 5.0
HIGH_WATER = 10_000
"""Messages that wait here for a worker that is slow to read; more are dropped."""
KEPT = 8
"""Connections kept open: one who works with the kernel, and those who did before."""
PACKET_BYTES = 32 << 10


class Life:
    """Tells who connects how the start went. Their connections end with this process (or with newer ones: `KEPT`)."""

    def __init__(self, listener: socket.socket, last: LastCell) -> None:
        self._listener = listener
        self._last = last
        self._connections: collections.deque[socket.socket] = collections.deque(maxlen=KEPT)
        self._connected = threading.Event()
        self._settled = threading.Event()
        self._said = b""
        # A child that was forked without a new program would keep the connection open.
        os.register_at_fork(after_in_child=self._close)
        threading.Thread(target=self._serve, name="life", daemon=True).start()

    def tell(self, said: str) -> None:
        """Say how the start went."""
        self._said = said.encode("utf-8", "replace")[:2000]
        self._settled.set()

    def last_words(self, said: str) -> None:
        """Say why there will be no kernel, to somebody."""
        if self._connected.wait(CONNECTED_SECONDS):
            self._connections[-1].send(said.encode("utf-8", "replace")[:2000])

    def _serve(self) -> None:
        poll = select.poll()
        poll.register(self._listener, select.POLLIN)
        while True:
            for descriptor, _ in poll.poll():
                if descriptor == self._listener.fileno():
                    self._accept(poll)
                    continue
                try:
                    self._answer(descriptor)
                except OSError:  # gone again, or does not read
                    poll.unregister(descriptor)

    def _accept(self, poll: Any) -> None:
        connection, _ = self._listener.accept()
        connection.settimeout(CONNECTED_SECONDS)
        if len(self._connections) == KEPT:
            oldest = self._connections.popleft()
            with contextlib.suppress(KeyError):
                poll.unregister(oldest)
            oldest.close()
        self._connections.append(connection)
        self._connected.set()
        self._settled.wait()
        try:
            connection.send(self._said)
        except OSError:  # gone again
            return
        poll.register(connection, select.POLLIN)

    def _answer(self, descriptor: int) -> None:
        connection = next(each for each in self._connections if each.fileno() == descriptor)
        if connection.recv(16) != b"last":
            raise OSError("it has gone")
        text = json.dumps(self._last.told()).encode("ascii")
        for start in range(0, len(text), PACKET_BYTES):
            connection.send(b"+" + text[start : start + PACKET_BYTES])
        connection.send(b".")

    def _close(self) -> None:
        for each in (self._listener, *self._connections):
            each.close()


def run_command(shell: Any, command: str) -> None:
    """`!command`. IPython's own gives it a terminal, and sleeps for a tenth of a second around each."""
    if command.rstrip().endswith("&"):
        print("A command in the background would end with this call: use subprocess.Popen.", file=sys.stderr)
        return
    text = codecs.getincrementaldecoder("utf-8")("replace")
    with subprocess.Popen(
        [shutil.which(os.environ.get("SHELL", "sh")) or "/bin/sh", "-c", shell.var_expand(command, depth=1)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        bufsize=0,
    ) as process:
        try:
            while data := process.stdout.read(1 << 16):  # type: ignore[union-attr]
                sys.stdout.write(text.decode(data))
        except BaseException:
            process.kill()
            raise
    shell.user_ns["_exit_code"] = process.returncode


def start(life: Life, last: LastCell, shell: int, iopub: int, key: str, limit: int) -> None:
    """Make the kernel, say that it is up, and serve until it is told to end."""
    # It would be imported for a debugger that nobody uses, and is a quarter of the start.
    sys.modules["debugpy"] = None  # type: ignore[assignment]
    try:
        from ipykernel.kernelapp import IPKernelApp
    except ImportError:  # the first releases of ipykernel 6 cannot do without
        del sys.modules["debugpy"]
        from ipykernel.kernelapp import IPKernelApp
    import zmq
    from jupyter_client.session import Session

    class SmallSession(Session):
        """Sends no long message."""

        def send(self, stream: Any, msg_or_type: Any, content: Any = None, *args: Any, **kwargs: Any) -> Any:
            kind = msg_or_type if isinstance(msg_or_type, str) else msg_or_type["header"]["msg_type"]
            return None if kind in UNSENT else super().send(stream, msg_or_type, content, *args, **kwargs)

        def serialize(self, msg: Any, ident: Any = None) -> Any:
            kind = msg["header"]["msg_type"]
            content = small(kind, msg["content"], limit)
            last.hear(kind, msg.get("parent_header") or {}, content)
            return super().serialize(dict(msg, content=content), ident)

    class KernelApp(IPKernelApp):
        """On sockets that are there already, without a connection file."""

        def init_connection_file(self) -> None:
            self.session = SmallSession(parent=self, key=key.encode())

        def write_connection_file(self, **kwargs: Any) -> None:
            pass

        def init_heartbeat(self) -> None:
            pass

        def load_config_file(self, *args: Any, **kwargs: Any) -> None:
            """None: a start-up file of the agent's could keep every further kernel from starting."""

        def _run_startup_files(self) -> None:
            pass

        def log_connection_info(self) -> None:
            self._ports = {}

        def _bind_socket(self, s: Any, port: int) -> int:
            if port in (shell, iopub):
                s.setsockopt(zmq.USE_FD, port)
                s.sndhwm = HIGH_WATER
                s.bind("ipc://kernel")
            # The last name is what ipykernel connects to within itself.
            s.bind(f"inproc://kernel-{port}")
            return port

    app: Any = KernelApp.instance(shell_port=shell, iopub_port=iopub, stdin_port=-1, control_port=-2, hb_port=-3)
    app.transport, app.ip, app.log_level = "ipc", "kernel", 50
    app.config.HistoryManager.enabled = False
    app.config.InteractiveShell.colors = "nocolor"
    app.initialize([])
    app.shell.system = types.MethodType(run_command, app.shell)
    if sys.modules.get("debugpy") is None:
        sys.modules.pop("debugpy", None)
    sys.argv = [""]
    life.tell(f"up {secrets.token_hex(8)}")
    app.start()


def main() -> None:
    """Begin as a process that no terminal and no signal of the shell's reaches."""
    shell, iopub, life_socket = map(int, sys.argv[1:4])
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    for descriptor in (shell, iopub, life_socket):
        os.set_inheritable(descriptor, False)
    last = LastCell(int(sys.argv[5]))
    life = Life(socket.socket(fileno=life_socket), last)
    try:
        start(life, last, shell, iopub, sys.argv[4], int(sys.argv[5]))
    except Exception as error:
        life.last_words(f"failed {type(error).__name__}: {error}")
        raise


if __name__ == "__main__":
    main()
