"""What a reward's url may be, and how it is told: its user, password and query may be secrets."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import SplitResult, unquote, urlsplit

PORTS = {"http": 80, "https": 443}


def origin(url: str) -> str:
    """Scheme, host and port: which server it is."""
    scheme, host, port = _server(urlsplit(url))
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def shown(url: str) -> str:
    """The url as logs, errors and metrics may tell it: without user, password and query."""
    return origin(url) + urlsplit(url).path


def check_prefixes(prefixes: Iterable[str]) -> None:
    """Raises ValueError for one that is no http(s) url, so that `allowed` would never take anything for it; named is
    what it is, without a user and password.
    """
    for number, prefix in enumerate(prefixes, 1):
        try:
            _server(urlsplit(prefix))
        except ValueError as error:
            named = prefix.rpartition("@")[2]
            raise ValueError(f"entry {number}, {named!r}, is no http or https url that names a server") from error


def allowed(url: str, prefixes: Iterable[str]) -> bool:
    """Whether one of the prefixes names the same server and a path above the url's, or the same.

    `http://a/score` allows `http://a/score` and `http://a/score/math`; not `http://a/scores`, nor `http://a.b/score`,
    nor a path that climbs (`..`), however it is written. A prefix that is no http(s) url allows nothing.
    """
    parts = urlsplit(url)
    path = unquote(parts.path)
    if "\\" in path or "%" in path or {".", ".."} & set(path.split("/")):
        return False
    for prefix in prefixes:
        try:
            given = urlsplit(prefix)
            same = _server(given) == _server(parts)
        except ValueError:
            continue
        root = unquote(given.path).rstrip("/")
        if same and (path == root or path.startswith(root + "/")):
            return True
    return False


def _server(parts: SplitResult) -> tuple[str, str, int]:
    """Raises ValueError for what names no server."""
    if parts.scheme not in PORTS or not parts.hostname:
        raise ValueError("no http or https url")
    return parts.scheme, parts.hostname, parts.port or PORTS[parts.scheme]
