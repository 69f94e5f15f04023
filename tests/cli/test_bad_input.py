"""What could never work is said in one line before anything is started."""

import os
import subprocess
from pathlib import Path

import pytest
from service import PRORL, clean_environment

from prorl_celery.cli.checks import check_worker
from prorl_celery.errors import SandboxUnavailable
from prorl_celery.node.places import run_dir_for
from prorl_celery.settings import Settings

HANDLER = "from prorl_celery.handlers.base import Handler\n\n\nclass Mine(Handler):\n    data_source = 'mine'\n"
TOKENS = "PRORL_API_TOKENS"


def prorl(place: Path, *arguments: str, **environ: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [PRORL, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=place,
        env=clean_environment(**environ),
        check=False,
    )


@pytest.mark.parametrize(
    ("options", "environ", "said"),
    [
        ((), {"PRORL_HANDLERS": "missing.py:Mine"}, "PRORL_HANDLERS: missing.py:Mine: "),
        ((), {"PRORL_HANDLERS": "mine.py:Nobody"}, "has no attribute 'Nobody'"),
        ((), {"PRORL_HANDLERS": "mine.py"}, "'mine.py' is not module:Class or file.py:Class"),
        ((), {"PRORL_HANDLERS": "mine.py:Handler"}, "Handler has no data_source"),
        ((), {"PRORL_HANDLERS": "os:path"}, "os:path: not a subclass of"),
        (("--scripted", "nonsense"), {}, "no policy 'nonsense'; there are solve, "),
        (("--scripted", "solve", "--oracle", "missing.jsonl"), {}, "missing.jsonl"),
        (("--scripted", "solve", "--latency", "soon"), {}, "the scripted backend: "),
        ((), {"PRORL_HOST": "0.0.0.0"}, "without PRORL_API_TOKENS anybody"),
        ((), {TOKENS: "junk"}, "entry 1 is not name:scopes:sha256"),
        ((), {"PRORL_PORT": "99999"}, "PRORL_PORT: 99999 is above the most allowed, 65535"),
        ((), {"PRORL_REWARD_URLS": "http://a/,scores:9000"}, "PRORL_REWARD_URLS: entry 2, 'scores:9000', is no http"),
        ((), {"PRORL_EVAL_SLOTS": "many"}, "PRORL_EVAL_SLOTS: 'many' is not a whole number"),
        ((), {"PRORL_SANDBOX": "bogus"}, "PRORL_SANDBOX: 'bogus' is none of auto, bubblewrap, singularity, local"),
        ((), {"PRORL_LOG_LEVEL": "bogus"}, "PRORL_LOG_LEVEL: 'bogus' is none of debug, info, warning, error"),
        (("--redis", "nonsense"), {}, "is no redis://, rediss://, unix:// or sentinel:// url"),
        (("--data-dir", "mine.py/data"), {}, "cannot make the directory"),
    ],
)
def test_up_starts_nothing_that_could_not_work(
    tmp_path: Path, options: tuple[str, ...], environ: dict[str, str], said: str
) -> None:
    (tmp_path / "mine.py").write_text(HANDLER)
    port = () if "PRORL_PORT" in environ else ("--port", "0")
    told = prorl(tmp_path, "up", *port, *options, **environ)
    assert told.returncode == 1, told.stderr
    assert said in told.stderr
    assert "Traceback" not in told.stderr
    assert "again in" not in told.stderr
    assert told.stdout == ""
    assert not run_dir_for(tmp_path / ".prorl").exists()


def test_a_handlers_own_error_shows_its_trace_once(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(HANDLER + "\nnobody_knows_this\n")
    told = prorl(tmp_path, "up", "--port", "0", PRORL_HANDLERS="mine.py:Mine")
    assert told.returncode == 1
    assert told.stderr.count("NameError: name 'nobody_knows_this' is not defined") == 1
    assert told.stderr.endswith("prorl: a handler cannot be loaded, see above; nothing was started\n")


def test_a_sandbox_user_that_is_not_there_is_said_when_root_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(SandboxUnavailable, match="the user 'nobody-at-all' does not exist"):
        check_worker(Settings(sandbox_user="nobody-at-all"))


@pytest.mark.parametrize("command", ["api", "worker", "flower"])
def test_the_parts_refuse_a_url_that_is_none_of_redis(tmp_path: Path, command: str) -> None:
    told = prorl(tmp_path, command, "--redis", "junk://:secret@host", PRORL_RUN_DIR=str(tmp_path / "run"))
    assert told.returncode == 1
    assert told.stderr == "prorl: PRORL_REDIS_URL (or --redis) is no redis://, rediss://, unix:// or sentinel:// url\n"


@pytest.mark.parametrize("command", ["api", "worker"])
def test_the_parts_refuse_a_reward_url_that_is_none(tmp_path: Path, command: str) -> None:
    told = prorl(tmp_path, command, PRORL_REWARD_URLS="ftp://scores/", PRORL_RUN_DIR=str(tmp_path / "run"))
    assert told.returncode == 1
    said = "entry 1, 'ftp://scores/', is no http or https url that names a server"
    assert told.stderr == f"prorl: PRORL_REWARD_URLS: {said}\n"


def test_submit_says_at_once_that_no_service_answers(tmp_path: Path) -> None:
    (tmp_path / "jobs.jsonl").write_text('{"data_source": "math", "problem": "1 + 1", "answer": "2"}\n')
    process = subprocess.Popen(
        [PRORL, "submit", "jobs.jsonl", "--url", "http://127.0.0.1:1"],
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env=clean_environment(),
    )
    try:
        assert process.stderr
        assert "no service answers at http://127.0.0.1:1" in process.stderr.readline()
    finally:
        process.kill()
        process.communicate()
