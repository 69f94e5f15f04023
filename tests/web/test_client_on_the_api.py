"""The Python client on the real API: one way through everything it can do."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from redis_fixtures import claim
from web_helpers import Served, a_job, run_to_its_end

from prorl_celery.client import ApiError, Client
from prorl_celery.jobs.messages import Message
from prorl_celery.jobs.models import JobError
from prorl_celery.jobs.store import JobStore
from web.auth import new_token


def test_a_trainer_submits_waits_reads_and_cancels(serve: Callable[..., Served], store: JobStore) -> None:
    token, entry = new_token("trainer", ["submit", "read", "admin"])
    api = serve(api_tokens=(entry,))
    with Client(api.url, token=token) as client:
        one = client.submit(a_job("one"))
        many = client.submit([a_job(f"j{i}") for i in range(3)])
        assert (one.state, [job.job_id for job in many]) == ("queued", ["j0", "j1", "j2"])
        runner = threading.Thread(target=run_to_its_end, args=(store, "one"), kwargs={"reward": 0.25})
        runner.start()
        assert client.wait("one", timeout=60).state == "completed"
        runner.join(20)
        assert client.result("one").reward == 0.25
        assert client.cancel("j0").state == "cancelled"
        page = client.results_page()
        assert [result.job_id for result in page.results] == ["one", "j0"]
        run_to_its_end(store, "j1")
        assert [result.job_id for result in client.results(page.next, timeout=2)] == ["j1"]
        with pytest.raises(ApiError) as running:
            client.result("j2")
        with pytest.raises(ApiError) as unknown:
            client.status("nobody")
        with pytest.raises(ApiError) as wrong:
            client.submit(a_job("j3", priority=99))
        assert (running.value.status, unknown.value.status, wrong.value.status) == (409, 404, 422)
        assert set(wrong.value.fields) == {"priority"}
        assert client.add_backend("http://127.0.0.1:9", "m", kind="chat")["state"] == "down"
        assert [backend["url"] for backend in client.backends()] == ["http://127.0.0.1:9"]
        assert client.remove_backend("http://127.0.0.1:9")["mode"] == "drain"
        assert client.service_status()["jobs"]["queued"] == 1
        assert client.nodes() == []
    with Client(api.url) as stranger, pytest.raises(ApiError) as refused:
        stranger.status("one")
    assert refused.value.status == 401


def test_an_operator_lists_dead_letters_retries_and_drains(serve: Callable[..., Served], store: JobStore) -> None:
    with Client(serve().url) as client:
        for number in range(3):
            client.submit(a_job(f"d{number}", max_attempts=1))
            held = claim(store, Message("init", "init", f"d{number}", 0, 5))
            error = JobError(kind="sandbox", stage="init", message="no", retryable=True)
            assert store.fail(held, error, worked_s=0) is None
        assert sorted(job.job_id for job in client.dead()) == ["d0", "d1", "d2"]
        assert client.retry("d1").state == "queued"
        with pytest.raises(ApiError) as again:
            client.retry("d1")
        assert again.value.status == 409
        assert sorted(job.job_id for job in client.dead()) == ["d0", "d2"]
        with pytest.raises(ApiError) as nowhere:
            client.drain("nowhere")
        assert nowhere.value.status == 404


def test_events_are_followed_over_a_restart_of_the_api(serve: Callable[..., Served], store: JobStore) -> None:
    api = serve()
    with Client(api.url) as client:
        client.submit(a_job("a"))
        events = client.events("a", timeout=60)
        assert [next(events).data["state"]] == ["queued"]
        init = claim(store, Message("init", "init", "a", 0, 5))
        assert next(events).data["state"] == "running"
        api.process.kill()
        api.process.wait(10)
        message = store.commit(init, {}, next_stage="rollout", queue="rollout", worked_s=0)
        again = Served(api.settings, port=api.port).ready()
        try:
            rollout = claim(store, message)
            store.finish(rollout, state="completed", finish_reason="stop", worked_s=0)
            rest = list(events)
        finally:
            again.stop()
    assert [(event.name, event.data.get("state")) for event in rest] == [
        ("stage", "queued"),
        ("stage", "running"),
        ("ended", "completed"),
    ]
    assert [event.number for event in rest] == [2, 3, 4]


def test_who_follows_a_job_for_longer_than_told_is_timed_out(serve: Callable[..., Served]) -> None:
    with Client(serve().url) as client:
        client.submit(a_job("a"))
        with pytest.raises(TimeoutError, match="within 1 s"):
            list(client.events("a", timeout=1.0))


def test_a_body_that_is_too_large_is_refused_at_once(serve: Callable[..., Served]) -> None:
    with Client(serve(max_body_bytes=1 << 20).url, patience=0.0) as client:
        for _ in range(5):
            with pytest.raises(ApiError, match="1048576 bytes") as refused:
                client.submit({"instance": {"data_source": "echo", "text": "x" * (8 << 20)}})
            assert refused.value.status == 413
        assert client.submit(a_job("b")).state == "queued"
