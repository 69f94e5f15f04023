"""The client's loop over a batch on the real API: how lazily it feeds, what it survives, how it leaves."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis
from web_helpers import Served, until

from prorl_celery.client import Client, batches
from prorl_celery.jobs.store import JobStore
from prorl_celery.scheduling.batches import BatchRegistry
from prorl_celery.settings import Settings

BATCH = {"batch_id": "b", "target_groups": 3, "samples_per_group": 2, "max_inflight_jobs": 4}


class Prompts:
    """An endless iterator of prompts that counts how many were drawn from it."""

    def __init__(self, end: int = 10**9) -> None:
        self.drawn = 0
        self._end = end

    def __iter__(self) -> Iterator[dict[str, Any]]:
        while self.drawn < self._end:
            self.drawn += 1
            yield {"prompt_id": f"p{self.drawn}", "instance": {"data_source": "echo", "text": str(self.drawn)}}


class Fleet:
    """A worker that takes whatever is queued, until it is stopped. `reward` says what a job is worth."""

    def __init__(self, store: JobStore, settings: Settings, reward: Callable[[str], float]) -> None:
        self._store = JobStore(store._client, settings, publish=lambda messages: None)
        self._batches = BatchRegistry(store._client, settings)
        self._reward = reward
        self._stopped = threading.Event()
        self.ended: list[str] = []
        self._thread = threading.Thread(target=self._run, name="fleet")

    def __enter__(self) -> Fleet:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stopped.set()
        self._thread.join(30)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._work()
        finally:
            # Should it have stumbled: who waits for groups must not wait for ever.
            if not self._stopped.is_set():
                self._batches.cancel("b")

    def _work(self) -> None:
        while not self._stopped.wait(0.02):
            for job in sorted(self._store.list(state="queued", limit=50).statuses, key=lambda job: job.job_id):
                claim = self._store.claim("init", job.job_id, 0, node="n", process="p", op=f"abc{len(self.ended)}")
                if claim is not None:
                    reward = self._reward(job.job_id)
                    self._store.finish(claim, state="completed", finish_reason="stop", reward=reward, worked_s=0.1)
                    self.ended.append(job.job_id)


def differing(job_id: str) -> float:
    return float(job_id.split(":")[2])


def uniform(job_id: str) -> float:
    return 0.0


def test_prompts_are_drawn_only_as_the_service_asks_for_them(
    serve: Callable[..., Served], store: JobStore, settings: Settings
) -> None:
    prompts = Prompts()
    with Client(serve().url) as client, Fleet(store, settings, differing):
        groups = list(client.batch(BATCH, prompts))
        status = client.batches.status("b")
    assert len(groups) == 3
    assert all([result["reward"] for result in group.results] == [0.0, 1.0] for group in groups)
    assert status.state == "complete"
    # One page; the batch may have been complete before all of it was taken.
    assert prompts.drawn == 64 >= status.prompts


def test_a_loop_goes_on_when_the_api_is_killed_and_started_again(
    serve: Callable[..., Served], store: JobStore, settings: Settings
) -> None:
    first = serve()
    hold = threading.Event()

    def reward(job_id: str) -> float:
        if job_id.split(":")[1] == "1":
            assert hold.wait(60)
        return differing(job_id)

    with Client(first.url) as client, Fleet(store, settings, reward):
        loop = client.batch(BATCH, Prompts())
        seen = [next(loop).group_id]
        os.killpg(first.process.pid, signal.SIGKILL)
        first.process.wait(10)
        hold.set()
        again = Served(first.settings, port=first.port)
        try:
            again.ready()
            seen += [group.group_id for group in loop]
        finally:
            again.stop()
    assert len(seen) == len(set(seen)) == 3


@pytest.mark.parametrize("how", ["break", "exception"])
def test_a_loop_that_is_left_cancels_the_rest(
    serve: Callable[..., Served], store: JobStore, settings: Settings, how: str
) -> None:
    with Client(serve().url) as client:
        with Fleet(store, settings, differing):
            loop = client.batch(BATCH | {"target_groups": 50}, Prompts())
            if how == "break":
                for _ in loop:
                    break
                loop.close()
            else:
                with pytest.raises(ZeroDivisionError):
                    train(loop)
                loop.close()
        assert client.batches.status("b").state == "cancelled"
        assert client.batches.cancel("b").state == "cancelled"


def test_a_loop_that_is_left_with_its_last_group_keeps_what_is_carried_over(
    serve: Callable[..., Served], store: JobStore, settings: Settings
) -> None:
    body = BATCH | {"target_groups": 1, "on_target": "carry_over"}
    with Client(serve().url) as client, Fleet(store, settings, differing):
        loop = client.batch(body, Prompts())
        next(loop)
        loop.close()
        left = client.batches.status("b")
        assert (left.state, left.groups.revoked) == ("complete", 0)


def train(loop: Any) -> None:
    for _ in loop:
        raise ZeroDivisionError


def test_a_loop_ends_when_the_prompts_do(serve: Callable[..., Served], store: JobStore, settings: Settings) -> None:
    prompts = Prompts(end=5)
    with Client(serve().url) as client, Fleet(store, settings, uniform):
        assert list(client.batch(BATCH, prompts)) == []
        status = client.batches.status("b")
    assert (status.state, prompts.drawn, status.groups.uninformative) == ("exhausted", 5, 5)


def test_a_list_in_the_request_needs_no_iterator(
    serve: Callable[..., Served], store: JobStore, settings: Settings
) -> None:
    body = BATCH | {"target_groups": 1, "prompts": list(Prompts(end=3))}
    with Client(serve().url) as client, Fleet(store, settings, differing):
        assert len(list(client.batch(body))) == 1


def test_a_long_poll_returns_at_what_no_job_brings_about(serve: Callable[..., Served], raw_redis: redis.Redis) -> None:
    """Nothing runs; who waits is told of a cancel at once."""
    prompt = {"prompt_id": "p", "instance": {"data_source": "echo", "text": "1"}}
    channels = {batch_id: f"prorl:event:batch {batch_id}" for batch_id in ("w", "c")}
    with Client(serve().url) as client, ThreadPoolExecutor(2) as pool:
        for batch_id in channels:
            body = {"batch_id": batch_id, "target_groups": 1, "samples_per_group": 2, "prompts": [prompt]}
            client.batches.create(body)
        # Longer than the client waits for the test: only news can end it.
        waits = {batch_id: pool.submit(client.batches.groups, batch_id, wait=55.0) for batch_id in channels}
        for channel in channels.values():
            until(lambda channel=channel: raw_redis.pubsub_numsub(channel)[0][1], 20)  # type: ignore[misc]
        for batch_id in channels:
            client.batches.cancel(batch_id)
            assert waits[batch_id].result(25).state == "cancelled"


def test_prompts_are_sent_before_a_group_is_given_so_that_nothing_stands_idle_while_it_is_trained_on(
    serve: Callable[..., Served], store: JobStore, settings: Settings
) -> None:
    prompts = Prompts()
    body = BATCH | {"prompts": [next(iter(prompts))], "more_prompts": True}
    with Client(serve().url) as client, Fleet(store, settings, differing):
        client.batches.create(body)
        until(lambda: client.batches.status("b").groups.informative == 1, 30)
        loop = client.batch(body, prompts)
        next(loop)
        assert client.batches.status("b").prompts > 1
        loop.close()


def test_long_prompts_are_sent_in_pages_that_the_service_takes(
    serve: Callable[..., Served], store: JobStore, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "PAGE_BYTES", 30_000)
    long = (
        {"prompt_id": f"p{number}", "instance": {"data_source": "echo", "text": "ä" * 3_000}} for number in range(20)
    )
    with Client(serve(max_body_bytes=64_000).url) as client, Fleet(store, settings, differing):
        assert len(list(client.batch(BATCH, long))) == 3


def test_a_loop_that_nobody_works_for_ends_at_its_time_and_cancels(serve: Callable[..., Served]) -> None:
    with Client(serve().url) as client:
        with pytest.raises(TimeoutError, match=r"b is filling after 1\.5 s: 0 of 3 groups"):
            list(client.batch(BATCH, Prompts(), timeout=1.5))
        assert client.batches.status("b").state == "cancelled"
