"""The development stack and the pinned set agree with the project."""

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]


def stack() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.dev.yml").read_text())
    return loaded


def test_the_development_stack_runs_commands_that_exist() -> None:
    from prorl_celery.cli.main import COMMANDS

    services = stack()["services"]
    assert set(services) == {"redis", "install", "api", "worker", "flower"}
    for name in ("api", "worker", "flower"):
        binary, command = services[name]["command"].split()
        assert binary == "/env/bin/prorl"
        assert command in COMMANDS


def test_the_development_stack_sets_settings_that_exist() -> None:
    from prorl_celery.settings import Settings

    settings = Settings.from_env({str(k): str(v) for k, v in stack()["x-prorl"]["environment"].items()})
    published = stack()["services"]["redis"]["ports"][0]
    assert settings.redis_url == f"redis://{published.rpartition(':')[0]}/0"


def test_the_development_stack_waits_for_what_it_names() -> None:
    services = stack()["services"]
    for service in services.values():
        assert set(service.get("depends_on", {})) <= set(services)


def test_every_dependency_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pinned = set(re.findall(r"^([A-Za-z0-9._-]+)==", (ROOT / "requirements.txt").read_text(), re.MULTILINE))
    normal = {re.sub(r"[-_.]+", "-", name).lower() for name in pinned}
    wanted = project["dependencies"] + project["optional-dependencies"]["flower"]
    names = {re.sub(r"[-_.]+", "-", re.split(r"[<>=;\[ ]", line)[0]).lower() for line in wanted}
    assert names <= normal
    lines = [line for line in (ROOT / "requirements.txt").read_text().splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==\S+( ;.*)?", line) for line in lines)


def test_ci_is_a_script_that_bash_can_read() -> None:
    assert subprocess.run(["bash", "-n", ROOT / ".ci" / "run"], check=False).returncode == 0
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111
