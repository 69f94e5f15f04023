"""The file that results are written to, one JSON line each, and which jobs it has already."""

from __future__ import annotations

import contextlib
import fcntl
import json
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from prorl_celery.errors import SettingsError
from prorl_celery.node.places import directory


class ResultFile:
    """Appends results; survives being killed: half a line at the end is cut off when it is opened again.

    Beside it, `FILE.cursor` says up to where the service's stream of results has been read into it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._cursor = path.with_name(path.name + ".cursor")
        self.results: list[dict[str, Any]] = []
        """What the file had: per result, all but the trajectory."""

    def __enter__(self) -> Self:
        """Raises `SettingsError` when the file cannot be written to, or holds something else."""
        directory(self.path.parent)
        try:
            self._file = self.path.open("ab+")
        except OSError as error:
            raise SettingsError(f"cannot write to {self.path}: {error.strerror}") from error
        try:
            self._lock()
            self._read()
        except BaseException:
            self._file.close()
            raise
        return self

    def _lock(self) -> None:
        """A second writer would cut off the line that the first is amid. Let go when the file is closed."""
        with contextlib.suppress(OSError):  # of file systems that know no locks
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise SettingsError(f"{self.path} is being written by another prorl; name another with --out") from None

    def _read(self) -> None:
        self._file.seek(0)
        whole = 0
        for number, line in enumerate(self._file, 1):
            if not line.endswith(b"\n"):
                break
            whole += len(line)
            self.results.append(without_trajectory(_result(line, f"{self.path}, line {number}")))
        self._file.truncate(whole)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    @property
    def cursor(self) -> str | None:
        """Where to read on in the stream of results; None is from its beginning."""
        return self._cursor.read_text().strip() or None if self._cursor.exists() else None

    def append(self, result: dict[str, Any]) -> None:
        """Write one result."""
        self._file.write(json.dumps(result, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n")

    def flush(self, cursor: str | None) -> None:
        """See what was appended into the file, then note `cursor`."""
        self._file.flush()
        if cursor is not None:
            temporary = self._cursor.with_name(self._cursor.name + ".new")
            temporary.write_text(cursor)
            temporary.replace(self._cursor)


def _result(line: bytes, where: str) -> dict[str, Any]:
    try:
        result = json.loads(line)
    except ValueError:
        result = None
    if not isinstance(result, dict) or "job_id" not in result:
        raise SettingsError(f"{where}: no result of a job; name another file with --out")
    return result


def without_trajectory(result: dict[str, Any]) -> dict[str, Any]:
    """A result's facts: what may be kept of every one."""
    return {name: value for name, value in result.items() if name not in {"messages", "segments", "artifacts"}}
