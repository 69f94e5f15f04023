"""Which reward urls are allowed, and what of them may be told."""

from __future__ import annotations

import pytest

from prorl_celery.rewards.urls import allowed, check_prefixes, origin, shown


@pytest.mark.parametrize(
    ("url", "prefix"),
    [
        ("http://a/score", "http://a"),
        ("http://a/score", "http://a/"),
        ("http://a:80/score", "http://A/score"),
        ("http://a/score/math?k=1", "http://a/score"),
        ("https://u:p@a:443/score", "https://a/score/"),
        ("http://[::1]:9/x", "http://[::1]:9/"),
    ],
)
def test_a_url_below_a_prefix_is_allowed(url: str, prefix: str) -> None:
    assert allowed(url, ["http://elsewhere", prefix])


@pytest.mark.parametrize(
    ("url", "prefix"),
    [
        ("http://a.evil/score", "http://a"),
        ("http://a@evil/score", "http://a"),
        ("http://evil/http://a/", "http://a/"),
        ("https://a/score", "http://a/score"),
        ("http://a:81/score", "http://a/score"),
        ("http://a/scores", "http://a/score"),
        ("http://a/score/../admin", "http://a/score"),
        ("http://a/score/%2e%2e/admin", "http://a/score"),
        ("http://a/score/%252e%252e/admin", "http://a/score"),
        ("http://a/score\\..\\admin", "http://a/score"),
        ("http://a/score", "a/score"),
        ("http://a/score", "http://a:port/"),
        ("http://a/score", "http://"),
        ("http://a/score", ""),
    ],
)
def test_what_only_looks_like_it_is_not(url: str, prefix: str) -> None:
    assert not allowed(url, [prefix])


def test_what_may_be_a_secret_is_not_shown() -> None:
    url = "https://user:pass@host/score?token=secret"
    assert shown(url) == "https://host:443/score"
    assert origin(url) == "https://host:443"
    assert origin("http://[::1]:8080/") == "http://[::1]:8080"


def test_a_list_of_urls_will_do() -> None:
    check_prefixes(["http://a", "https://u:p@a:443/score/", "http://[::1]:9/"])
    check_prefixes([])


@pytest.mark.parametrize(
    "prefix", ["scores:9000", "ftp://a/", "a/score", "http://", "http:///x", "http://a:port/", "http://a:99999/", "*"]
)
def test_one_that_could_allow_nothing_is_named(prefix: str) -> None:
    with pytest.raises(ValueError, match=r"entry 2, .* is no http or https url") as told:
        check_prefixes(["http://a/", prefix])
    assert repr(prefix) in str(told.value)


def test_of_one_with_a_password_that_is_not_told() -> None:
    with pytest.raises(ValueError, match="'host/score'") as told:
        check_prefixes(["ftp://user:hush@host/score"])
    assert "hush" not in str(told.value)
