"""docs/data.md says what is so."""

from __future__ import annotations

import json
import re
from pathlib import Path

from prorl_celery.cli.jobsource import DATASETS
from prorl_celery.cli.submit import submit
from prorl_celery.data.columns import load_map
from prorl_celery.data.columns_known import KNOWN

PAGE = (Path(__file__).parents[2] / "docs" / "data.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_the_map_of_the_page_does_what_the_page_says(tmp_path: Path) -> None:
    [text] = blocks("toml")
    row, instance = blocks("json")
    (tmp_path / "map.toml").write_text(text)
    assert load_map(tmp_path / "map.toml")(json.loads(row)) == json.loads(instance)


def test_the_page_names_every_known_set_and_no_other_option() -> None:
    assert all(f"`{name}`" in PAGE for name in KNOWN)
    assert all(name in PAGE for name in DATASETS)
    known = {option for parameter in submit.params for option in parameter.opts}
    assert set(re.findall(r"--[a-z][a-z-]+", PAGE)) <= known
