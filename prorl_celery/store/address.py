"""Where Redis is: `PRORL_REDIS_URL` taken apart.

    redis://[[user]:password@]host[:port][/DB]        rediss:// with TLS, unix:///path?db=DB for a socket
    sentinel://[[user]:password@]host[:port],host[:port],.../SERVICE[/DB][?sentinel_password=...]

Of the second form the hosts are Sentinels, which know the master of SERVICE; the user and the password are Redis's own,
`sentinel_username` and `sentinel_password` those of the Sentinels, where they want any.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

from redis.connection import parse_url

from prorl_celery.errors import SettingsError

SENTINEL_PORT = 26379
SENTINEL_OPTIONS = {"sentinel_username": "username", "sentinel_password": "password"}


class _Wrong(ValueError):
    """Says what is wrong with a url without quoting it."""


@dataclass(frozen=True, slots=True)
class Address:
    """A Redis, or those who know where it is. `options` are redis-py's arguments for a connection to it."""

    options: dict[str, Any]
    sentinels: tuple[tuple[str, int], ...] = ()
    service: str = ""
    sentinel_options: dict[str, Any] | None = None

    @classmethod
    def parse(cls, url: str) -> Address:
        """Raises `SettingsError`, which does not quote the url: that may hold a password."""
        try:
            return _of_sentinels(url) if url.startswith("sentinel://") else cls(parse_url(url))  # type: ignore[no-untyped-call]
        except ValueError as error:
            why = f": {error}" if isinstance(error, _Wrong) else ""
            forms = "redis://, rediss://, unix:// or sentinel://"
            raise SettingsError(f"PRORL_REDIS_URL (or --redis) is no {forms} url{why}") from None


def broker_url(url: str) -> str:
    """The url of the same Redis as kombu spells it; one Sentinel's, the others it is told of otherwise: among several
    urls it would go its own way. Raises `SettingsError` for a url that is none.
    """
    address, parts = Address.parse(url), urlsplit(url)
    if parts.scheme == "unix":
        database = parse_qs(parts.query).get("db", ["0"])[0]
        secret = f"{parts.username or ''}:{parts.password}@" if parts.password else ""
        return f"redis+socket://{secret}{parts.path}?virtual_host={database}"
    if not address.sentinels:
        return url
    user, password = (quote(address.options.get(part, ""), safe="") for part in ("username", "password"))
    secret = f"{user}:{password}@" if password else ""
    host, port = address.sentinels[0]
    return f"sentinel://{secret}{f'[{host}]' if ':' in host else host}:{port}/{address.options['db']}"


def _of_sentinels(url: str) -> Address:
    parts = urlsplit(url)
    secret, _, places = parts.netloc.rpartition("@")
    user, _, password = secret.partition(":")
    sentinels = tuple(_place(place) for place in places.split(",") if place)
    service, _, database = parts.path.strip("/").partition("/")
    if not sentinels or not service:
        raise _Wrong("it must name hosts and a service: sentinel://host:26379,host:26379/SERVICE")
    options: dict[str, Any] = {"db": int(database or 0)}
    if user:
        options["username"] = unquote(user)
    if password:
        options["password"] = unquote(password)
    theirs = {}
    for name, values in parse_qs(parts.query).items():
        if name not in SENTINEL_OPTIONS:
            raise _Wrong("it may ask for sentinel_username and sentinel_password only")
        theirs[SENTINEL_OPTIONS[name]] = values[0]
    return Address(options, sentinels, unquote(service), theirs)


def _place(text: str) -> tuple[str, int]:
    parts = urlsplit(f"//{text}")
    if not parts.hostname:
        raise _Wrong("it names a Sentinel without a host")
    return parts.hostname, parts.port or SENTINEL_PORT
