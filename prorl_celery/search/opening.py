"""Which search a node has, by its settings."""

from __future__ import annotations

import threading
from functools import lru_cache
from pathlib import Path

from prorl_celery.errors import SettingsError
from prorl_celery.search.base import Loop, SearchBackend
from prorl_celery.search.index import LocalIndex
from prorl_celery.settings import Settings

OFF = "the tool search is off on this node: PRORL_SEARCH_URL names a service for it, or PRORL_SEARCH_INDEX a file"

_loading = threading.Lock()


def open_search(settings: Settings, loop: Loop) -> SearchBackend:
    """The node's search. An index is read once by a process, and anew when its file has changed.

    Raises: `SettingsError` that names the setting, where there is none, or it cannot be used.
    """
    if settings.search_url and settings.search_index:
        raise SettingsError("PRORL_SEARCH_URL and PRORL_SEARCH_INDEX are both set; one of them must go")
    if settings.search_url:
        from prorl_celery.search.tavily import TavilySearch  # brings an HTTP client, which the API has no use for

        return TavilySearch(settings.search_url, settings.search_key, loop)
    if not settings.search_index:
        raise SettingsError(OFF)
    path = Path(settings.search_index)
    try:
        changed = path.stat().st_mtime_ns
    except OSError as error:
        raise SettingsError(f"PRORL_SEARCH_INDEX: {path}: {error.strerror}") from error
    with _loading:  # else each slot would read it at the start
        return _index(path, changed)


@lru_cache(maxsize=1)
def _index(path: Path, changed: int) -> LocalIndex:
    return LocalIndex.load(path)
