"""`prorl batch`: what it lists and shows, how it follows a batch on a terminal and elsewhere, that it cancels."""

from __future__ import annotations

import select
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ptyprocess
import pytest
from service import PRORL, Up, clean_environment

from prorl_celery.client import Client

pytestmark = pytest.mark.e2e

HANDLER = '''
from prorl_celery.handlers.base import Handler


class Score(Handler):
    """A sample of the reward that the instance names for its number, once its gate is there."""

    data_source = "score"
    uses_sandbox = False

    def rollout(self, ctx):
        from pathlib import Path
        gate = ctx.instance.get("gate")
        while gate and not Path(gate).exists():
            ctx.cancel.wait(0.05)
        return {}

    def eval(self, ctx):
        return {"reward": ctx.instance["rewards"][int(ctx.job.job_id.rpartition(":")[2])]}
'''


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    folder = tmp_path_factory.mktemp("batches")
    (folder / "score.py").write_text(HANDLER)
    with Up(folder / "data", PRORL_HANDLERS=f"{folder}/score.py:Score") as service:
        yield service


@pytest.fixture
def client(up: Up) -> Iterator[Client]:
    with Client(up.url) as client:
        yield client


def fill(client: Client, batch_id: str, *prompts: Any, **fields: Any) -> None:
    """Ask for one group of two, of prompts that are their samples' rewards and perhaps the gate that they wait at."""
    body = [
        {
            "prompt_id": f"p{number}",
            "instance": {"data_source": "score", "rewards": rewards, "gate": gate and str(gate)},
        }
        for number, (rewards, gate) in enumerate(prompts)
    ]
    client.batches.create({"batch_id": batch_id, "target_groups": 1, "samples_per_group": 2, "prompts": body} | fields)


def watched(up: Up, batch_id: str, **environ: str) -> ptyprocess.PtyProcess:
    """`prorl batch watch` on a terminal."""
    command = [PRORL, "batch", "watch", batch_id, "--every", "0.2"]
    terminal = clean_environment(PRORL_URL=up.url, TERM="xterm", **environ)
    return ptyprocess.PtyProcess.spawn(command, env=terminal, dimensions=(24, 120))


def read_until(terminal: ptyprocess.PtyProcess, words: str | None, seconds: float = 30.0) -> str:
    """What it shows until these words come, or, for None, to its end."""
    deadline, said = time.monotonic() + seconds, ""
    while words is None or words not in said:
        assert time.monotonic() < deadline, said
        if select.select([terminal.fd], [], [], 0.5)[0]:
            try:
                said += terminal.read(65536).decode(errors="replace")
            except EOFError:
                assert words is None, said
                break
    return said


def test_a_batch_is_listed_and_shown_with_what_was_thrown_away(up: Up, client: Client) -> None:
    fill(client, "shown", ([1.0, 1.0], None), ([0.0, 0.0], None), ([0.0, 1.0], None))
    assert client.batches.status("shown", wait=30.0).state == "complete"
    header, *rows = [line.split("\t") for line in up.prorl("batch", "list").splitlines()]
    assert header == ["batch", "state", "groups", "live jobs"]
    assert ["shown", "complete", "1/1", "0"] in rows
    assert "shown" in [one["batch_id"] for one in up.json("batch", "list")["batches"]]
    told = up.prorl("batch", "show", "shown").splitlines()
    assert told[0].startswith("complete: 1 of 1 groups, 0 in flight, 0 jobs live, informative rate 0.33")
    assert {"informative\t1", "uniform_0\t1", "uniform_1\t1", "failed\t0", "thrown away\tseconds\ttokens"} < set(told)
    assert up.json("batch", "show", "shown")["waste"]["uniform"]["tokens"] == 0


def test_who_watches_elsewhere_than_on_a_terminal_gets_a_line_for_each_look(
    up: Up, client: Client, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    fill(client, "lines", ([0.0, 1.0], gate))
    watching = subprocess.Popen(
        [PRORL, "batch", "watch", "lines", "--every", "0.2"],
        stdout=subprocess.PIPE,
        text=True,
        env=clean_environment(PRORL_URL=up.url, PYTHONUNBUFFERED="1"),
    )
    assert watching.stdout
    assert watching.stdout.readline() == (
        "filling: 0 of 1 groups, 1 in flight, 2 jobs live, informative rate -, left about -\n"
    )
    gate.touch()
    said, _ = watching.communicate(timeout=30)
    assert watching.returncode == 0
    assert "complete: 1 of 1 groups, 0 in flight, 0 jobs live, informative rate 1.00, left about -\n" in said


def test_bars_follow_a_batch_on_a_terminal_until_it_has_ended(up: Up, client: Client, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    fill(client, "bars", ([1.0, 1.0], None), ([0.0, 1.0], gate))
    terminal = watched(up, "bars")
    read_until(terminal, "2/4")
    gate.touch()
    said = read_until(terminal, None)
    assert terminal.wait() == 0
    assert "1/1" in said
    assert "4/4" in said
    assert "informative rate 0.50" in said
    assert "thrown away" in said


def test_a_look_that_is_interrupted_leaves_the_batch_and_the_terminal_alone(
    up: Up, client: Client, tmp_path: Path
) -> None:
    fill(client, "left", ([0.0, 1.0], tmp_path / "never"))
    terminal = watched(up, "left")
    read_until(terminal, "0/2")
    terminal.sendintr()
    said = read_until(terminal, None)
    terminal.wait()
    assert "Traceback" not in said
    assert "\x1b[?25h" in said  # the cursor is shown again
    assert client.batches.status("left").state == "filling"
    assert up.prorl("batch", "cancel", "left") == "left is cancelled\n"
    assert client.batches.status("left", wait=30.0).state == "cancelled"
    assert up.prorl("batch", "cancel", "left") == "left is cancelled\n"


@pytest.mark.parametrize("command", ["show", "watch", "cancel"])
def test_a_batch_that_is_not_there_is_said_in_one_line(up: Up, command: str) -> None:
    told = subprocess.run(
        [PRORL, "batch", command, "nobody"],
        capture_output=True,
        text=True,
        timeout=60,
        env=clean_environment(PRORL_URL=up.url),
        check=False,
    )
    assert told.returncode == 1
    assert told.stderr.count("\n") == 1
    assert "no batch nobody" in told.stderr
    assert told.stdout == ""
