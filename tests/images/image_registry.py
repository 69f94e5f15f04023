"""An image registry on loopback, small but real: Apptainer pulls from it as from any other, over plain http.

    with Registry() as registry:
        registry.add("team/tools", tar_of(tree))
        singularity build --sandbox --no-https OUT docker://127.0.0.1:PORT/team/tools

Any name that was not added is answered by 404. `hold(name)` answers a name's manifest only after `release()`;
`fail(name, times)` answers it so often by 500 first; `account` is what every call must name, if it is set. `asked`
counts the manifests asked for, by name.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import re
import tarfile
import threading
from base64 import b64encode
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Self

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
HOLD_S = 60.0


def tar_of(tree: Path) -> bytes:
    """A folder as an uncompressed archive, owned by root, without what differs from run to run."""

    def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = entry.mtime = 0
        entry.uname = entry.gname = ""
        return entry

    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.add(tree, arcname=".", filter=plain)
    return buffer.getvalue()


class Registry:
    """Serves what is added, from a thread, while the `with` lasts."""

    def __init__(self) -> None:
        self._blobs: dict[str, bytes] = {}
        self._manifests: dict[str, str] = {}
        self._failing: Counter[str] = Counter()
        self._held: set[str] = set()
        self._released = threading.Event()
        self.asked: Counter[str] = Counter()
        self.account: tuple[str, str] | None = None
        handler = type("Handler", (_Handler,), {"registry": self})
        self._server = _Server(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10.0)

    def add(self, name: str, tar: bytes, tag: str = "latest", architecture: str = "amd64") -> None:
        """Have an image of one layer."""
        layer = gzip.compress(tar, compresslevel=1, mtime=0)
        config = json.dumps(
            {
                "architecture": architecture,
                "os": "linux",
                "config": {"Env": ["PATH=/usr/bin:/bin"], "Cmd": ["/bin/sh"]},
                "rootfs": {"type": "layers", "diff_ids": [_digest(tar)]},
                "history": [],
            }
        ).encode()
        manifest = json.dumps(
            {
                "schemaVersion": 2,
                "mediaType": MANIFEST,
                "config": self._store(CONFIG, config),
                "layers": [self._store(LAYER, layer)],
            }
        ).encode()
        self._manifests[f"{name}:{tag}"] = str(self._store(MANIFEST, manifest)["digest"])

    def digest(self, name: str) -> str:
        """What the image is called whatever becomes of its tag."""
        return self._manifests[f"{name}:latest"]

    def fail(self, name: str, times: int) -> None:
        self._failing[name] = times

    def hold(self, name: str) -> None:
        self._held.add(name)
        self._released.clear()

    def release(self) -> None:
        self._held.clear()
        self._released.set()

    def _store(self, media_type: str, blob: bytes) -> dict[str, object]:
        digest = _digest(blob)
        self._blobs[digest] = blob
        return {"mediaType": media_type, "digest": digest, "size": len(blob)}

    def lets_in(self, authorization: str) -> bool:
        """Whether the account is the one that is asked for."""
        return self.account is None or authorization == "Basic " + b64encode(":".join(self.account).encode()).decode()

    def manifest(self, name: str, reference: str) -> bytes | int:
        """What is answered when a manifest is asked for: it, or a status."""
        self.asked[name] += 1
        if name in self._held and not self._released.wait(HOLD_S):
            return 504
        if self._failing[name] > 0:
            self._failing[name] -= 1
            return 500
        digest = reference if ":" in reference else self._manifests.get(f"{name}:{reference}", "")
        return self.blob(digest)

    def blob(self, digest: str) -> bytes | int:
        return self._blobs.get(digest, 404)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away, as one that is killed does."""


class _Handler(BaseHTTPRequestHandler):
    registry: Registry
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def log_message(self, format: str, *args: object) -> None:
        """Nobody reads it."""

    def _answer(self, *, body: bool) -> None:
        found = re.fullmatch(r"/v2/(.+)/(manifests|blobs)/(.+)", self.path)
        content_type = "application/octet-stream"
        answer: bytes | int
        if not self.registry.lets_in(self.headers.get("Authorization", "")):
            answer = 401
        elif found is None:
            answer = b"{}" if self.path == "/v2/" else 404
        elif found[2] == "manifests":
            answer, content_type = self.registry.manifest(found[1], found[3]), MANIFEST
        else:
            answer = self.registry.blob(found[3])
        status, payload = (answer, b'{"errors": []}') if isinstance(answer, int) else (200, answer)
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(payload)))
        if status == 401:
            self.send_header("WWW-Authenticate", 'Basic realm="tests"')
        if status == 200:
            self.send_header("Docker-Content-Digest", _digest(payload))
        self.end_headers()
        if body:
            self.wfile.write(payload)


def _digest(blob: bytes) -> str:
    return "sha256:" + hashlib.sha256(blob).hexdigest()
