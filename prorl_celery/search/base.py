"""What a search is: a question in words, and a few documents that may answer it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

from prorl_celery.errors import ToolError

if TYPE_CHECKING:
    import aiohttp

T = TypeVar("T")

QUERY_CHARACTERS = 1000
MOST_RESULTS = 10
TEXT_CHARACTERS = 4000
LINE_CHARACTERS = 300


class SearchError(ToolError):
    """The search failed: its service is away, refuses us, or answers nonsense. Says nothing of any key."""


class QueryRefused(Exception):
    """The service will not look for this; the message is for the model."""


class Cancel(Protocol):
    """What every wait watches: `prorl_celery.sandbox.base.CancelSignal`."""

    def fileno(self) -> int: ...
    def raise_if_set(self) -> None: ...
    @property
    def is_set(self) -> bool: ...


class Loop(Protocol):
    """Where calls are made: `prorl_celery.llm.loop.ModelLoop`, whose thread and connections they share."""

    @property
    def session(self) -> aiohttp.ClientSession: ...
    def call(self, factory: Callable[[], Awaitable[T]], *, cancel: Cancel, timeout: float) -> T: ...


@dataclass(frozen=True, slots=True)
class Found:
    """One document: `title` and `url` are one line each, `text` the part of it that was found."""

    title: str
    url: str
    text: str

    @classmethod
    def of(cls, title: str, url: str, text: str) -> Found:
        """Of whatever was found: of bounded length, and text that every store and backend takes."""
        return cls(_line(title), _line(url), _sound(text.strip()[:TEXT_CHARACTERS]))


class SearchBackend(Protocol):
    """Where searches are made. Safe to share between threads."""

    def search(self, query: str, *, most: int, cancel: Cancel, timeout: float) -> list[Found]:
        """At most `most` documents, the best first; none where nothing fits.

        Raises: `SearchError` also where `timeout` (seconds, all tries together) is over, `QueryRefused`, and what
        `cancel` raises.
        """
        ...


def _line(text: str) -> str:
    return _sound(" ".join(text.split())[:LINE_CHARACTERS])


def _sound(text: str) -> str:
    """Without lone surrogates, which JSON can write and UTF-8 cannot."""
    return text.encode("utf-8", "replace").decode()
