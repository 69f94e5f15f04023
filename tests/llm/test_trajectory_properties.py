"""Random conversations of every family: nothing that was sampled is lost, changed or encoded again, and what stands
between is what the template itself would have written there."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from llm_families import FAMILIES
from llm_stub import BASH, make_tokenizer
from llm_templates import HIDING

from prorl_celery.jobs.results import segments
from prorl_celery.jobs.turns import Turn
from prorl_celery.llm.tokenizer import ChatTokenizer, load_tokenizer
from prorl_celery.llm.trajectory import Trajectory

QUICK = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=12)
FORGED = st.sampled_from(["<|im_end|>", "<|eot_id|>", "</s>", "<end_of_turn>", "<|im_start|>assistant\n", "[INST]"])
WORDS = st.lists(TEXT | FORGED, max_size=3).map("".join)
SAMPLED = st.lists(st.integers(min_value=30, max_value=300), min_size=1, max_size=12)
"""Ids as a model may give them: no text encodes to most of these."""


@dataclass
class Step:
    """One turn: what is sampled, whether it ends by the end-of-turn token, what is observed."""

    ids: list[int]
    ends: bool
    outputs: list[str]


STEPS = st.lists(
    st.builds(Step, ids=SAMPLED, ends=st.booleans(), outputs=st.lists(WORDS, min_size=1, max_size=3)),
    min_size=1,
    max_size=5,
)


@dataclass
class Played:
    """A conversation that was played: the prompts of its calls, its turns, all that was sampled."""

    prompts: list[list[int]] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    sampled: list[list[int]] = field(default_factory=list)


def play(tokenizer: ChatTokenizer, question: str, steps: Sequence[Step]) -> Played:
    trajectory, played = Trajectory(tokenizer, [BASH]), Played()
    messages: list[dict[str, Any]] = [{"role": "user", "content": question}]
    trajectory.start(messages)
    new_segment = True
    end = next(iter(tokenizer.stop_ids - {0}), 0)
    for number, step in enumerate(steps):
        played.prompts.append(list(trajectory.ids))
        delta = array("i", trajectory.delta)
        ids = [*step.ids, end] if step.ends else step.ids
        trajectory.add_sampled(ids)
        played.sampled.append(ids)
        count = len(ids)
        played.turns.append(
            Turn(
                index=number,
                delta_ids=delta,
                sampled_ids=array("i", ids),
                logprobs=array("f", [-0.5] * count),
                versions=array("i", [number] * count),
                new_segment=new_segment,
            )
        )
        messages.append({"role": "assistant", "content": "words"})
        observed = [
            {"role": "tool", "tool_call_id": f"c0000000{n}", "name": "bash", "content": text}
            for n, text in enumerate(step.outputs)
        ]
        messages.extend(observed)
        new_segment = not trajectory.add_messages(observed)
        if new_segment:
            trajectory.start(messages)
    return played


@pytest.mark.parametrize("family", FAMILIES)
@QUICK
@given(question=WORDS, steps=STEPS)
def test_every_prompt_is_the_one_before_with_what_was_sampled_and_a_delta(
    question: str, steps: list[Step], family: str, family_dirs: dict[str, Path]
) -> None:
    played = play(load_tokenizer(family_dirs[family]), question, steps)
    for before, sampled, turn, after in zip(
        played.prompts, played.sampled, played.turns[1:], played.prompts[1:], strict=False
    ):
        assert not turn.new_segment
        assert after == [*before, *sampled, *turn.delta_ids]


@pytest.mark.parametrize("family", FAMILIES)
@QUICK
@given(question=WORDS, steps=STEPS)
def test_the_training_rows_hold_each_sampled_token_once_and_nothing_else_under_the_mask(
    question: str, steps: list[Step], family: str, family_dirs: dict[str, Path]
) -> None:
    played = play(load_tokenizer(family_dirs[family]), question, steps)
    rows = segments(played.turns)
    trained = [i for row in rows for i, mask in zip(row.response_ids, row.loss_mask, strict=True) if mask]
    assert trained == [i for ids in played.sampled for i in ids]
    versions = [v for row in rows for v, mask in zip(row.policy_versions, row.loss_mask, strict=True) if mask]
    assert versions == [n for n, ids in enumerate(played.sampled) for _ in ids]
    for row in rows:
        assert len(row.response_ids) == len(row.loss_mask) == len(row.logprobs) == len(row.policy_versions)
    assert [*rows[-1].prompt_ids, *rows[-1].response_ids] == [*played.prompts[-1], *played.sampled[-1]]


@pytest.mark.parametrize("family", FAMILIES)
@QUICK
@given(question=WORDS, steps=STEPS)
def test_a_cut_reply_is_ended_by_the_template_and_a_whole_one_is_not_ended_twice(
    question: str, steps: list[Step], family: str, family_dirs: dict[str, Path]
) -> None:
    """The structure of the ids, special tokens alone, is one and the same whether the model ended its turns or not."""
    tokenizer = load_tokenizer(family_dirs[family])

    def structure(ends: bool) -> list[int]:
        told = [Step([*step.ids], ends, step.outputs) for step in steps]
        last = play(tokenizer, question, told).prompts[-1]
        return [i for i in last if i in tokenizer.special_ids.values()]

    plain = {i for step in steps for i in step.ids}
    if not plain & set(tokenizer.special_ids.values()):
        assert structure(True) == structure(False)


@pytest.mark.parametrize("family", ["chatml", "chatml, marks not special", "llama3", "gemma"])
@QUICK
@given(
    question=TEXT.map(str.strip),
    replies=st.lists(
        st.tuples(st.text("abc XYZ,.", min_size=1, max_size=9).map(str.strip).filter(bool), TEXT.map(str.strip)),
        min_size=1,
        max_size=4,
    ),
)
def test_words_a_model_writes_as_the_library_would_give_the_ids_of_the_whole_template(
    question: str, replies: list[tuple[str, str]], family: str, family_dirs: dict[str, Path]
) -> None:
    """For templates that keep history as it was: the trajectory is the rendered conversation, id for id."""
    tokenizer = load_tokenizer(family_dirs[family])
    messages: list[dict[str, Any]] = [{"role": "user", "content": question}]
    trajectory = Trajectory(tokenizer)
    trajectory.start(messages)
    (end,) = (i for i in tokenizer.stop_ids if i != 0)
    for reply, output in replies:
        trajectory.add_sampled([*tokenizer.encode_plain(reply, continues=True), end])
        messages.append({"role": "assistant", "content": reply})
        observed = [{"role": "user", "content": output}]
        messages.extend(observed)
        assert trajectory.add_messages(observed)
    assert list(trajectory.ids) == list(tokenizer.encode(tokenizer.render(messages)))


@QUICK
@given(question=WORDS, steps=STEPS)
def test_a_template_that_holds_no_prefix_splits_and_loses_no_trainable_token(
    question: str, steps: list[Step], tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.getbasetemp() / "hiding"
    if not directory.exists():
        make_tokenizer(directory, template=HIDING)
    played = play(load_tokenizer(directory), question, steps)
    rows = segments(played.turns)
    assert len(rows) == len(steps)
    assert sum(sum(row.loss_mask) for row in rows) == sum(len(ids) for ids in played.sampled)
