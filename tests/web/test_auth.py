"""Tokens, scopes, and the refusal to listen where everybody may call."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import pytest
from flask import Flask
from web_helpers import a_job

from prorl_celery.errors import SettingsError
from prorl_celery.settings import Settings
from web.auth import check_binding, new_token, parse_entries

ROUTES = [
    ("GET", "/v1/jobs", "read"),
    ("GET", "/v1/jobs/a", "read"),
    ("GET", "/v1/jobs/a/result", "read"),
    ("GET", "/v1/results", "read"),
    ("GET", "/v1/backends", "read"),
    ("GET", "/v1/status", "read"),
    ("GET", "/v1/nodes", "read"),
    ("GET", "/openapi.json", "read"),
    ("GET", "/", "read"),
    ("POST", "/v1/jobs", "submit"),
    ("DELETE", "/v1/jobs/a", "submit"),
    ("POST", "/v1/backends", "admin"),
    ("DELETE", "/v1/backends?url=http://h", "admin"),
    ("POST", "/v1/policy/pause", "admin"),
    ("POST", "/v1/policy/resume", "admin"),
]


@pytest.mark.parametrize(("method", "path", "scope"), ROUTES)
def test_each_route_wants_its_scope(make: Callable[..., Flask], method: str, path: str, scope: str) -> None:
    tokens = {name: new_token(name, [name]) for name in ("submit", "read", "admin")}  # type: ignore[list-item]
    api = make(api_tokens=tuple(entry for _, entry in tokens.values())).test_client()
    bare = api.open(path, method=method)
    assert bare.status_code == 401
    assert bare.headers["WWW-Authenticate"].startswith("Bearer")
    assert api.open(path, method=method, headers={"Authorization": "Bearer wrong"}).status_code == 401
    for name, (token, _) in tokens.items():
        status = api.open(path, method=method, headers={"Authorization": f"Bearer {token}"}).status_code
        assert (status == 403) == (name not in {scope, "admin"}), (name, status)


def test_health_is_open_and_unknown_routes_are_not(make: Callable[..., Flask]) -> None:
    token, entry = new_token("trainer", ["submit", "read"])
    api = make(api_tokens=(entry,)).test_client()
    assert api.get("/healthz").status_code == 200
    assert api.get("/readyz").status_code == 503
    assert api.get("/v1/nothing").status_code == 401
    both = {"Authorization": f"bearer {token}"}
    assert api.get("/v1/nothing", headers=both).status_code == 404
    assert api.post("/v1/jobs", json=a_job("a"), headers=both).status_code == 201
    assert api.get("/v1/jobs/a", headers=both).status_code == 200


def test_an_entry_keeps_the_digest_and_not_the_token() -> None:
    token, entry = new_token("trainer", ["submit", "read"])
    assert entry == f"trainer:submit+read:{hashlib.sha256(token.encode()).hexdigest()}"
    assert token not in entry
    assert parse_entries([entry])[0].scopes == {"submit", "read"}


@pytest.mark.parametrize(
    "entry", ["", "name", "name:read", "name:read:abc", "name:write:" + "0" * 64, "a b:read:" + "0" * 64]
)
def test_a_wrong_entry_is_refused_at_the_start(entry: str, settings: Settings) -> None:
    with pytest.raises(SettingsError):
        check_binding(settings.with_(api_tokens=(entry,)))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "example.org", ""])
def test_without_tokens_only_loopback_is_bound(host: str, settings: Settings) -> None:
    with pytest.raises(SettingsError, match="prorl token new"):
        check_binding(settings.with_(host=host))
    check_binding(settings.with_(host=host, api_tokens=(new_token("a", ["read"])[1],)))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "localhost", "::1", "[::1]"])
def test_loopback_needs_no_tokens(host: str, settings: Settings) -> None:
    check_binding(settings.with_(host=host))
