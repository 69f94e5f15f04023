"""`prorl up --flower`: Flower lists our workers and tasks, and changes nothing."""

from __future__ import annotations

import json
import select
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from e2e_service import running

from prorl_celery.errors import SettingsError
from prorl_celery.node.flower import check

WAIT_S = 30.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def until(true: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < deadline, f"not within {WAIT_S} s: {what}"
        select.poll().poll(100)


@pytest.mark.e2e
def test_flower_lists_our_workers_and_tasks(tmp_path: Path) -> None:
    port = free_port()

    def get(path: str) -> Any:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/{path}", timeout=10) as answer:
                return json.load(answer)
        except urllib.error.URLError:
            return {}  # not there yet

    with running(tmp_path / "data", "--scripted", "solve", "--flower", "--flower-port", str(port)) as service:
        until(lambda: len(get("workers")) >= 4, "Flower lists the workers, asked for no refresh")
        workers = get("workers")
        assert {name.partition(".")[0] for name in workers} == {"init-0", "rollout-0", "rollout-1", "eval-0"}
        assert {name.partition("@")[2] for name in workers} == {service.client.nodes()[0]["node"]}
        job = {
            "instance": {
                "data_source": "code",
                "instance_id": "x",
                "prompt": "p",
                "tests": [{"input": "", "output": ""}],
            }
        }
        job_id = service.client.submit(job).job_id
        service.client.wait(job_id, timeout=60)
        names = {"prorl.init", "prorl.rollout", "prorl.eval"}
        until(lambda: {task["name"] for task in get("tasks").values()} == names, "all three tasks are listed")
        tasks = get("tasks").values()
        until(lambda: {task["state"] for task in get("tasks").values()} == {"SUCCESS"}, "all three have succeeded")
        assert all(task["uuid"].startswith(f"{job_id}/") for task in tasks)
        stop = urllib.request.Request(
            f"http://127.0.0.1:{port}/api/worker/shutdown/{next(iter(workers))}", method="POST", data=b""
        )
        with pytest.raises(urllib.error.HTTPError, match="403") as refused:
            urllib.request.urlopen(stop, timeout=10)
        refused.value.close()


def test_flower_beyond_loopback_wants_a_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FLOWER_BASIC_AUTH", raising=False)
    check("127.0.0.1")
    check("::1")
    with pytest.raises(SettingsError, match="FLOWER_BASIC_AUTH=user:password"):
        check("0.0.0.0")
    monkeypatch.setenv("FLOWER_BASIC_AUTH", "me:hunter2")
    check("0.0.0.0")


@pytest.mark.parametrize("entries", ["", "me", "me:", ":hunter2", "me:hunter2,"])
def test_an_empty_password_is_none(monkeypatch: pytest.MonkeyPatch, entries: str) -> None:
    monkeypatch.setenv("FLOWER_BASIC_AUTH", entries)
    with pytest.raises(SettingsError, match="user:password"):
        check("0.0.0.0")
