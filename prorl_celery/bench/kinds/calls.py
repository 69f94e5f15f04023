"""What asking others for a score adds to a bare call: a judge by `ask_model`, a reward server by `reward_url`.

The judge is asked in eval of a real service, where a call takes a slot of the backends' heap in Redis and gives it
back, beside a POST of the same prompt in the same process (`prorl_celery.bench.handlers.AskHandler`). The reward server
is asked as eval asks it, by the process's model loop, beside a POST of the same body. Both answer at once; all bare
calls keep their connection.
"""

from __future__ import annotations

import http.client
import json
from urllib.parse import urlsplit

from prorl_celery.bench.kinds.cost import in_turns
from prorl_celery.bench.kinds.reward_server import reward_server
from prorl_celery.bench.report import BenchFailed, Report, median
from prorl_celery.bench.service import bench_service, jobs_of
from prorl_celery.llm.loop import ModelLoop
from prorl_celery.rewards import remote
from prorl_celery.rewards.servers import RewardServers
from prorl_celery.sandbox.waiting import NeverCancelled
from prorl_celery.testing import ScriptedBackend

ASK_FIGURES = ("ask_model_ms", "ask_bare_ms", "ask_model_added_ms", "ask_model_over_bare")
REWARD_FIGURES = ("reward_url_ms", "reward_bare_ms", "reward_url_added_ms", "reward_url_over_bare")
CALL_SECONDS = 30.0
JOB_SECONDS = 120.0
SOLUTION = "Let us see. " * 200 + "\\boxed{42}"


def ask_model(report: Report, count: int) -> None:
    """So many calls of a judge, and as many bare ones in turns, within one eval."""
    with ScriptedBackend(policy="toy:1") as backend, bench_service("--rollout", "1", "--eval", "1") as service:
        service.register(backend)
        instance = {
            "data_source": "ask", "count": count, "url": backend.url, "model": backend.model,
            "tokenizer": str(backend.tokenizer_dir),
        }  # fmt: skip
        run = service.run(jobs_of(instance, 1), seconds=JOB_SECONDS)
        [result] = service.results(run)
        report.failed += run.failed
        if result.eval is None:
            raise BenchFailed(f"the job that asks failed: {result.error}")
        _figures(report, "ask_model", "ask_bare", result.eval["took_ms"])


def reward_url(report: Report, seconds: float) -> None:
    """Calls of a reward server, in turns with bare posts."""
    body = remote.body_of(SOLUTION, "42", "math")
    models, servers = ModelLoop(), RewardServers()
    with reward_server() as url, NeverCancelled() as never:
        place = urlsplit(url)
        connection = http.client.HTTPConnection(place.netloc, timeout=CALL_SECONDS)

        def ours() -> None:
            found = models.call(
                lambda: remote.score(
                    models.session, servers, url, body, seconds=CALL_SECONDS, call_seconds=CALL_SECONDS
                ),
                cancel=never,
                timeout=CALL_SECONDS,
            )
            if found.score != 1.0:
                raise BenchFailed(f"the reward server's score came as {found.score}")

        def bare() -> None:
            connection.request("POST", place.path, body=body, headers={"Content-Type": "application/json"})
            json.loads(connection.getresponse().read())

        try:
            _figures(report, "reward_url", "reward_bare", in_turns({"ours": ours, "bare": bare}, seconds))
        finally:
            connection.close()
            models.stop()


def _figures(report: Report, name: str, bare_name: str, took_ms: dict[str, list[float]]) -> None:
    ours, bare = median(took_ms["ours"]), median(took_ms["bare"])
    report.figures |= {
        f"{name}_ms": ours,
        f"{bare_name}_ms": bare,
        f"{name}_added_ms": ours - bare,
        f"{name}_over_bare": ours / bare,
    }
