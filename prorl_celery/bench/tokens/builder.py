"""What the tokens of a long conversation cost: 200 turns, 128k tokens, by the real trajectory and a real tokenizer.

A turn is what the engine sampled, put behind what is there; what was observed, rendered and encoded; and the next
prompt, written as JSON. All turns are of one size, so a turn that costs more than an earlier one does work again. The
times say how much, and the counts say of what: characters that the template rendered and ids that were encoded.

Writing the prompt copies all of it, a megabyte at the end; an engine that is told every id must be sent every id.
"""

from __future__ import annotations

import random
import time
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prorl_celery.bench.report import BenchFailed, Report, Table, median
from prorl_celery.jobs.turns import ids_array
from prorl_celery.llm.template import Message
from prorl_celery.llm.tokenizer import ChatTokenizer
from prorl_celery.llm.trajectory import Trajectory
from prorl_celery.testing import scripted_tokenizer_dir

FIGURES = (
    "turn_cost_ratio_200_to_10",
    "rendered_ratio_200_to_10",
    "encoded_ratio_200_to_10",
    "turn_cost_us_10",
    "turn_cost_us_50",
    "turn_cost_us_200",
    "prompt_text_us_200",
    "tokens_appended_per_s",
)
TURNS = 200
TOKENS = 128_000
SHOWN = (10, 50, 200)
NEIGHBOURS = 10
"""A turn's cost is the median of so many turns that end with it: one turn is half a millisecond."""
SAMPLED = 200
"""Tokens of a turn that the engine samples; the rest is observed."""
WORDS = ("return", "value", "def", "self.items", "error:", "line", "0x7f3a", "tests/test_core.py", "passed", "None")
OPENING: list[Message] = [
    {"role": "system", "content": "You mend programs."},
    {"role": "user", "content": "The tests fail. Mend the program."},
]
TOOLS = [{"type": "function", "function": {"name": "bash", "description": "Runs.", "parameters": {"type": "object"}}}]


class CountingTokenizer(ChatTokenizer):
    """Tells what it was made to do."""

    def __init__(self, directory: str | Path) -> None:
        self.characters = 0  # a tokenizer tries its template when it is made
        self.ids = 0
        super().__init__(directory)

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        add_generation_prompt: bool = True,
    ) -> str:
        text = super().render(messages, tools, add_generation_prompt=add_generation_prompt)
        self.characters += len(text)
        return text

    def encode(self, rendered: str, *, continues: bool = False) -> array[int]:
        ids = super().encode(rendered, continues=continues)
        self.ids += len(ids)
        return ids


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one turn. `text_s` is the part of `seconds` that wrote the prompt."""

    seconds: float
    text_s: float
    characters: int
    ids: int
    length: int


def builder(report: Report, rounds: int) -> None:
    """Build the conversation so many times, and take the median of each turn's costs. Raises `BenchFailed`."""
    runs = [conversation(seed) for seed in range(rounds)]
    costs = {turn: [_median_cost(run, turn) for run in runs] for turn in SHOWN}
    seconds, texts = ({turn: median(getattr(one, name) for one in costs[turn]) for turn in SHOWN} for name in TIMES)
    first, last = costs[SHOWN[0]][0], costs[SHOWN[-1]][0]
    report.figures |= {
        "turn_cost_ratio_200_to_10": median(_ratio(run) for run in runs),
        "rendered_ratio_200_to_10": last.characters / first.characters,
        "encoded_ratio_200_to_10": last.ids / first.ids,
        **{f"turn_cost_us_{turn}": seconds[turn] * 1e6 for turn in SHOWN},
        "prompt_text_us_200": texts[SHOWN[-1]] * 1e6,
        "tokens_appended_per_s": median(run[-1].length / sum(cost.seconds for cost in run) for run in runs),
    }
    columns = ("turn", "tokens so far", "µs", "of them for the prompt's text", "characters rendered", "ids encoded")
    rows = [
        (
            str(turn),
            float(runs[0][turn - 1].length),
            seconds[turn] * 1e6,
            texts[turn] * 1e6,
            float(costs[turn][0].characters),
            float(costs[turn][0].ids),
        )
        for turn in SHOWN
    ]
    report.tables.append(Table("what a turn costs as a conversation grows", columns, rows))


TIMES = ("seconds", "text_s")


def conversation(seed: int) -> list[Cost]:
    """The costs of its turns. Raises `BenchFailed` when the trajectory is not what went into it."""
    choose = random.Random(seed)
    tokenizer = CountingTokenizer(scripted_tokenizer_dir())
    sampled, observed = _material(tokenizer, choose)
    trajectory = Trajectory(tokenizer, TOOLS)
    trajectory.start(OPENING)
    costs = []
    kept = 0
    for _ in range(TURNS):
        tokenizer.characters = tokenizer.ids = 0
        began = time.perf_counter()
        text = trajectory.prompt_json()
        written = time.perf_counter()
        trajectory.add_sampled(sampled)
        held = trajectory.add_messages([{"role": "tool", "tool_call_id": "c0", "name": "bash", "content": observed}])
        ended = time.perf_counter()
        kept += len(sampled)
        if not held or text.count(",") + 1 + len(sampled) + len(trajectory.delta) != len(trajectory.ids):
            raise BenchFailed(f"after {kept} sampled tokens the trajectory holds {len(trajectory.ids)} ids")
        costs.append(Cost(ended - began, written - began, tokenizer.characters, tokenizer.ids, len(trajectory.ids)))
    if costs[-1].length < TOKENS:
        raise BenchFailed(f"{TURNS} turns came to {costs[-1].length} tokens, not {TOKENS}")
    return costs


def _material(tokenizer: ChatTokenizer, choose: random.Random) -> tuple[array[int], str]:
    """What each turn samples, without the end of turn that the template then writes, and what it observes."""
    ids = tokenizer.encode_plain(" ".join(choose.choices(WORDS, k=SAMPLED)))
    wanted = TOKENS // TURNS - SAMPLED
    words: list[str] = []
    while len(tokenizer.encode_plain(" ".join(words))) < wanted:
        words += choose.choices(WORDS, k=20)
    return ids_array(ids[:SAMPLED]), " ".join(words)


def _median_cost(run: Sequence[Cost], turn: int) -> Cost:
    near = sorted(run[turn - NEIGHBOURS : turn], key=lambda cost: cost.seconds)
    return near[len(near) // 2]


def _ratio(run: Sequence[Cost]) -> float:
    return _median_cost(run, SHOWN[-1]).seconds / _median_cost(run, SHOWN[0]).seconds
