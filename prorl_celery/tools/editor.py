"""The `str_replace_editor` tool: look at files and change them, inside the sandbox.

The commands mean what models trained on this tool expect. Files pass through as bytes: what is not UTF-8 survives an
edit elsewhere in the file.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable
from typing import Any, ClassVar

from prorl_celery.sandbox.base import Files
from prorl_celery.settings import Settings
from prorl_celery.tools.base import Observation, function_schema

FILE_BYTES = 4 << 20
"""Largest file that can be viewed or changed."""
UNDO_EDITS = 64
UNDO_BYTES = 16 << 20
"""What is kept for undo in one rollout, over all files."""
CONTEXT_LINES = 4
FORGOTTEN = " The process that made earlier changes was replaced; those cannot be taken back."
"""Follows a refusal to undo where another process may have made changes: what they replaced went with it."""

COMMANDS = ("view", "create", "str_replace", "insert", "undo_edit")


class EditorError(Exception):
    """What the model did wrong, in words for the model."""


class EditorTool:
    """View, create and edit files; remembers earlier contents for undo.

    `taken_over`: another process used this tool in the rollout before.
    """

    name: ClassVar[str] = "str_replace_editor"
    schema: ClassVar[dict[str, Any]] = function_schema(
        "str_replace_editor",
        "View, create and edit files. `view` shows a file with line numbers (or a part of it by `view_range`), or a "
        "folder two levels deep. `create` makes a new file with `file_text`. `str_replace` replaces `old_str`, which "
        "must occur exactly once and match exactly, spaces included, by `new_str`. `insert` puts `new_str` after line "
        "`insert_line`. `undo_edit` takes back the last change of that file.",
        {
            "command": {"type": "string", "enum": list(COMMANDS), "description": "What to do."},
            "path": {"type": "string", "description": "Absolute path of the file or folder."},
            "file_text": {"type": "string", "description": "For create: the whole text of the file."},
            "old_str": {"type": "string", "description": "For str_replace: the text to replace."},
            "new_str": {
                "type": "string",
                "description": "For str_replace (default nothing) and insert: the new text.",
            },
            "insert_line": {"type": "integer", "description": "For insert: the line to insert after; 0 is the top."},
            "view_range": {
                "type": "array",
                "items": {"type": "integer"},
                "description": "For view: first and last line, counted from 1; -1 as the last is the end.",
            },
        },
        required=("command", "path"),
    )

    def __init__(self, files: Files, settings: Settings, *, taken_over: bool = False) -> None:
        self._files = files
        self._forgotten = FORGOTTEN if taken_over else ""
        self._output_bytes = settings.tool_output_bytes
        self._undo: deque[tuple[str, bytes]] = deque()
        self._commands: dict[str, Callable[[str, dict[str, Any]], str]] = {
            "view": self._view,
            "create": self._create,
            "str_replace": self._replace,
            "insert": self._insert,
            "undo_edit": self._undo_edit,
        }

    def __call__(self, arguments: dict[str, Any]) -> Observation:
        path = arguments["path"]
        try:
            if "\0" in path:
                raise EditorError("A path cannot hold a NUL byte.")
            if not path.startswith("/"):
                raise EditorError(f"The path {path} is not absolute; it must start with /.")
            return Observation(self._commands[arguments["command"]](path, arguments))
        except EditorError as error:
            return Observation(str(error).encode("utf-8", "replace").decode())
        except OSError as error:
            return Observation(_explain(error, path))

    def repeatable(self, arguments: dict[str, Any]) -> bool:
        """A view changes nothing."""
        return bool(arguments["command"] == "view")

    def recover(self, arguments: dict[str, Any]) -> Observation | None:
        """A change was made in full or not at all; made, it is told from the file as it is now."""
        if not self._files.recover():
            return None
        try:
            return Observation(self._made(arguments["path"], arguments))
        except OSError as error:
            return Observation(_explain(error, arguments["path"]))

    def _made(self, path: str, arguments: dict[str, Any]) -> str:
        """What was said, or would have been, of a change that another process made."""
        match arguments["command"]:
            case "create":
                return f"Created {path}."
            case "undo_edit":
                return f"Took back the last change of {path}."
        after, new = self._read(path), arguments.get("new_str", "")
        if arguments["command"] == "insert":
            return self._changed(path, after, arguments["insert_line"], new if new.endswith("\n") else new + "\n")
        if not new or after.count(new) != 1:
            return f"Changed {path}."  # where in it cannot be told any more
        return self._changed(path, after, after.count("\n", 0, after.index(new)), new)

    def _view(self, path: str, arguments: dict[str, Any]) -> str:
        span = arguments.get("view_range")
        names = self._files.listing(path)
        if names is not None:
            if span is not None:
                raise EditorError("view_range is for files; this is a folder.")
            listed = "\n".join(f"{path.rstrip('/')}/{name}" for name in names)
            return self._cut(f"{path} and what is in it, two levels deep, without hidden files:\n{listed}\n")
        lines = _lines(self._read(path))
        first, last = _span(span, len(lines))
        return self._cut(f"{path}, lines {first} to {last} of {len(lines)}:\n{_number(lines[first - 1 : last], first)}")

    def _create(self, path: str, arguments: dict[str, Any]) -> str:
        text = _needed(arguments, "file_text")
        if self._exists(path):
            raise EditorError(f"{path} exists already. Use str_replace or insert to change it.")
        self._files.write(path, _encode(text))
        return f"Created {path}."

    def _replace(self, path: str, arguments: dict[str, Any]) -> str:
        old, new = _needed(arguments, "old_str"), arguments.get("new_str", "")
        if not old:
            raise EditorError("old_str is empty; it must be the text to replace.")
        before = self._read(path)
        count = before.count(old)
        if count == 0:
            raise EditorError(f"Nothing was changed: old_str does not occur in {path} exactly as given.")
        if count > 1:
            where = ", ".join(map(str, _line_numbers(before, old)))
            raise EditorError(f"Nothing was changed: old_str occurs {count} times in {path}, on lines {where}.")
        at = before.index(old)
        after = before[:at] + new + before[at + len(old) :]
        self._change(path, before, after)
        return self._changed(path, after, before.count("\n", 0, at), new)

    def _insert(self, path: str, arguments: dict[str, Any]) -> str:
        new, line = _needed(arguments, "new_str"), arguments.get("insert_line")
        if line is None:
            raise EditorError("insert needs insert_line.")
        before = self._read(path)
        lines = [line + "\n" for line in before.split("\n")]
        lines[-1] = lines[-1][:-1]
        if not lines[-1]:
            del lines[-1]
        if not 0 <= line <= len(lines):
            raise EditorError(f"insert_line must be from 0 to {len(lines)}, the number of lines in {path}.")
        head = "".join(lines[:line])
        if head and not head.endswith("\n"):
            head += "\n"
        tail = "".join(lines[line:])
        text = new if new.endswith("\n") or not tail else new + "\n"
        after = head + text + tail
        self._change(path, before, after)
        return self._changed(path, after, line, text)

    def _undo_edit(self, path: str, arguments: dict[str, Any]) -> str:
        for index in range(len(self._undo) - 1, -1, -1):
            if self._undo[index][0] == path:
                self._files.write(path, self._undo[index][1])
                del self._undo[index]
                return f"Took back the last change of {path}."
        raise EditorError(f"There is no change of {path} to take back.{self._forgotten}")

    def _change(self, path: str, before: str, after: str) -> None:
        self._files.write(path, _encode(after))
        self._undo.append((path, _encode(before)))
        while len(self._undo) > UNDO_EDITS or sum(len(data) for _, data in self._undo) > UNDO_BYTES:
            self._undo.popleft()

    def _changed(self, path: str, text: str, line: int, new: str) -> str:
        lines = _lines(text)
        first = max(0, line - CONTEXT_LINES)
        last = min(len(lines), line + new.count("\n") + 1 + CONTEXT_LINES)
        return self._cut(f"Changed {path}. Around the change it now reads:\n{_number(lines[first:last], first + 1)}")

    def _read(self, path: str) -> str:
        return self._files.read(path, limit_bytes=FILE_BYTES).decode("utf-8", "surrogateescape")

    def _exists(self, path: str) -> bool:
        try:
            self._files.read(path, limit_bytes=0)
        except FileNotFoundError:
            return False
        except OSError as error:
            if error.errno == errno.EFBIG:
                return True
            raise
        return True

    def _cut(self, text: str) -> str:
        shown = text.encode("utf-8", "replace")
        if len(shown) <= self._output_bytes:
            return shown.decode()
        kept = shown[: self._output_bytes].decode("utf-8", "ignore")
        return f"{kept}\n[... {len(shown) - self._output_bytes} bytes left out; view a part by view_range ...]"


def _needed(arguments: dict[str, Any], name: str) -> str:
    value: str | None = arguments.get(name)
    if value is None:
        raise EditorError(f"{arguments['command']} needs {name}.")
    return value


def _span(span: list[int] | None, count: int) -> tuple[int, int]:
    if span is None:
        return 1, count
    if len(span) != 2:
        raise EditorError("view_range must be two numbers: first and last line.")
    first, last = span
    if last == -1:
        last = count
    if not 1 <= first <= max(count, 1) or last < first:
        raise EditorError(f"view_range {span} does not fit: the file has {count} lines, counted from 1.")
    return first, min(last, count)


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _lines(text: str) -> list[str]:
    lines = text.split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def _number(lines: list[str], first: int) -> str:
    return "".join(f"{number:6d}\t{line}\n" for number, line in enumerate(lines, first))


def _line_numbers(text: str, part: str) -> list[int]:
    numbers: list[int] = []
    at = text.find(part)
    while at >= 0 and len(numbers) < 20:
        numbers.append(text.count("\n", 0, at) + 1)
        at = text.find(part, at + len(part))
    return numbers


def _explain(error: OSError, path: str) -> str:
    match error.errno:
        case errno.ENOENT:
            return f"{path} does not exist."
        case errno.EISDIR:
            return f"{path} is a folder."
        case errno.EFBIG:
            return f"{path} is larger than {FILE_BYTES} bytes; use the shell to look at a part of it."
        case errno.EINVAL:
            return f"{path} is not a regular file."
        case _:
            return f"{path}: {error.strerror or error}."
