"""A file of a million rows takes no more memory than a small one."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from service import PRORL, clean_environment


def checked(file: Path) -> tuple[dict[str, int], int]:
    """What `prorl submit --dry-run` says of a file, and its peak of resident memory in bytes."""
    process = subprocess.Popen(
        [PRORL, "submit", str(file), "--dry-run", "--json", "--samples", "4"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=clean_environment(),
    )
    assert process.stdout is not None
    told = json.loads(process.stdout.read())
    process.stdout.close()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return told, usage.ru_maxrss << 10


def a_file(path: Path, rows: int) -> Path:
    with path.open("w") as file:
        for number in range(rows):
            # One that is there again, in the middle and at the end of the file.
            name = number if number % (rows // 2) else 0
            instance = {"data_source": "mine", "instance_id": f"p{name}", "question": f"How much is {name}?"}
            file.write(json.dumps(instance) + "\n")
    return path


@pytest.mark.slow
def test_a_million_rows_are_checked_in_the_memory_of_ten_thousand(tmp_path: Path) -> None:
    few, small = checked(a_file(tmp_path / "few.jsonl", 10_000))
    many, large = checked(a_file(tmp_path / "many.jsonl", 1_000_000))
    assert (few["rows"], few["same_rows"], few["jobs"]) == (10_000, 1, 40_000)
    assert (many["rows"], many["same_rows"], many["jobs"]) == (1_000_000, 1, 4_000_000)
    assert large - small < 16 << 20
