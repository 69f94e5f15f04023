"""What runs on a node, and what its programs are told."""

from pathlib import Path

import pytest

from prorl_celery.node.children import Command
from prorl_celery.node.services import environment, worker_units
from prorl_celery.node.upkeep import REPLACED
from prorl_celery.settings import Settings

SETTINGS = Settings(redis_url="redis://:hunter2@h/0", api_tokens=("a:read:" + "0" * 64,), rollout_processes=3)


def test_a_program_that_needs_no_secret_is_told_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRORL_REDIS_URL", "redis://:hunter2@h/0")
    told = environment(SETTINGS, secret=False)
    assert "hunter2" not in str(told)
    assert "PRORL_API_TOKENS" not in told
    assert Settings.from_env({k: v for k, v in told.items() if k.startswith("PRORL_")}).rollout_processes == 3
    assert environment(SETTINGS, secret=True)["PRORL_REDIS_URL"] == SETTINGS.redis_url


def test_a_node_runs_a_keeper_its_stages_and_an_upkeep() -> None:
    units = {unit.name: unit for unit in worker_units(SETTINGS)}
    assert list(units) == ["keeper", "init-0", "rollout-0", "rollout-1", "rollout-2", "eval-0", "upkeep", "solo-0"]
    assert set(units["keeper"].replaces) == set(units) - {"keeper"}
    assert all("keeper" in unit.after for name, unit in units.items() if name != "keeper")
    assert [name for name, unit in units.items() if unit.asked_by] == ["solo-0"]
    assert [name for name, unit in units.items() if unit.kept] == ["keeper"]
    assert units["upkeep"].replace_signal == REPLACED, "else each restart would tell the fleet that the node leaves"
    assert units["init-0"].stop_phase < units["upkeep"].stop_phase < units["keeper"].stop_phase


def test_a_node_may_serve_some_stages_and_no_process_is_without_a_slot() -> None:
    units = worker_units(SETTINGS.with_(rollout_slots=2), ["rollout"])
    assert [unit.name for unit in units] == ["keeper", "rollout-0", "rollout-1", "upkeep", "solo-0"]
    assert [unit.name for unit in worker_units(SETTINGS, ["eval"])] == ["keeper", "eval-0", "upkeep"]


def test_every_start_of_the_keeper_has_a_boot_id_of_its_own() -> None:
    keeper = worker_units(SETTINGS, logs=Path("/nowhere"))[0]
    commands = [keeper.start() for _ in range(2)]
    boots = [command.argv[-1] for command in commands if isinstance(command, Command)]
    assert len(set(boots)) == 2
    assert "-P" in commands[0].argv if isinstance(commands[0], Command) else False
