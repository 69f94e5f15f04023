"""Who may call what: bearer tokens with scopes, and loopback only where there are none.

Given the entries of `PRORL_API_TOKENS` (`name:scopes:sha256`, scopes joined by `+`), lets a request pass or answers
with 401 or 403. Only digests are configured, so that a leaked environment is no leaked token. `admin` includes the
other scopes; `submit` and `read` do not include each other.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import get_args

from flask import Flask, current_app, request

from prorl_celery.errors import SettingsError
from prorl_celery.settings import Settings
from web.contract import Scope, operation_of
from web.problems import Problem

SCOPES: tuple[Scope, ...] = get_args(Scope)

_ENTRY = re.compile(r"([A-Za-z0-9._-]{1,64}):([a-z+|]+):([0-9a-fA-F]{64})")


@dataclass(frozen=True, slots=True)
class Token:
    """Somebody's right to call. `digest` is the SHA-256 of the token, which itself is kept nowhere."""

    name: str
    scopes: frozenset[str]
    digest: bytes


def new_token(name: str, scopes: Iterable[Scope]) -> tuple[str, str]:
    """A fresh token and its entry for `PRORL_API_TOKENS`. Raises `SettingsError` for a bad name or scope."""
    token = "prorl_" + secrets.token_urlsafe(32)
    entry = f"{name}:{'+'.join(scopes)}:{hashlib.sha256(token.encode()).hexdigest()}"
    parse_entries([entry])
    return token, entry


def parse_entries(entries: Sequence[str]) -> tuple[Token, ...]:
    """The tokens that entries stand for. Raises `SettingsError` that tells which entry is wrong, but not its digest."""
    tokens = []
    for number, entry in enumerate(entries, 1):
        match = _ENTRY.fullmatch(entry)
        if match is None:
            raise SettingsError(
                f"PRORL_API_TOKENS: entry {number} is not name:scopes:sha256 (`prorl token new` makes one)"
            )
        scopes = frozenset(re.split(r"[+|]", match[2]))
        if unknown := sorted(scopes.difference(SCOPES)):
            raise SettingsError(f"PRORL_API_TOKENS: {match[1]}: no such scope: {', '.join(map(repr, unknown))}")
        tokens.append(Token(match[1], scopes, bytes.fromhex(match[3])))
    return tuple(tokens)


def find_token(tokens: Sequence[Token], presented: str) -> Token | None:
    """The token presented, where there is one. Every digest is compared, each in constant time."""
    digest = hashlib.sha256(presented.encode("utf-8", "surrogateescape")).digest()
    found = None
    for token in tokens:
        if hmac.compare_digest(token.digest, digest):
            found = token
    return found


def check_binding(settings: Settings) -> None:
    """Refuse to listen beyond this machine without tokens. Raises `SettingsError` that says what to do."""
    if parse_entries(settings.api_tokens) or is_loopback(settings.host):
        return
    raise SettingsError(
        f"PRORL_HOST={settings.host} is reachable from other machines, and without PRORL_API_TOKENS anybody there "
        "could run code here: make a token with `prorl token new`, or bind 127.0.0.1"
    )


def is_loopback(host: str) -> bool:
    """Whether an address is this machine's own. Names other than `localhost` are not trusted to be."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def install(app: Flask, tokens: Sequence[Token]) -> None:
    """Check every request before its view runs, those of unknown routes too."""
    if not tokens:
        return

    @app.before_request
    def check() -> None:
        promise = operation_of(current_app.view_functions.get(request.endpoint or ""))
        if promise is not None and promise.scope is None:
            return
        scheme, _, presented = request.headers.get("Authorization", "").partition(" ")
        token = find_token(tokens, presented.strip()) if scheme.lower() == "bearer" else None
        if token is None:
            raise Problem(
                401,
                "unauthorized",
                "send Authorization: Bearer TOKEN",
                headers={"WWW-Authenticate": 'Bearer realm="prorl"'},
            )
        if promise is not None and promise.scope not in token.scopes and "admin" not in token.scopes:
            raise Problem(403, "forbidden", f"token {token.name!r} lacks the scope {promise.scope!r}")
