"""What is looked at before a service starts: what could never work is refused in one line, not restarted for ever.

Handlers are users' code and may import anything, so they are loaded in a child of ours: the process that starts all the
others stays small and without threads.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable

import click

from prorl_celery.errors import ProrlError, SettingsError
from prorl_celery.node.children import Call, launch
from prorl_celery.sandbox.launch import sandbox_user
from prorl_celery.settings import Settings

REDIS_S = 10.0
LOADING_S = 120.0
"""How long handlers may take to load: some import a framework."""


def check_api(settings: Settings) -> None:
    """Raises `SettingsError` where the API would not start: its address, or its tokens; or for a bad reward url."""
    from web.auth import check_binding

    check_binding(settings)
    check_reward_urls(settings)


def check_worker(settings: Settings) -> None:
    """Raises `SandboxUnavailable` where no sandbox could be made for whom it runs as; `SettingsError` for a bad reward
    url.
    """
    sandbox_user(settings)
    check_reward_urls(settings)


def check_reward_urls(settings: Settings) -> None:
    """Raises `SettingsError` for an entry that could allow nothing."""
    from prorl_celery.rewards.urls import check_prefixes

    try:
        check_prefixes(settings.reward_urls)
    except ValueError as error:
        raise SettingsError(f"PRORL_REWARD_URLS: {error}") from error


def check_redis_url(settings: Settings) -> None:
    """Raises `SettingsError`, without the url, which may hold a password."""
    from prorl_celery.store.address import Address

    Address.parse(settings.redis_url)


def check_redis(settings: Settings) -> None:
    """Raises `SettingsError` where the Redis that was named does not answer within `REDIS_S`, or not us. Blocks."""
    from redis.exceptions import RedisError

    from prorl_celery.node.redis_server import wait_for_redis

    check_redis_url(settings)
    try:
        if not wait_for_redis(settings.redis_url, REDIS_S):
            raise SettingsError("the Redis of --redis (or PRORL_REDIS_URL) does not answer a PING")
    except RedisError as error:
        raise SettingsError(f"the Redis of --redis (or PRORL_REDIS_URL): {error}") from error


def check_scripted(policy: str, oracle: str | None, latency: str) -> None:
    """Raises `SettingsError` where the scripted backend would not start."""
    from prorl_celery.testing.scripted.latency import make_latency
    from prorl_celery.testing.scripted.oracle import Oracle
    from prorl_celery.testing.scripted.policies import make_policy

    try:
        make_policy(policy, Oracle.load(oracle or None))
        make_latency(latency, 0)
    except (OSError, ValueError) as error:
        raise SettingsError(f"the scripted backend: {error}") from error


def check_handlers(settings: Settings) -> None:
    """Load all handlers, in a child. Raises `SettingsError` where one cannot be."""
    code = _in_a_child(lambda: _load(settings), LOADING_S)
    if code is None:
        raise SettingsError(f"the handlers of PRORL_HANDLERS were not loaded within {LOADING_S:.0f} s")
    if code != 0:
        raise SettingsError("a handler cannot be loaded, see above; nothing was started")


def _load(settings: Settings) -> int:
    """Runs in the child; another error than ours is the handler's own and shows its trace."""
    from prorl_celery.handlers.registry import load_handlers

    try:
        load_handlers(settings)
    except ProrlError as error:
        click.echo(f"prorl: {error}", err=True)
        return 1
    return 0


def _in_a_child(function: Callable[[], int], seconds: float) -> int | None:
    """The exit code of a child that runs `function`; None when it took longer, and was killed."""
    child = launch(Call(function), name="checks")
    ended = os.pidfd_open(child.pid)
    try:
        poll = select.poll()
        poll.register(ended, select.POLLIN)
        in_time = bool(poll.poll(seconds * 1000))
    finally:
        os.close(ended)
        if child.stdin is not None:
            child.close_stdin()
    if not in_time:
        os.killpg(child.pid, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(child.pid, 0)[1])
    return code if in_time else None
