"""What the other tests of this folder stand on: a service whose model says what the oracle's rows say."""

from __future__ import annotations

from typing import Any

SUMS = [
    {"data_source": "math", "instance_id": f"sum-{n}", "problem": f"How much is {n} and {n}?", "answer": str(2 * n)}
    for n in range(12, 20)
]


def rows() -> list[dict[str, Any]]:
    return [
        {
            "key": instance["instance_id"],
            "prompt": instance["problem"],
            "turns": [{"text": f"It is \\boxed{{{instance['answer']}}}."}],
            "wrong_turns": [{"text": "It is \\boxed{1}."}],
        }
        for instance in SUMS
    ]


def test_right_words_score_one_and_wrong_words_nought(kind_service: Any) -> None:
    with kind_service(rows()) as kind:
        right = kind.run(SUMS)
        assert kind.unlike(right, reward=1.0) == []
        assert [result.instance_id for result in right] == [instance["instance_id"] for instance in SUMS]
        assert kind.unlike(kind.run(SUMS, wrong=True), reward=0.0) == []
