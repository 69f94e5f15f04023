"""Taking replies apart: pure functions over text."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prorl_celery.llm.calls.base import Parsed
from prorl_celery.llm.calls.hermes import parse_hermes


def parse(text: str) -> Parsed:
    return parse_hermes(text, lambda n: f"id{n}")


def wrap(value: Any) -> str:
    return f"<tool_call>\n{json.dumps(value)}\n</tool_call>"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(st.tuples(st.text(min_size=1).filter(str.strip), st.dictionaries(st.text(), JSON)), max_size=4))
def test_what_was_written_as_calls_is_read_as_those_calls(calls: list[tuple[str, dict[str, Any]]]) -> None:
    text = "words " + "\n".join(wrap({"name": name, "arguments": arguments}) for name, arguments in calls)
    parsed = parse(text)
    assert [(call.name, call.arguments, call.error) for call in parsed.calls] == [
        (name.strip(), arguments, None) for name, arguments in calls
    ]
    assert parsed.content == "words"
    assert [call.id for call in parsed.calls] == [f"id{n}" for n in range(len(calls))]


@given(
    st.text()
    | st.lists(st.sampled_from(["<tool_call>", "</tool_call>", "<think>", "{", "}", '"name":', "x"])).map("".join)
)
def test_no_text_whatever_makes_it_raise_and_a_call_has_arguments_or_an_error(text: str) -> None:
    for call in parse(text).calls:
        assert (call.arguments is None) == (call.error is not None)
        json.dumps(call.to_message())


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ('{"name": "bash", "arguments": {"command": }', "not valid JSON"),
        ("ls -la", "not valid JSON"),
        ("", "not valid JSON"),
        ('["bash"]', "must be a JSON object, not a list"),
        ('{"arguments": {}}', '"name"'),
        ('{"name": 5, "arguments": {}}', '"name"'),
        ('{"name": "bash", "arguments": [1]}', "must be a JSON object, not a list"),
        ('{"name": "bash", "arguments": "ls"}', "not JSON"),
        ('{"name": "bash", "arguments": {"x": NaN}}', "NaN"),
        ('{"name": "bash", "arguments": {}} and then', "text after the JSON"),
        ('{"name": "bash", "arguments": ' + "[" * 100_000, "nested too deeply"),
        ('{"name": "bash", "arguments": {"n": ' + "9" * 5000 + "}}", "not valid JSON"),
        (r'{"name": "bash", "arguments": {"command": "echo \ud83d"}}', "half of a surrogate pair"),
        (r'{"name": "bash", "arguments": "{\"command\": \"\\udfff\"}"}', "half of a surrogate pair"),
    ],
)
def test_a_malformed_call_says_what_is_wrong_with_it(body: str, says: str) -> None:
    (call,) = parse(f"<tool_call>{body}</tool_call>").calls
    assert call.arguments is None
    assert call.error is not None
    assert says in call.error
    assert len(call.error) < 500


def test_a_whole_surrogate_pair_is_a_character() -> None:
    (call,) = parse(r'<tool_call>{"name": "bash", "arguments": {"command": "\ud83d\ude00"}}</tool_call>').calls
    assert call.arguments == {"command": "\N{GRINNING FACE}"}


def test_a_call_that_was_cut_short_says_so() -> None:
    (call,) = parse('<tool_call>{"name": "bash", "argum').calls
    assert call.error is not None
    assert "not finished" in call.error


def test_a_whole_call_without_its_end_tag_counts() -> None:
    (call,) = parse('<tool_call>{"name": "bash", "arguments": {}}').calls
    assert call.error is None
    first, second = parse('<tool_call>{"name": "a"}\n<tool_call>{"name": "b"}</tool_call>').calls
    assert (first.name, second.name) == ("a", "b")


def test_the_end_tag_within_a_string_does_not_end_the_call() -> None:
    command = "echo '</tool_call>' '<tool_call>'"
    (call,) = parse(wrap({"name": "bash", "arguments": {"command": command}})).calls
    assert call.arguments == {"command": command}


def test_arguments_given_as_text_of_an_object_are_read() -> None:
    (call,) = parse(wrap({"name": "bash", "arguments": '{"command": "ls"}'})).calls
    assert call.arguments == {"command": "ls"}


@pytest.mark.parametrize(
    ("text", "reasoning", "content", "calls"),
    [
        ("<think>\nhm\n</think>\n\nDone.", "hm", "Done.", 0),
        ("hm</think>Done.", "hm", "Done.", 0),
        ("<think>never closed <tool_call>{}</tool_call>", "never closed <tool_call>{}</tool_call>", "", 0),
        ("<think>a <tool_call>{}</tool_call></think>" + wrap({"name": "x"}), "a <tool_call>{}</tool_call>", "", 1),
        ("no thought", None, "no thought", 0),
        (wrap({"name": "x"}) + " later </think>", None, "later </think>", 1),
        ("<think></think>ok", "", "ok", 0),
    ],
)
def test_reasoning_is_kept_apart(text: str, reasoning: str | None, content: str, calls: int) -> None:
    parsed = parse(text)
    assert (parsed.reasoning, parsed.content, len(parsed.calls)) == (reasoning, content, calls)
