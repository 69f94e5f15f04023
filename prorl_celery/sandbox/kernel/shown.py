"""What a kernel shows: made short before it is sent, and kept for those who were not there to hear it.

This stands in the text of `inside`, and runs where that does.
"""

from __future__ import annotations

import collections
import threading
from typing import Any


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


class LastCell:
    """What was sent about the last cell, for those who were not there to hear it: the first of it, and the end."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._reply: dict[str, Any] | None = None
        self._begin("")

    def hear(self, kind: str, parent: dict[str, Any], content: dict[str, Any]) -> None:
        """A message is being sent."""
        request = str(parent.get("msg_id"))
        with self._lock:
            if kind == "status":
                busy = content.get("execution_state") == "busy"
                if busy and parent.get("msg_type") == "execute_request":
                    self._begin(request)
                elif request == self._request:
                    self._busy = busy
            elif request != self._request:
                return
            elif kind == "execute_reply":
                self._reply = content
            else:
                if kind == "clear_output" and not content.get("wait"):
                    self._begin(request)
                self._keep(kind, content)

    def told(self) -> dict[str, Any]:
        """All that is kept."""
        with self._lock:
            return {
                "request": self._request,
                "busy": self._busy,
                "reply": self._reply,
                "first": list(self._first),
                "cut": self._cut,
                "end": [entry for entry, _ in self._end],
            }

    def _begin(self, request: str) -> None:
        self._request, self._busy = request, bool(request)
        self._reply = None
        self._first: list[Any] = []
        self._end: collections.deque[tuple[Any, int]] = collections.deque()
        self._first_size = self._end_size = self._cut = 0

    def _keep(self, kind: str, content: dict[str, Any]) -> None:
        texts = [str(content.get(name, "")) for name in ("text", "tail")]
        size = sum(map(len, texts)) + 64  # what a message costs beside its text
        if not self._end and self._first_size < 2 * self._limit:
            self._first.append((kind, content))
            self._first_size += size
            return
        self._end.append(((kind, content), size))
        self._end_size += size
        while len(self._end) > 1 and self._end_size > 3 * self._limit:
            (_, gone), size = self._end.popleft()
            self._end_size -= size
            self._cut += sum(len(str(gone.get(name, "")).encode()) for name in ("text", "tail")) + gone.get("cut", 0)
