"""`prorl handler`: what `new` writes works as it is; `try` runs one job here, tells how it went, and leaves nothing."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from e2e_service import eventually
from reward_stub import RewardStub

from prorl_celery.cli.handler import handler
from prorl_celery.errors import SettingsError
from prorl_celery.testing import ScriptedBackend

Try = Callable[..., Result]
PRORL = str(Path(sys.executable).with_name("prorl"))
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("PRORL_")}

ODD = """
import time
from prorl_celery.handlers.base import Handler

class Odd(Handler):
    data_source = "odd"

    def validate(self, instance):
        assert not instance.get("trips"), "it trips"

    def init(self, ctx):
        if ctx.instance.get("breaks"):
            raise LookupError("nothing of the kind")
        return {}

    def rollout(self, ctx):
        if "says" in ctx.instance:
            print(ctx.instance["says"])
            return {}
        open(ctx.instance["note"], "w").close()
        return {"answer": ctx.sandbox.shell.run("sleep 60", timeout=60.0).output}

    def eval(self, ctx):
        return {"reward": 1.0}
"""


def prorl(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [PRORL, "handler", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, env=ENVIRONMENT, capture_output=True, text=True, timeout=120)


def run_dirs() -> set[Path]:
    return set(Path(tempfile.gettempdir()).glob("prorl-try-*"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a new handler, `river`, and an odd one."""
    folder = tmp_path_factory.mktemp("new")
    made = prorl("new", "river", cwd=folder)
    assert made.returncode == 0, made.stderr
    (folder / "odd.py").write_text(ODD)
    return folder


@pytest.fixture
def try_here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Try:
    """`prorl handler try` in this process, which has all imported."""
    monkeypatch.chdir(folder)
    for name in os.environ.keys() - ENVIRONMENT.keys():
        monkeypatch.delenv(name)
    return lambda *arguments: CliRunner().invoke(handler, ["try", *map(str, arguments)])


def test_what_new_writes_runs_at_once(folder: Path) -> None:
    tried = prorl("try", "river.py", "river.json", "--oracle", "river.oracle.jsonl", cwd=folder)
    assert tried.returncode == 0, tried.stderr
    assert "completed, finish: reward 1.0, resolved true" in tried.stdout
    assert '-> bash {"command": "grep -oiw row text.txt | wc -l"}\n[bash]\n3\n' in tried.stdout


@pytest.mark.slow
def test_what_new_writes_passes_its_own_test(folder: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout
    assert "21 passed" in done.stdout


@pytest.mark.slow
def test_what_new_writes_is_clean(folder: Path) -> None:
    ruff = [sys.executable, "-m", "ruff", "check", "--config", "line-length = 120", "river.py", "test_river.py"]
    assert subprocess.run(ruff, cwd=folder, env=ENVIRONMENT, timeout=60).returncode == 0
    mypy = [sys.executable, "-m", "mypy", "--strict", "river.py"]
    done = subprocess.run(mypy, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout


def test_new_overwrites_nothing(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "lake.json").write_text("mine")
    made = prorl("new", "lake", "--dir", tmp_path, cwd=folder)
    assert made.returncode == 1
    assert f"{tmp_path / 'lake.json'} is there already; nothing was written" in made.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["lake.json"]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("River", "small letters"),
        ("a/b", "small letters"),
        ("x" * 41, "at most 40"),
        ("class", "means something in Python"),
        ("print", "means something in Python"),
        ("test_river", "taken for a test"),
        ("code", "a handler 'code' already"),
        ("json", "an installed module"),
        ("celery", "an installed module"),
    ],
)
def test_new_refuses_a_bad_name_and_says_why(name: str, why: str, tmp_path: Path) -> None:
    outcome = CliRunner().invoke(handler, ["new", name, "--dir", str(tmp_path)])
    assert isinstance(outcome.exception, SettingsError)
    assert why in str(outcome.exception)
    assert not list(tmp_path.iterdir())


def test_try_takes_samples_and_gives_json(try_here: Try) -> None:
    rows = ["--oracle", "river.oracle.jsonl", "--policy", "recite:0.5", "--samples", "6", "--json"]
    tried = try_here("river.py:RiverHandler", "river.json", *rows)
    assert tried.exit_code == 0, tried.stderr
    results = [json.loads(line) for line in tried.stdout.splitlines()]
    assert len(results) == 6
    assert {result["reward"] for result in results} == {0.0, 1.0}
    assert all(result["segments"][0]["loss_mask"] for result in results)


def test_what_a_handler_prints_does_not_stand_between_its_results(try_here: Try, tmp_path: Path) -> None:
    instance = tmp_path / "odd.json"
    instance.write_text(json.dumps({"data_source": "odd", "says": "Here I am."}))
    tried = try_here("odd.py", instance, "--json")
    assert [json.loads(line)["reward"] for line in tried.stdout.splitlines()] == [1.0]
    assert "Here I am." in tried.stderr


def test_try_has_a_reward_server_score(try_here: Try, folder: Path, tmp_path: Path) -> None:
    instance = tmp_path / "river.json"
    instance.write_text(json.dumps(json.loads((folder / "river.json").read_text()) | {"ground_truth": 3}))
    with RewardStub(lambda body: {"score": 0.25}) as stub:
        options = ["--oracle", "river.oracle.jsonl", "--reward-url", stub.url]
        tried = try_here("river.py", instance, *options)
        refused = try_here("river.py", "river.json", *options)
    assert tried.exit_code == 0, tried.stderr
    assert "completed, finish: reward 0.25" in tried.stdout
    assert [body["ground_truth"] for body in stub.bodies] == [3]
    assert refused.exit_code == 2
    assert "(field ground_truth)" in refused.stderr


@pytest.mark.slow
def test_try_runs_a_real_backend_too(folder: Path) -> None:
    with ScriptedBackend("recite", oracle=folder / "river.oracle.jsonl") as backend:
        real = ["--backend", backend.url, "--model", "scripted"]
        tokens = prorl("try", "river.py", "river.json", *real, "--tokenizer", backend.tokenizer_dir, cwd=folder)
        chat = prorl("try", "river.py", "river.json", *real, cwd=folder)
        assert backend.stats()["calls"] >= 4
    assert "reward 1.0" in tokens.stdout, tokens.stderr
    assert "reward 1.0" in chat.stdout, chat.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("river.py", "none.json"), "none.json"),
        (("river.py", "bad.json"), "field count"),
        (("river.py", "list.json"), "is a JSON object, not list"),
        (("river.py", "other.json"), "no handler for 'math'; there are: river"),
        (("none.py", "river.json"), "none.py"),
        (("river.py:Lake", "river.json"), "Lake"),
        (("river.py", "river.json", "--oracle", "none.jsonl"), "none.jsonl"),
        (("river.py", "river.json", "--policy", "recite:7"), "from 0 to 1"),
        (("river.py", "river.json", "--reward-url", "ftp://a/"), "field reward_url"),
        (("river.py", "river.json", "--backend", "http://127.0.0.1:9"), "--backend needs --model"),
        (("river.py", "river.json", "--backend", "http://127.0.0.1:9", "--model", "m"), "does not answer"),
    ],
)
def test_try_refuses_what_cannot_begin(
    arguments: tuple[str, ...], said: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    river = json.loads((folder / "river.json").read_text())
    for name, instance in {"bad": river | {"count": "x"}, "list": [], "other": river | {"data_source": "math"}}.items():
        (folder / f"{name}.json").write_text(json.dumps(instance))
    monkeypatch.chdir(folder)
    tried = CliRunner().invoke(handler, ["try", *arguments])
    assert tried.exit_code == 2, tried.output
    assert said in tried.stderr


def test_an_error_of_the_handler_is_told_with_its_trace(try_here: Try, tmp_path: Path) -> None:
    instance = tmp_path / "odd.json"
    instance.write_text(json.dumps({"data_source": "odd", "breaks": True}))
    tried = try_here("odd.py", instance)
    assert tried.exit_code == 1
    assert "error of kind handler in init: the handler's init raised LookupError: nothing of the kind" in tried.stderr
    assert 'raise LookupError("nothing of the kind")' in tried.stderr


def test_a_stage_whose_time_is_up_ends_the_job(try_here: Try, tmp_path: Path) -> None:
    instance = tmp_path / "odd.json"
    instance.write_text(json.dumps({"data_source": "odd", "note": str(tmp_path / "note")}))
    tried = try_here("odd.py", instance, "--timeout", "1.5")
    assert tried.exit_code == 3, tried.stderr
    # On a busy machine the sandbox alone may take as long.
    assert re.search(r"error of kind timeout in (init|rollout): \1 did not end within its 1.5 s", tried.stderr)


@pytest.fixture
def busy(folder: Path, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A `try` in the midst of its rollout, in a process group of its own."""
    note = tmp_path / "note"
    instance = tmp_path / "odd.json"
    instance.write_text(json.dumps({"data_source": "odd", "note": str(note)}))
    command = [PRORL, "handler", "try", "odd.py", str(instance)]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(command, cwd=folder, env=ENVIRONMENT, text=True, start_new_session=True, **pipes)
    try:
        assert eventually(note.exists, 60.0)
        yield process
    finally:
        process.kill()
        process.communicate(timeout=10)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow)]
)
def test_a_signal_ends_the_job_and_all_that_it_has(
    number: signal.Signals, code: int, busy: subprocess.Popen[str]
) -> None:
    (mine,) = [path for path in run_dirs() if path.name.split("-")[2] == str(busy.pid)]
    os.killpg(busy.pid, number)  # a terminal's Ctrl-C reaches all of the group
    _, said = busy.communicate(timeout=20)
    assert (busy.returncode, said) == (code, "prorl: stopped; nothing is left\n")
    assert not mine.exists()
    assert not _alive_in(busy.pid)


@pytest.mark.slow
def test_a_kill_leaves_no_process(busy: subprocess.Popen[str], folder: Path) -> None:
    (mine,) = [path for path in run_dirs() if path.name.split("-")[2] == str(busy.pid)]
    busy.kill()
    busy.communicate(timeout=10)
    assert eventually(lambda: not _with_text(str(mine)), 20.0)
    prorl("try", "river.py", "river.json", "--oracle", "river.oracle.jsonl", cwd=folder)
    assert not mine.exists()  # the next one tidies up behind it


def _alive_in(session: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except (FileNotFoundError, ProcessLookupError):
                continue
            state, _, _, own_session, *_ = stat[stat.rindex(")") + 2 :].split()
            if int(own_session) == session and state != "Z":
                found.append(int(entry.name))
    return found


def _with_text(text: str) -> list[str]:
    """Processes that have a text in their environment: the keeper is told its folder there."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and text.encode() in (entry / "environ").read_bytes():
                found.append(entry.name)
        except OSError:
            continue
    return found
