"""`prorl worker` alone: a node that comes, and goes without a trace."""

import json
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from service import PRORL, clean_environment, gone, parents, until

from prorl_celery.scheduling.nodes import NodeRegistry
from prorl_celery.settings import Settings

pytestmark = pytest.mark.e2e


@pytest.fixture
def environ(redis_url: str) -> Iterator[dict[str, str]]:
    with tempfile.TemporaryDirectory(prefix="prorl-t") as run:
        yield clean_environment(PRORL_REDIS_URL=redis_url, PRORL_RUN_DIR=run, PRORL_NODE="n1", PRORL_DRAIN="1")


def test_a_worker_comes_is_restarted_and_goes(
    environ: dict[str, str], redis_client: redis.Redis, tmp_path: Path
) -> None:
    nodes = NodeRegistry(redis_client, Settings.from_env({k: v for k, v in environ.items() if k.startswith("PRORL_")}))
    argv = [PRORL, "worker", "--stages", "init,eval", "--init", "3"]
    worker = subprocess.Popen(argv, env=environ, cwd=tmp_path, stderr=subprocess.DEVNULL)
    try:
        until(lambda: nodes.nodes() and len(nodes.nodes()[0]["processes"]) == 2, "both stages are there")
        [node] = nodes.nodes()
        assert node["node"] == "n1"
        assert {process["stage"]: process["slots"] for process in node["processes"]}["init"] == 3
        again = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=60, check=False)
        assert again.returncode == 1
        assert f"node name n1 on this machine ({environ['PRORL_RUN_DIR']}/n1) is in use" in again.stderr
        [before] = nodes.nodes()
        told = subprocess.run([PRORL, "restart", "--json"], env=environ, capture_output=True, timeout=240, check=True)
        assert json.loads(told.stdout) == {"pid": worker.pid, "state": "serving", "error": None, "outdated": []}
        [node] = nodes.nodes()
        assert node["boot"] == before["boot"], "the keeper was kept"
        assert node["pid"] != before["pid"]
        assert not {process["id"] for process in node["processes"]} & {process["id"] for process in before["processes"]}
        assert {process["stage"]: process["slots"] for process in node["processes"]}["init"] == 3
        tree = parents()
        children = [pid for pid, parent in tree.items() if parent == worker.pid]
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(60) == 0
    finally:
        worker.kill()
        worker.wait(60)
    assert gone(children)
    assert nodes.nodes() == []
