"""`prorl submit` of a table, through a whole service, scored by a server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from reward_stub import RewardStub
from service import Up


@pytest.mark.slow
def test_a_table_is_mapped_sent_scored_by_a_server_and_shaped(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    rows = [{"q": f"What is {number} + 1?", "a": {"x": str(number + 1)}} for number in range(3)]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "sums.parquet")
    (tmp_path / "map.toml").write_text('data_source = "math"\n[columns]\nproblem = "q"\nanswer = "a.x"\n')
    (tmp_path / "shaping.json").write_text('{"repetition": {"ngram": 1, "penalty": 0.25}}')
    options = ("--columns", "map.toml", "--samples", "2", "--reward-shaping", "shaping.json")
    with (
        RewardStub(lambda body: {"score": 0.5, "by": body["data_source"]}) as stub,
        Up(tmp_path / "data", "--scripted", "solve", cwd=tmp_path) as up,
    ):
        up.prorl("submit", "sums.parquet", *options, "--reward-url", stub.url, cwd=tmp_path)
        results = [json.loads(line) for line in (tmp_path / "sums.results.jsonl").read_text().splitlines()]
        shown = up.prorl("show", results[0]["job_id"])
    assert len(results) == 6
    assert sorted(body["ground_truth"] for body in stub.bodies) == sorted(2 * ["1", "2", "3"])
    for result in results:
        assert result["eval"]["raw_reward"] == 0.5
        assert result["eval"]["reward_server"]["said"] == {"by": "math"}
        assert result["reward"] == 0.5 + result["eval"]["reward_parts"]["repetition"]
        assert 0.25 < result["reward"] < 0.5
    assert "reward: raw" in shown
    assert "reward: repetition" in shown
