"""How the server of a prepared model is started, and what it gets to see."""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from prorl_celery.errors import ModelServerFailed, SettingsError
from prorl_celery.node.vllm.install import Prepared, places
from prorl_celery.node.vllm.server import ServerSpec, VllmServer, model_units
from prorl_celery.settings import Settings


@pytest.fixture
def spec(tmp_path: Path) -> ServerSpec:
    return ServerSpec(places("smollm2", tmp_path), 8101, tmp_path / "scratch")


def test_the_module_is_run_and_not_the_command_that_looks_for_another_distribution(spec: ServerSpec) -> None:
    argv = spec.argv()
    assert argv[:4] == [str(spec.prepared.python), "-P", "-m", "vllm.entrypoints.openai.api_server"]
    options = dict(pairwise(argv))
    assert options["--served-model-name"] == "smollm2"
    assert options["--host"] == "127.0.0.1"
    assert options["--port"] == "8101"
    assert options["--model"] == str(spec.prepared.model)
    assert int(options["--block-size"]) % 32 == 0


def test_the_routes_of_a_trainer_are_there_only_when_asked_for(spec: ServerSpec) -> None:
    opened = replace(spec, trainer_routes=True)
    assert [("--enable-scale-out" in one.argv()) for one in (spec, opened)] == [False, True]
    assert [one.environment({}).get("VLLM_SERVER_DEV_MODE") for one in (spec, opened)] == [None, "1"]


def test_it_sees_no_setting_no_secret_and_no_path_of_ours(spec: ServerSpec) -> None:
    ours = {"PRORL_REDIS_URL": "secret", "PYTHONPATH": "/mine", "AWS_SECRET": "x", "PATH": "/bin", "HOME": "/h"}
    environ = spec.environment(ours)
    assert not {"PRORL_REDIS_URL", "PYTHONPATH", "AWS_SECRET"} & set(environ)
    assert environ["PATH"] == f"{spec.prepared.python.parent}:/bin"
    assert environ["HOME"] == "/h"


def test_it_asks_no_hub_tells_nobody_and_writes_to_its_scratch_directory_alone(spec: ServerSpec) -> None:
    environ = spec.environment({})
    assert environ["HF_HUB_OFFLINE"] == environ["TRANSFORMERS_OFFLINE"] == "1"
    assert environ["VLLM_NO_USAGE_STATS"] == environ["DO_NOT_TRACK"] == "1"
    assert {environ[name] for name in ("TMPDIR", "XDG_CACHE_HOME", "HF_HOME")} == {str(spec.scratch)}


def test_the_backend_it_is_registered_as_has_the_model_s_directory_for_tokenizer(spec: ServerSpec) -> None:
    assert spec.backend()["tokenizer"] == str(spec.prepared.model)
    assert spec.backend()["url"] == "http://127.0.0.1:8101"
    assert spec.backend()["kind"] == "vllm"


def test_a_supervisor_gets_the_server_and_its_registration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prorl_celery.node.vllm.server.prepare", lambda name, data_dir, **_: places(name, data_dir))
    settings = Settings(data_dir=tmp_path, run_dir=tmp_path / "run", port=1)
    server, registration = model_units("smollm2", settings, token=None, logs=tmp_path / "logs", port=1)
    assert server.probe is not None
    assert set(registration.after) == {"api", server.name}
    assert registration.once
    assert registration.vital


def test_an_unknown_model_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="'gpt9': there is smollm2, tiny"):
        model_units("gpt9", Settings(data_dir=tmp_path), token=None, logs=tmp_path, port=1)


def test_a_server_that_ends_at_its_start_is_told_at_once_with_its_log(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!{sys.executable}\nprint('no such module')\nraise SystemExit(1)\n")
    python.chmod(0o755)
    log = tmp_path / "vllm.log"
    with pytest.raises(ModelServerFailed, match=r"ended at its start.*vllm\.log"):
        with VllmServer(Prepared("smollm2", python, tmp_path), log=log):
            pass
    assert "no such module" in log.read_text()
