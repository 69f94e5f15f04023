"""The Lua scripts of `store/lua`, run as one client command each.

A script's text is `lib.lua`, `life.lua` and the script's own file. Redis knows it by its SHA-1; a server that has
forgotten it (restart, SCRIPT FLUSH) answers NOSCRIPT, and the text is sent once more. Every script may run twice with
the same arguments: the client's retries are safe.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import redis
from redis.exceptions import NoScriptError

from prorl_celery.errors import StoreUnavailable
from prorl_celery.settings import Settings
from prorl_celery.store.clients import reaching_redis

FOLDER = Path(__file__).parent / "lua"

_TEXTS = {path.stem: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.lua")}
"""Read at once: new code may come to lie under a service that runs, and its scripts are not for our Python."""

LIBRARY = ("lib", "groups", "filling", "carrying", "life")
"""What is put in front of every script; `checking.lua` comes behind it for those that check (`check_*`)."""

NEW_WORK = ("create", "retry", "batch_create", "batch_add")
"""Scripts that a Redis which is full refuses; `settling.lua` stands in front of all others, which it lets through."""

RESULTS_KEPT = 1_000_000
"""Most entries of the results stream; older ones are cut."""

OPENING = "local function script()\n"
CLOSING = """
end
local reply = script()
if #born == 0 then return reply end
return {'born', reply or false, born}
"""
"""What stands around a script: jobs that it has made (`born`, see `filling.lua`) are told behind its reply."""

Argument = str | int | float | bytes

log = logging.getLogger(__name__)


class Scripts:
    """Runs scripts on one client under one prefix.

    Every script is given the prefix as its only key, then four arguments that come from the settings (lease, result
    and id lifetimes in milliseconds, entries kept in the results stream), then its own.
    """

    def __init__(
        self, client: redis.Redis, settings: Settings, born: Callable[[list[Any]], None] | None = None
    ) -> None:
        """`born` is given the messages of jobs that a script has made; without it, the sweep is."""
        self._client: Any = client
        self._born = born
        self._head: tuple[Argument, ...] = (
            1,
            settings.key_prefix,
            round(settings.lease_seconds * 1000),
            round(settings.result_ttl_seconds * 1000),
            round(max(settings.id_ttl_seconds, settings.result_ttl_seconds) * 1000),
            RESULTS_KEPT,
        )

    def run(self, name: str, *arguments: Argument) -> Any:
        """Run `lua/<name>.lua` and return its reply. Raises `StoreUnavailable`."""
        sha, text = _script(name)
        with reaching_redis():
            try:
                reply = self._client.execute_command("EVALSHA", sha, *self._head, *arguments)
            except NoScriptError:
                reply = self._client.execute_command("EVAL", text, *self._head, *arguments)
        if isinstance(reply, list) and len(reply) == 3 and reply[0] == b"born":
            self._tell(reply[2])
            reply = reply[1]
        return reply

    def _tell(self, messages: list[Any]) -> None:
        if self._born is None:
            return
        try:
            self._born(messages)
        except StoreUnavailable as error:
            log.warning("%d jobs of a batch are published later: %s", len(messages), error)


@cache
def _script(name: str) -> tuple[str, str]:
    """A script's SHA-1 and text."""
    parts = list(LIBRARY)
    if name not in NEW_WORK:
        parts.append("settling")
    if name.startswith("check_"):
        parts.append("checking")
    text = "".join(_TEXTS[part] for part in parts) + OPENING + _TEXTS[name] + CLOSING
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest(), text
