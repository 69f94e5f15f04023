"""`PRORL_REDIS_URL` taken apart."""

from __future__ import annotations

import pytest

from prorl_celery.errors import SettingsError
from prorl_celery.store.address import Address


def test_a_sentinel_url_names_hosts_a_service_a_database_and_secrets() -> None:
    url = "sentinel://me:p%40ss@a:1,b,[::1]:3/main/2?sentinel_username=u&sentinel_password=s%2F1"
    address = Address.parse(url)
    assert address.sentinels == (("a", 1), ("b", 26379), ("::1", 3))
    assert (address.service, address.options) == ("main", {"db": 2, "username": "me", "password": "p@ss"})
    assert address.sentinel_options == {"username": "u", "password": "s/1"}


def test_a_short_sentinel_url_is_of_database_0_without_a_password() -> None:
    address = Address.parse("sentinel://a,b/main")
    assert (address.options, address.sentinel_options) == ({"db": 0}, {})


def test_other_urls_are_read_as_redis_py_reads_them() -> None:
    assert Address.parse("redis://:pw@h:7/3").options == {"password": "pw", "host": "h", "port": 7, "db": 3}
    assert Address.parse("unix:///run/r.sock?db=2").options["path"] == "/run/r.sock"
    assert Address.parse("redis://h").sentinels == ()


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("nonsense:secret", r"url$"),
        ("redis://h:secret/0", r"url$"),
        ("sentinel://:secret@a,b", "hosts and a service"),
        ("sentinel://:secret@/main", "hosts and a service"),
        ("sentinel://:secret@:1/main", "without a host"),
        ("sentinel://:secret@a:b/main", r"url$"),
        ("sentinel://:secret@a/main/x", r"url$"),
        ("sentinel://a/main?password=secret", "only"),
    ],
)
def test_a_url_that_is_none_is_refused_without_being_quoted(url: str, why: str) -> None:
    with pytest.raises(SettingsError, match=why) as caught:
        Address.parse(url)
    assert "secret" not in str(caught.value)
