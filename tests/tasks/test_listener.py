"""The thread that hears of cancels outlives what it is told."""

from __future__ import annotations

import redis

from prorl_celery.node.pause import until
from prorl_celery.settings import Settings
from prorl_celery.store.clients import blocking_client
from tasks.listener import Listener

GENEROUS_SECONDS = 30.0


def test_a_message_that_cannot_be_dealt_with_costs_no_other_its_own(
    redis_client: redis.Redis, redis_settings: Settings
) -> None:
    heard: list[str] = []

    def fails(text: str) -> None:
        raise ValueError(text)

    listener = Listener(blocking_client(redis_settings), {"bad": fails, "good": heard.append})
    listener.start()
    try:
        assert until(lambda: redis_client.publish("bad", "x") == 1, GENEROUS_SECONDS, every=0.01)
        redis_client.publish("good", "still there")
        assert until(lambda: heard == ["still there"], GENEROUS_SECONDS, every=0.01)
    finally:
        listener.stop()


def test_a_look_that_fails_while_nothing_is_heard_is_made_again(redis_settings: Settings) -> None:
    looks: list[None] = []

    def look() -> None:
        looks.append(None)
        raise ValueError("a bug")

    for settings in (redis_settings, redis_settings.with_(redis_url="unix:///nowhere/redis.sock")):
        looks.clear()
        listener = Listener(blocking_client(settings), {"good": print}, look)
        listener.start()
        try:
            assert until(lambda: len(looks) >= 2, GENEROUS_SECONDS, every=0.01)
        finally:
            listener.stop()
