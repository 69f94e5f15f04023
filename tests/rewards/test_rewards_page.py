"""docs/rewards.md says what is so."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from prorl_celery.jobs.models import JobRequest
from prorl_celery.rewards.answer import Score
from prorl_celery.rewards.shaping import overlong
from prorl_celery.settings import Settings, variable_of

PAGE = (Path(__file__).parents[2] / "docs" / "rewards.md").read_text()
Ask = Callable[..., Score]


def block(language: str) -> str:
    [found] = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    return str(found)


def test_the_job_of_the_page_is_one_and_its_numbers_are_those_of_the_table() -> None:
    shaping = JobRequest.model_validate_json(block("json"), strict=True).reward_shaping
    assert shaping is not None
    assert shaping.overlong is not None
    assert [overlong(length, shaping.overlong) for length in (12_288, 14_336, 16_384, 20_000)] == [0, -0.5, -1, -1]


def test_the_server_of_the_page_scores(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    space: dict[str, Any] = {"__name__": "server"}
    exec(compile(block("python"), "rewards.md", "exec"), space)
    monkeypatch.setattr(space["Scores"], "log_message", lambda *_: None)
    with ThreadingHTTPServer(("127.0.0.1", 0), space["Scores"]) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            found = ask(f"http://127.0.0.1:{server.server_port}/")
        finally:
            server.shutdown()
            thread.join(10)
    assert found == Score(0.0, {"data_source": "math"})


def test_the_settings_of_the_page_are_there_with_their_defaults() -> None:
    named = set(re.findall(r"PRORL_[A-Z_]+", PAGE))
    assert named <= {variable_of(field) for field in Settings.__dataclass_fields__.values()}
    assert json.dumps([Settings().reward_timeout_seconds, Settings().reward_wait_seconds]) == "[120.0, 600.0]"
