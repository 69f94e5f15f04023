"""The kernel's own start, inside a sandbox. `init.sh` gives Python this text, and SHELL IOPUB LIFE KEY LIMIT.

The first three are listening sockets that have no name anywhere, so that nothing in the sandbox can stand in for them
and nothing outside it can reach them: two for ipykernel's channels, and LIFE. Whoever waits for the kernel connects to
LIFE and reads `up`, or `failed` and why; the connection ends with the kernel, however that ends. KEY signs messages.
LIMIT is how many characters of a text are sent from either end of it.

Only channels that are used exist: no heartbeat, which would be a thread, and no stdin; an interrupt is a signal. It
runs on the image's Python with the image's ipykernel: any Python from 3.9, any ipykernel from 6.
"""

from __future__ import annotations

import codecs
import collections
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import types
from typing import Any

UNSENT = {"comm_open", "comm_msg", "comm_close", "debug_event", "execute_input"}
"""Nobody outside would read these."""
CONNECTED_SECONDS = 5.0
HIGH_WATER = 10_000
"""Messages that wait here for a worker that is slow to read; more are dropped."""
KEPT = 8
"""Connections kept open: one who works with the kernel, and those who did before."""


class Life:
    """Tells who connects how the start went. Their connections end with this process (or with newer ones: `KEPT`)."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
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
        while True:
            connection, _ = self._listener.accept()
            self._connections.append(connection)
            self._connected.set()
            self._settled.wait()
            try:
                connection.send(self._said)
            except OSError:  # gone again
                continue

    def _close(self) -> None:
        for each in (self._listener, *self._connections):
            each.close()


def shorten(text: str, limit: int) -> dict[str, Any]:
    """A text of any length for a message: its first and its last `limit` characters, and the bytes between them."""
    if len(text) <= 2 * limit:
        return {"text": sendable(text)}
    cut = len(text[limit:-limit].encode("utf-8", "surrogatepass"))
    return {"text": sendable(text[:limit]), "cut": cut, "tail": sendable(text[-limit:])}


def sendable(text: str) -> str:
    """A text without halves of pairs of surrogates, which no message can hold."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def small(kind: str, content: dict[str, Any], limit: int) -> dict[str, Any]:
    """The content of a message as we send it, so that none is long: shortened texts, sizes of what is no text."""
    if kind == "stream":
        return shorten(content["text"], limit)
    if kind == "error":
        return {"ename": content["ename"][:200], **shorten("\n".join(content["traceback"]), limit)}
    if kind in ("display_data", "update_display_data", "execute_result"):
        return small_bundle(content["data"], limit)
    if kind == "execute_reply":
        kept: dict[str, Any] = {name: content[name] for name in ("status", "execution_count") if name in content}
        kept["payload"] = [small_payload(entry, limit) for entry in content.get("payload") or ()]
        return kept
    return content


def small_bundle(data: dict[str, Any], limit: int) -> dict[str, Any]:
    """The plainest text of a bundle, and the other kinds by name and size."""
    texts = {mime: value for mime, value in data.items() if isinstance(value, str) and mime.startswith("text/")}
    plainest = next((m for m in ("text/plain", "text/markdown", "text/latex") if m in texts), next(iter(texts), None))
    others = {mime: size_of(mime, value) for mime, value in data.items() if mime not in texts}
    return {"others": others, **shorten("" if plainest is None else texts[plainest], limit)}


def size_of(mime: str, value: Any) -> int:
    """Bytes of what is no text. Pictures may come in base64."""
    if isinstance(value, str) and not mime.endswith(("xml", "json", "javascript")):
        return len(value) * 3 // 4
    return len(value if isinstance(value, (str, bytes)) else repr(value))


def small_payload(entry: dict[str, Any], limit: int) -> dict[str, Any]:
    """What a cell asks of a front end: to show a page, to offer a text, to end."""
    page = entry.get("data")
    text = page.get("text/plain", "") if isinstance(page, dict) else entry.get("text", "")
    asked = {"source": str(entry.get("source")), "keepkernel": bool(entry.get("keepkernel"))}
    return {**asked, **shorten(str(text), limit)}


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


def start(life: Life, shell: int, iopub: int, key: str, limit: int) -> None:
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
            return super().serialize(dict(msg, content=small(kind, msg["content"], limit)), ident)

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
    life.tell("up")
    app.start()


def main() -> None:
    """Begin as a process that no terminal and no signal of the shell's reaches."""
    shell, iopub, life_socket = map(int, sys.argv[1:4])
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    for descriptor in (shell, iopub, life_socket):
        os.set_inheritable(descriptor, False)
    life = Life(socket.socket(fileno=life_socket))
    try:
        start(life, shell, iopub, sys.argv[4], int(sys.argv[5]))
    except Exception as error:
        life.last_words(f"failed {type(error).__name__}: {error}")
        raise


if __name__ == "__main__":
    main()
