"""The Python client on the real API: one way through everything it can do."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from web_helpers import Served, a_job, run_to_its_end

from prorl_celery.client import ApiError, Client
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
