"""What a cell showed, as text a model reads: bounded, without colours, what is no text by kind and size.

Output that belongs to an earlier cell (a thread that goes on printing) is shown where it comes, as a terminal would.
"""

from __future__ import annotations

import re
from typing import Any

from prorl_celery.sandbox.kernel.channels import Message
from prorl_celery.sandbox.output import CappedOutput

COLOURS = re.compile(r"\x1b\[[0-9;]*m")
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

    def take(self, message: Message) -> None:
        """Take a message in. One that is not as it should be adds nothing."""
        content = message.content
        try:
            match message.kind:
                case "stream":
                    self._add(content["text"], content.get("cut", 0))
                case "display_data" | "update_display_data" | "execute_result":
                    self._add_line(content["text"], content.get("cut", 0))
                    for mime, size in list(content["others"].items())[:KINDS_NAMED]:
                        self._add_line(f"[{str(mime)[:80]}, {_size(int(size))}]")
                case "error":
                    self.error = str(content["ename"])[:200]
                    self._add_line(COLOURS.sub("", content["text"]), content.get("cut", 0))
                case "clear_output":
                    self._clear_first = bool(content.get("wait"))
                    if not self._clear_first:
                        self._clear()
                case "execute_reply":
                    for entry in content.get("payload", ()):
                        self._take_payload(entry)
        except (KeyError, TypeError, ValueError, AttributeError):
            return

    def _take_payload(self, entry: dict[str, Any]) -> None:
        if entry["source"] == "ask_exit":
            self.asked_to_end = not entry.get("keepkernel")
        else:  # a page of help, a text to go on with
            self._add_line(entry["text"], entry.get("cut", 0))

    def _add(self, text: str, cut: int) -> None:
        """Add text; `cut` bytes are missing behind its first `limit` characters."""
        if not text:
            return
        if self._clear_first:
            self._clear()
        if cut > 0:
            # Whatever follows so much text is the end of it: the gap lies in what would not have been kept.
            self._output.add(_bytes(text[: self._limit]))
            self._output.skip(int(cut))
            text = text[self._limit :]
        self._output.add(_bytes(text))
        self._fresh_line = text.endswith("\n")

    def _add_line(self, text: str, cut: int = 0) -> None:
        """Add text that stands on lines of its own."""
        if not text:
            return
        if not self._fresh_line:
            self._add("\n", 0)
        self._add(text if text.endswith("\n") else f"{text}\n", cut)

    def _clear(self) -> None:
        self._output = CappedOutput(self._limit)
        self._fresh_line = True
        self._clear_first = False


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "replace")


def _size(count: int) -> str:
    return f"{count} bytes" if count < 1024 else f"{count / 1024:.0f} KiB"
