"""What a cell showed, as text a model reads: bounded, and what is no text by kind and size.

Output that belongs to an earlier cell (a thread that goes on printing) is shown where it comes, as a terminal would.
"""

from __future__ import annotations

from typing import Any

from prorl_celery.sandbox.kernel.channels import Message
from prorl_celery.sandbox.output import CappedOutput

MOST_CUT = 1 << 40
"""More bytes than this no cell has left out, whatever its kernel says."""
KINDS_NAMED = 8
"""Kinds of one result that are named."""


class CellOutput:
    """Collects what the messages of one cell show."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._output = CappedOutput(limit_bytes)
        self._fresh_line = True
        self._clear_first = False
        self.error: str | None = None
        self.asked_to_end = False

    @property
    def omitted_bytes(self) -> int:
        return self._output.omitted_bytes

    def text(self) -> str:
        return self._output.text()

    def note(self, text: str) -> None:
        """Add a line of our own."""
        self._add_line({"text": text})

    def skip(self, count: object) -> None:
        """So many bytes are not there, where there is more on either side than is kept."""
        if isinstance(count, int) and 0 < count < MOST_CUT:
            self._output.skip(count)

    def take(self, message: Message) -> None:
        """Take a message in. One that is not as it should be adds nothing."""
        content = message.content
        try:
            match message.kind:
                case "stream":
                    self._add(content)
                case "display_data" | "update_display_data" | "execute_result":
                    self._add_line(content)
                    for mime, size in list(content["others"].items())[:KINDS_NAMED]:
                        self._add_line({"text": f"[{str(mime)[:80]}, {_size(int(size))}]"})
                case "error":
                    self.error = str(content["ename"])[:200]
                    self._add_line(content)
                case "clear_output":
                    self._clear_first = bool(content.get("wait"))
                    if not self._clear_first:
                        self._clear()
                case "execute_reply":
                    for entry in content.get("payload", ()):
                        self._take_payload(entry)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            return

    def _take_payload(self, entry: dict[str, Any]) -> None:
        if entry["source"] == "ask_exit":
            self.asked_to_end = not entry.get("keepkernel")
        else:  # a page of help, a text to go on with
            self._add_line(entry)

    def _add(self, shortened: dict[str, Any]) -> None:
        """Add a text, of which the kernel may have left out the middle."""
        text, tail = shortened["text"], shortened.get("tail", "")
        cut = min(int(shortened.get("cut", 0)), MOST_CUT)
        if not text:
            return
        if self._clear_first:
            self._clear()
        self._output.add(_bytes(text))
        if cut > 0:
            # There is more on either side of this gap than is kept, so it lies within what is left out here.
            self._output.skip(cut)
            self._output.add(_bytes(tail))
        self._fresh_line = (tail or text).endswith("\n")

    def _add_line(self, shortened: dict[str, Any]) -> None:
        """Add a text that stands on lines of its own."""
        if not shortened["text"]:
            return
        if not self._fresh_line:
            self._output.add(b"\n")
        self._add(shortened)
        if not self._fresh_line:
            self._output.add(b"\n")
            self._fresh_line = True

    def _clear(self) -> None:
        self._output = CappedOutput(self._limit)
        self._fresh_line = True
        self._clear_first = False


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "replace")


def _size(count: int) -> str:
    return f"{count} bytes" if count < 1024 else f"{count / 1024:.0f} KiB"
