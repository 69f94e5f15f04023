"""The command itself: quick help, settings with sources, one line for an error."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from prorl_celery.cli.main import COMMANDS, forget_the_working_directory

SECRET = "redis://:hunter2@127.0.0.1:1/0"


def prorl(*arguments: str, cwd: Path | None = None, **environ: str) -> "subprocess.CompletedProcess[str]":
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PRORL_")}
    return subprocess.run(
        [Path(sys.executable).with_name("prorl"), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=cwd,
        env=kept | environ,
        check=False,
    )


def test_help_names_every_command_and_imports_nothing_heavy() -> None:
    program = (
        "import sys; from prorl_celery.cli.main import cli\n"
        "try: cli(['--help'], prog_name='prorl')\n"
        "except SystemExit: pass\n"
        "print([m for m in ('celery', 'redis', 'flask', 'pydantic', 'rich') if m in sys.modules])"
    )
    told = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    ).stdout
    assert all(name in told for name in COMMANDS)
    assert told.rstrip().endswith("[]")


def test_config_tells_values_and_sources_and_no_secret() -> None:
    told = prorl(
        "config", "--json", PRORL_REDIS_URL=SECRET, PRORL_API_TOKENS="a:read:" + "0" * 64, PRORL_EVAL_SLOTS="7"
    )
    shown = json.loads(told.stdout)
    assert shown["PRORL_EVAL_SLOTS"]["value"] == "7"
    assert shown["PRORL_EVAL_SLOTS"]["source"] == "PRORL_EVAL_SLOTS"
    assert shown["PRORL_INIT_SLOTS"]["source"] == "default"
    assert "hunter2" not in told.stdout
    assert "0" * 64 not in told.stdout


def test_a_misspelt_setting_is_an_error_that_names_it() -> None:
    told = prorl("config", PRORL_EVAL_SLOT="7")
    assert told.returncode == 1
    assert told.stderr == "prorl: PRORL_EVAL_SLOT: no such setting\n"


def test_the_variables_of_the_client_are_no_settings() -> None:
    assert prorl("config", PRORL_URL="http://x", PRORL_TOKEN="t").returncode == 0


def test_a_service_that_is_not_there_is_said_in_one_line() -> None:
    told = prorl("status", "--url", "http://127.0.0.1:1")
    assert told.returncode == 1
    assert "no service answers at http://127.0.0.1:1" in told.stderr
    assert "Traceback" not in told.stderr


def test_a_new_token_is_one_that_its_entry_lets_in() -> None:
    from web.auth import find_token, parse_entries

    told = dict(line.split(": ") for line in prorl("token", "new", "--name", "me").stdout.splitlines())
    found = find_token(parse_entries([told["entry"]]), told["token"])
    assert found is not None
    assert found.name == "me"


def test_doctor_gives_a_remedy_for_all_that_is_wrong() -> None:
    findings = json.loads(prorl("doctor", "--json").stdout)
    names = {finding["what"] for finding in findings}
    assert {"python", "redis", "bubblewrap", "apptainer", "open files, at most", "real model demo"} <= names
    assert {"memory limit", "CPU limit", "process limit", "user namespaces", "/proc", "kernels (ipykernel)"} <= names
    assert all(finding["remedy"] for finding in findings if finding["verdict"] != "ok")


@pytest.mark.parametrize("stages", ["rollout,nap", "", ","])
def test_unknown_stages_are_refused(stages: str) -> None:
    told = prorl("worker", "--stages", stages)
    assert told.returncode == 1
    assert "--stages takes some of init, rollout, eval" in told.stderr


def test_a_users_own_modules_in_the_working_directory_are_left_alone(tmp_path: Path) -> None:
    for name in ("tasks", "web", "celery", "redis", "json"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong module was imported')\n")
    program = "from prorl_celery.cli.main import forget_the_working_directory as f; f()\n"
    program += "from prorl_celery.node.services import warm; warm(); print('fine')"
    for options in (["-P"], []):
        told = subprocess.run(
            [sys.executable, *options, "-c", program],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        if not options:  # without -P the interpreter itself imports from there before we run: only ours must hold
            (tmp_path / "json.py").unlink(missing_ok=True)
            told = subprocess.run(
                [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
            )
        assert told.stdout == "fine\n", told.stderr


@pytest.mark.parametrize(("named", "last"), [(".", True), ("{here}", True), ("/somewhere:./", True), ("", False)])
def test_the_working_directory_is_imported_from_last_and_only_where_pythonpath_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str, last: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", named.format(here=tmp_path))
    monkeypatch.setattr(sys, "path", ["", str(tmp_path), "/ours"])
    forget_the_working_directory()
    assert sys.path == ["/ours", *([str(tmp_path)] if last else [])]


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "scripted-backend"])
def test_every_command_explains_itself(name: str) -> None:
    from click.testing import CliRunner

    from prorl_celery.cli.main import cli

    told = CliRunner().invoke(cli, [name, "--help"])
    assert told.exit_code == 0, told.output
    assert told.output.startswith("Usage:")
