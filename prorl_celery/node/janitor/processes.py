"""Our processes on this machine, by the label that each carries (`sandbox.owner`), and which sandbox's each is.

bash -c SCRIPT LABEL ...                      as arguments: bubblewrap, local, what holds an instance's terminal
Apptainer instance: USER [LABEL.....ID]       as a title: what holds an instance
_WRAPPER_ARG0=..., _PRORL_OWNER=LABEL:...     in the environment: an instance's first process; local sandboxes'
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from prorl_celery.node.janitor.thing import FATES, Thing
from prorl_celery.sandbox.owner import LABEL, VARIABLE, Owner, owner_in

_TITLE = re.compile(rb"(?:Apptainer|Singularity) instance: [^\[]*\[(prorl-[^\]]*)\]")
"""What the program calls the process that holds an instance; the name in it is ours (`singularity.registry`)."""
_MARKS = (b"_WRAPPER_ARG0=", f"{VARIABLE}=".encode())
_INSTANCE = b"instance://"


def processes() -> Iterator[Thing]:
    """Those of this user's sandboxes, and what its stage processes' children have started."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        text = label_of(int(entry.name))
        owner = owner_in(text) if text else None
        if owner is None or owner.uid != this_user():
            continue
        try:
            session = os.getsid(int(entry.name))
        except ProcessLookupError:
            continue
        yield Thing("process", entry.name, FATES[owner.fate], owner, _sandbox_in(text, session))


def this_user() -> int:
    """Whose things we look after."""
    return os.geteuid()


def owner_of(pid: int) -> Owner | None:
    """The keeper whose label a process carries; None for others and for zombies."""
    return owner_in(label_of(pid))


def session_of(leader: int) -> str:
    """How a sandbox whose id no process tells is called: by its terminal's session."""
    return f"session {leader}"


def label_of(pid: int) -> bytes:
    """The text of a process that begins with a label; empty where there is none."""
    arguments = _read(pid, "cmdline").split(b"\0")
    if title := _TITLE.match(arguments[0]):
        return title[1]
    # `bash -c SCRIPT LABEL`: not in any place, or whoever looks for a label by `pgrep` would be taken for a sandbox.
    for flag, _, name in zip(arguments, arguments[1:], arguments[2:], strict=False):
        if flag == b"-c" and LABEL.fullmatch(name):
            instance = next((each for each in arguments if each.startswith(_INSTANCE + name)), b"")
            return instance.removeprefix(_INSTANCE) or name
    for variable in _read(pid, "environ").split(b"\0"):
        for mark in _MARKS:
            if variable.startswith(mark):
                text = variable.removeprefix(mark)
                title = _TITLE.match(text)
                return title[1] if title else text if LABEL.match(text) else b""
    return b""


def _sandbox_in(text: bytes, session: int) -> str:
    """The sandbox's id where the text is an instance's name; nothing where it tells of no sandbox."""
    if not text.startswith(b"prorl-init-"):
        return ""
    return text.rpartition(b".")[2].decode(errors="replace") if b"." in text else session_of(session)


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""
