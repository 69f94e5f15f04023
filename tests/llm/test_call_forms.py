"""Each form of tool calls as its models write it, whole and broken, and which form a template speaks."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llm_stub import BASH, CHATML
from llm_templates import GEMMA, LLAMA3, MISTRAL, QWEN3

from prorl_celery.llm.calls.base import _PART_CHARS, Parsed, decode_at
from prorl_celery.llm.calls.forms import FORMS, form_of

TYPED = {
    "type": "function",
    "function": {
        "name": "edit",
        "parameters": {
            "type": "object",
            "properties": {
                "path": {"type": "string"},
                "line": {"type": "integer"},
                "range": {"type": "array", "items": {"type": "integer"}},
                "force": {"type": "boolean"},
            },
        },
    },
}


def parse(form: str, text: str) -> Parsed:
    return FORMS[form](text, lambda n: f"id{n}", [BASH, TYPED])


def read(form: str, text: str) -> list[tuple[str, Any]]:
    return [(call.name, call.arguments) for call in parse(form, text).calls]


LS = [("bash", {"command": "ls"})]
TWO = [("bash", {"command": "ls"}), ("edit", {"path": "a", "line": 3})]


@pytest.mark.parametrize(
    ("form", "text", "calls"),
    [
        (
            "qwen_xml",
            "<tool_call>\n<function=bash>\n<parameter=command>\nls\n</parameter>\n</function>\n</tool_call>",
            LS,
        ),
        ("qwen_xml", "<function=bash><parameter=command>ls</parameter></function>", LS),
        (
            "qwen_xml",
            "<tool_call><function=bash><parameter=command>\nls\n</parameter></function></tool_call>\n"
            "<tool_call><function=edit><parameter=path>a</parameter><parameter=line>3</parameter></function></tool_call>",
            TWO,
        ),
        ("llama", '{"name": "bash", "parameters": {"command": "ls"}}', LS),
        ("llama", '<|python_tag|>{"name": "bash", "parameters": {"command": "ls"}}', LS),
        ("llama", '{"name": "bash", "arguments": {"command": "ls"}}', LS),
        (
            "llama",
            '{"name": "bash", "parameters": {"command": "ls"}}; '
            '{"name": "edit", "parameters": {"path": "a", "line": 3}}',
            TWO,
        ),
        ("pythonic", '[bash(command="ls")]', LS),
        ("pythonic", "<|python_start|>[bash(command='ls'), edit(path='a', line=3)]<|python_end|>", TWO),
        ("mistral", '[TOOL_CALLS] [{"name": "bash", "arguments": {"command": "ls"}, "id": "123456789"}]', LS),
        ("mistral", '[TOOL_CALLS]bash[ARGS]{"command": "ls"}', LS),
        ("mistral", '[TOOL_CALLS]bash[CALL_ID]123456789[ARGS]{"command": "ls"}', LS),
        ("mistral", '[TOOL_CALLS]bash[ARGS]{"command": "ls"}[TOOL_CALLS]edit[ARGS]{"path": "a", "line": 3}', TWO),
        (
            "mistral",
            '[TOOL_CALLS] [{"name": "bash", "arguments": {"command": "ls"}}, '
            '{"name": "edit", "arguments": {"path": "a", "line": 3}}]',
            TWO,
        ),
    ],
)
def test_calls_are_read_as_their_models_write_them(form: str, text: str, calls: list[Any]) -> None:
    parsed = parse(form, text)
    assert [(call.name, call.arguments) for call in parsed.calls] == calls
    assert [call.id for call in parsed.calls] == [f"id{n}" for n in range(len(calls))]
    assert parsed.content == ""
    assert all(call.error is None and call.raw for call in parsed.calls)


@pytest.mark.parametrize(
    ("form", "text", "says"),
    [
        ("qwen_xml", "<tool_call><function=bash><parameter=command>ls", "</parameter> is missing"),
        ("qwen_xml", "<tool_call><function=bash><parameter=command>ls</parameter>", "</function> is missing"),
        ("qwen_xml", "<function=bash>words<parameter=command>ls</parameter></function>", "</function> is missing"),
        ("qwen_xml", "<function=><parameter=command>ls</parameter></function>", "has no name"),
        ("qwen_xml", "<function=edit><parameter=line>three</parameter></function>", "'line' of 'edit' must be JSON"),
        ("qwen_xml", '<tool_call>{"name": "bash"}</tool_call>', "holds no <function="),
        ("llama", '<|python_tag|>print("hi")', "not valid JSON"),
        ("llama", '{"name": "bash", "parameters": {"command": "ls"', "not valid JSON"),
        ("llama", '{"name": "bash", "parameters": [1]}', "must be a JSON object, not a list"),
        ("llama", '{"name": "bash", "parameters": {}} and more', "text after the JSON"),
        ("llama", "<|python_tag|>", "nothing after"),
        ("llama", '{"name": "bash", "parameters": {"timeout": -1e999}}', "too large a number"),
        ("hermes", '<tool_call>{"name": "bash", "arguments": {"timeout": 1E400}}</tool_call>', "too large a number"),
        ("pythonic", "[" + "a." * 300 + "b(x=1), (lambda: 1)()]", "is not a call"),
        ("pythonic", '[bash("ls")]', "must be given by name"),
        ("pythonic", "[bash(command=open('x'))]", "not a literal"),
        ("pythonic", "[bash(command={1, 2})]", "not a literal that JSON has"),
        ("pythonic", "[bash(command=1e999)]", "not a literal that JSON has"),
        ("pythonic", r"[bash(command='\ud83d')]", "not a literal that JSON has"),
        ("pythonic", "[bash(command='ls'", "not valid Python"),
        ("pythonic", "[bash(x=" + "(" * 5000, "not valid Python"),
        ("pythonic", "[bash(**{'command': 'ls'})]", "must be given by name"),
        ("pythonic", "[bash(command='ls'), 3]", "is not a call"),
        ("mistral", '[TOOL_CALLS] [{"name": "bash", "arguments": {"command": ', "not valid JSON"),
        ("mistral", '[TOOL_CALLS] [{"arguments": {}}]', '"name"'),
        ("mistral", "[TOOL_CALLS] []", "is empty"),
        ("mistral", '[TOOL_CALLS] [{"name": "bash", "arguments": {}}] words', "text after the tool calls"),
        ("mistral", "[TOOL_CALLS]", "nothing after"),
        ("mistral", '[TOOL_CALLS]bash{"command": "ls"}', "no name before [ARGS]"),
        ("mistral", '[TOOL_CALLS][ARGS]{"command": "ls"}', "no name before [ARGS]"),
        ("mistral", '[TOOL_CALLS]bash[ARGS]{"command": ', "not valid JSON"),
        ("mistral", '[TOOL_CALLS]bash[ARGS]{"command": "ls"} words', "text after the tool calls"),
    ],
)
def test_a_malformed_call_of_each_form_says_what_is_wrong(form: str, text: str, says: str) -> None:
    broken = [call for call in parse(form, text).calls if call.arguments is None]
    assert broken
    assert says in str(broken[-1].error)
    assert len(str(broken[-1].error)) < 600


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("llama", 'The answer is {"name": "bash"}.'),
        ("llama", '{"answer": 3}'),
        ("llama", '{"name": "Alice", "age": 3}'),
        ("pythonic", "[1, 2, 3]"),
        ("pythonic", "[see above] bash(command='ls')"),
        ("pythonic", "I would call bash(command='ls')"),
        ("mistral", 'Use [{"name": "bash"}]'),
        ("qwen_xml", "a < b"),
        ("hermes", "no call"),
    ],
)
def test_words_are_no_calls(form: str, text: str) -> None:
    parsed = parse(form, text)
    assert (parsed.content, parsed.calls) == (text, ())


def test_a_value_may_hold_the_tags_of_its_form() -> None:
    command = "echo '</parameter>' '</function>' '<parameter=x>' '[TOOL_CALLS]' ';'"
    text = f"<function=bash><parameter=command>\n{command}\n</parameter></function>"
    assert read("qwen_xml", text) == [("bash", {"command": command})]
    written = json.dumps({"command": command})
    assert read("mistral", f"[TOOL_CALLS]bash[ARGS]{written}") == [("bash", {"command": command})]
    assert read("llama", f'{{"name": "bash", "parameters": {written}}}') == [("bash", {"command": command})]
    assert read("pythonic", f"[bash(command={command!r})]") == [("bash", {"command": command})]


def test_the_schema_says_which_values_are_text() -> None:
    text = (
        "<function=edit><parameter=path>12</parameter><parameter=line> 3 </parameter><parameter=range>[1, -1]"
        "</parameter><parameter=force>True</parameter><parameter=other>5</parameter></function>"
    )
    assert read("qwen_xml", text) == [
        ("edit", {"path": "12", "line": 3, "range": [1, -1], "force": True, "other": "5"})
    ]


def test_reasoning_and_words_stand_beside_the_calls() -> None:
    parsed = parse(
        "qwen_xml", "<think>a <function=x> b</think>I look.<tool_call><function=bash></function></tool_call>"
    )
    assert (parsed.reasoning, parsed.content, len(parsed.calls)) == ("a <function=x> b", "I look.", 1)
    parsed = parse("mistral", '<think>hm</think>I look.[TOOL_CALLS]bash[ARGS]{"command": "ls"}')
    assert (parsed.reasoning, parsed.content, len(parsed.calls)) == ("hm", "I look.", 1)


PIECES = [
    "<tool_call>", "</tool_call>", "<function=", "bash", ">", "<parameter=command>", "</parameter>", "</function>",
    "<|python_tag|>", '{"name": "bash", ', '"parameters": {}', "}", ";", "[bash(", "command=", "'x'", ")]",
    "[TOOL_CALLS]", "[ARGS]", "[{", "}]", "<think>", "</think>", "\n", " ", "\ud83d",
]  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
@given(text=st.text(max_size=60) | st.lists(st.sampled_from(PIECES), max_size=14).map("".join))
def test_nothing_makes_a_form_raise_and_a_call_has_arguments_or_an_error(form: str, text: str) -> None:
    parsed = parse(form, text)
    for call in parsed.calls:
        assert (call.arguments is None) == (call.error is not None)
        json.dumps(call.to_message())


@pytest.mark.parametrize("form", FORMS)
def test_a_reply_of_a_million_characters_is_read_in_one_pass(form: str) -> None:
    for piece in ("<tool_call>", "<function=x>", "<parameter=x>", '{"name": "', "[x(", "[TOOL_CALLS]", "</parameter>"):
        parse(form, piece * (400_000 // len(piece)))


@pytest.mark.parametrize(
    ("form", "begin", "piece"),
    [
        ("hermes", "", "<tool_call>{}"),
        ("hermes", "", '<tool_call>{"name": "a"}'),
        ("hermes", "", "<tool_call>\n{x\n</tool_call>\n"),
        ("qwen_xml", "", "<function=a>"),
        ("qwen_xml", "", "<function="),
        ("llama", "<|python_tag|>", '{"name": "a"};'),
        ("pythonic", "[", "a(x=1),"),
        ("mistral", "", "[TOOL_CALLS]a[ARGS]{}"),
    ],
)
def test_a_reply_of_thousands_of_calls_takes_time_in_proportion(form: str, begin: str, piece: str) -> None:
    end = "]" if form == "pythonic" else ""

    def seconds(calls: int) -> float:
        text, began = begin + piece * calls + end, time.process_time()
        parsed = parse(form, text)
        assert len(parsed.calls) == calls
        return time.process_time() - began

    few = min(seconds(1_000) for _ in range(3))
    assert min(seconds(16_000) for _ in range(2)) < 64 * few  # 256 times where each looks through the rest


def test_calls_of_a_list_do_not_keep_the_whole_list_each() -> None:
    calls = parse("mistral", "[TOOL_CALLS] [" + ", ".join(["{}"] * 1_000) + "]").calls
    assert len(calls) == 1_000
    assert sum(len(call.raw) for call in calls) == 2_000


def test_a_value_of_any_length_is_read_whole() -> None:
    for length in range(_PART_CHARS - 30, _PART_CHARS + 3):
        for value in ({"a": "x" * length, "b": True}, ["y" * length, -12.5e3, None], {"a": "\\" * (length // 2 + 1)}):
            text = json.dumps(value)
            assert decode_at(text + "</tool_call>", 0) == (value, len(text))
    with pytest.raises(ValueError, match="Expecting"):
        decode_at('{"a": "' + "x" * _PART_CHARS + '" 1}', 0)


def test_a_call_that_follows_at_once_is_a_call_of_its_own() -> None:
    first, second = parse("qwen_xml", "<function=a><parameter=x>1</parameter><function=b></function>").calls
    assert (first.name, first.arguments, second.name, second.arguments) == ("a", None, "b", {})


def test_a_type_may_be_one_of_several() -> None:
    properties = {
        "text": {"type": ["string", "null"]},
        "count": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "odd": {"type": {}},
    }
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"properties": properties}}}]
    for written, arguments in (
        (("ls -la", "5", "x"), {"text": "ls -la", "count": 5, "odd": "x"}),
        (("null", "null", "5"), {"text": None, "count": None, "odd": "5"}),
    ):
        names = zip(properties, written, strict=True)
        body = "".join(f"<parameter={name}>\n{value}\n</parameter>" for name, value in names)
        (call,) = FORMS["qwen_xml"](f"<function=f>{body}</function>", str, tools).calls
        assert call.arguments == arguments


def test_thoughts_between_mistrals_own_marks_are_thoughts() -> None:
    parsed = parse("mistral", '[THINK]not [TOOL_CALLS]x[/THINK]Well.[TOOL_CALLS]bash[ARGS]{"command": "ls"}')
    assert (parsed.reasoning, parsed.content) == ("not [TOOL_CALLS]x", "Well.")
    assert [(call.name, call.error) for call in parsed.calls] == [("bash", None)]


@pytest.mark.parametrize(
    ("template", "form"),
    [
        (CHATML, "hermes"),
        (QWEN3, "hermes"),
        (LLAMA3, "llama"),
        (MISTRAL, "mistral"),
        (GEMMA, "hermes"),
        ("{{ '<tool_call>\\n<function=' + call.name + '>' }}", "qwen_xml"),
        ("put it in the format of [func_name1(params_name1=params_value1)]", "pythonic"),
        ("", "hermes"),
    ],
)
def test_a_template_tells_its_form(template: str, form: str) -> None:
    assert form_of(template) == form
