"""The house's plan holds: a room imports only the rooms it may."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

MAY_IMPORT: dict[str, set[str]] = {
    "store": set(),
    "jobs": {"store"},
    "scheduling": {"store", "jobs"},
    "llm": {"jobs", "sandbox"},
    "sandbox": set(),
    "images": {"sandbox"},
    "search": set(),
    "tools": {"sandbox", "search"},
    "grading": {"sandbox"},
    "rewards": {"jobs"},
    "data": {"jobs"},
    "agents": {"llm", "tools", "jobs", "sandbox"},
    "handlers": {"agents", "data", "grading", "images", "llm", "sandbox", "tools", "jobs"},
    "client": {"jobs"},
    "checking": {"store", "jobs", "node", "sandbox", "scheduling"},
}
"""The rooms of the library that others build on. `jobs` to the middle rooms are its models, `sandbox` to llm and agents
the cancel signal's protocol. What starts and joins things (`node`, `testing`, `bench`, `cli`) may import all."""

ONLY_MODELS = {"data", "rewards", "llm", "agents", "handlers", "client", "scheduling"}
MODELS = ("prorl_celery.jobs.models", "prorl_celery.jobs.batch_models", "prorl_celery.jobs.turns")


def imports_of(path: Path) -> set[str]:
    """The modules that a file imports, absolute names."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


@pytest.mark.parametrize("room", sorted(MAY_IMPORT))
def test_a_room_imports_only_what_it_may(room: str) -> None:
    wrong = []
    for path in sorted((ROOT / "prorl_celery" / room).rglob("*.py")):
        for name in imports_of(path):
            parts = name.split(".")
            if parts[0] in {"tasks", "web"}:
                wrong.append(f"{path.name}: {name}")
            if parts[0] != "prorl_celery" or len(parts) < 2 or not (ROOT / "prorl_celery" / parts[1]).is_dir():
                continue
            if parts[1] != room and parts[1] not in MAY_IMPORT[room]:
                wrong.append(f"{path.name}: {name}")
            if parts[1] == "jobs" and room in ONLY_MODELS and name not in MODELS:
                wrong.append(f"{path.name}: {name} is more than the models")
    assert not wrong


@pytest.mark.parametrize(("room", "other"), [("tasks", "web"), ("web", "tasks")])
def test_the_stages_and_the_api_do_not_know_each_other(room: str, other: str) -> None:
    paths = sorted((ROOT / room).rglob("*.py"))
    assert paths
    assert not [path.name for path in paths for name in imports_of(path) if name.split(".")[0] == other]


def test_nothing_is_pickled() -> None:
    places = [p for top in ("prorl_celery", "tasks", "web") for p in (ROOT / top).rglob("*.py")]
    assert not [path for path in places if imports_of(path) & {"pickle", "cloudpickle", "dill", "marshal"}]
