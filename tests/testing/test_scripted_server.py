"""The scripted backend's wire forms, over real connections to a real process."""

from __future__ import annotations

import http.client
import json
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from scripted_agent import PROMPT, TOKENIZER, TOOLS, complete, post

from prorl_celery.testing import ScriptedBackend, scripted_tokenizer_dir
from prorl_celery.testing.scripted.tokens import scripted_logprob

Start = Callable[..., ScriptedBackend]


@pytest.fixture(scope="module")
def looper() -> Iterator[ScriptedBackend]:
    with ScriptedBackend("loop", record=8, max_model_len=200) as backend:
        yield backend


def test_it_says_that_it_is_no_model(looper: ScriptedBackend) -> None:
    with urllib.request.urlopen(looper.url + "/v1/models", timeout=30) as response:
        assert response.headers["X-Scripted-Backend"] == "1"
        (card,) = json.load(response)["data"]
    assert card["id"] == "scripted"
    assert card["owned_by"] == "prorl scripted backend (test double)"
    assert card["max_model_len"] == 200


def test_a_model_id_that_hides_what_it_is_is_refused() -> None:
    with pytest.raises(RuntimeError, match="nobody may take this for a model"):
        ScriptedBackend(model_id="llama").start()


def test_a_completion_has_the_form_that_vllm_gives(looper: ScriptedBackend) -> None:
    status, answer, headers = complete(looper)
    assert status == 200
    assert headers["X-Scripted-Backend"] == "1"
    (choice,) = answer["choices"]
    sampled = choice["token_ids"]
    assert choice["prompt_token_ids"] == PROMPT
    assert choice["finish_reason"] == "stop"
    assert sampled[-1] == TOKENIZER.end_id
    assert choice["text"] == TOKENIZER.decode(sampled[:-1])
    logprobs = choice["logprobs"]
    assert logprobs["token_logprobs"] == [scripted_logprob(t, len(PROMPT) + i) for i, t in enumerate(sampled)]
    assert len(logprobs["tokens"]) == len(logprobs["text_offset"]) == len(logprobs["top_logprobs"]) == len(sampled)
    usage = answer["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (len(PROMPT), len(sampled))
    record = looper.calls(1)[0]
    assert (record["prompt_ids"], record["sampled_ids"]) == (PROMPT, sampled)


def test_ids_and_log_probabilities_come_only_when_asked_for(looper: ScriptedBackend) -> None:
    _, answer, _ = complete(looper, return_token_ids=False, logprobs=None)
    (choice,) = answer["choices"]
    assert choice["token_ids"] is choice["prompt_token_ids"] is choice["logprobs"] is None


def test_a_prompt_as_text_and_as_ids_is_the_same(looper: ScriptedBackend) -> None:
    _, answer, _ = complete(looper, prompt=TOKENIZER.decode(PROMPT))
    assert answer["choices"][0]["prompt_token_ids"] == PROMPT


def test_a_sample_over_its_limit_ends_by_length_without_the_end_of_turn(looper: ScriptedBackend) -> None:
    _, whole, _ = complete(looper)
    _, cut, _ = complete(looper, max_tokens=7)
    assert cut["choices"][0]["finish_reason"] == "length"
    assert cut["choices"][0]["token_ids"] == whole["choices"][0]["token_ids"][:7]
    exact = len(whole["choices"][0]["token_ids"])
    assert complete(looper, max_tokens=exact)[1]["choices"][0]["finish_reason"] == "stop"
    assert complete(looper, max_tokens=exact - 1)[1]["choices"][0]["finish_reason"] == "length"


def test_a_sample_ends_where_the_context_does(looper: ScriptedBackend) -> None:
    prompt = [*PROMPT, *[20] * (190 - len(PROMPT))]
    status, answer, _ = complete(looper, prompt=prompt, max_tokens=500)
    assert status == 200
    assert answer["choices"][0]["finish_reason"] == "length"
    assert len(answer["choices"][0]["token_ids"]) == 10


@pytest.mark.parametrize(
    ("changes", "status", "words"),
    [
        ({"model": "other"}, 404, "does not exist"),
        ({"prompt": [1, 999_999]}, 400, "out of vocabulary"),
        ({"prompt": [1, -1]}, 400, "out of vocabulary"),
        ({"prompt": [1, 2**40]}, 400, "out of vocabulary"),
        ({"prompt": [1, "a"]}, 400, "token ids"),
        ({"prompt": []}, 400, "empty"),
        ({"prompt": ""}, 400, "empty"),
        ({"prompt": None}, 400, "token ids"),
        ({"prompt": [20] * 201}, 400, "maximum context length"),
        ({"max_tokens": 0}, 400, "max_tokens"),
        ({"stream": True}, 400, "stream"),
        ({"n": 2}, 400, "one completion"),
        ({"seed": "x"}, 400, "seed"),
    ],
)
def test_what_vllm_refuses_is_refused(
    looper: ScriptedBackend, changes: dict[str, Any], status: int, words: str
) -> None:
    got, answer, headers = complete(looper, **changes)
    assert got == status
    assert words in answer["error"]["message"]
    assert answer["error"]["code"] == status
    assert headers["X-Scripted-Backend"] == "1"


def test_a_broken_body_is_a_400(looper: ScriptedBackend) -> None:
    where = urlsplit(looper.url)
    for body in ("{", "[]", "\udcff".encode("utf-8", "surrogateescape")):
        connection = http.client.HTTPConnection(str(where.hostname), where.port, timeout=30)
        connection.request("POST", "/v1/completions", body)
        assert connection.getresponse().status == 400
        connection.close()


def test_a_chat_is_the_completion_of_its_rendered_prompt(scripted: Start) -> None:
    backend = scripted("toy", record=8)
    messages = [{"role": "user", "content": "count"}]
    body = {"model": "scripted", "messages": messages, "tools": TOOLS, "return_token_ids": True, "logprobs": True}
    _, answer, headers = post(backend.url + "/v1/chat/completions", body, X_Request_Id="lab-1")
    assert headers["X-Request-Id"] == "lab-1"
    assert answer["id"] == "chatcmpl-lab-1"
    prompt = TOKENIZER.encode(TOKENIZER.render(messages, TOOLS))
    assert answer["prompt_token_ids"] == prompt
    (choice,) = answer["choices"]
    assert choice["finish_reason"] == "tool_calls"
    (call,) = choice["message"]["tool_calls"]
    assert call["function"] == {"name": "bash", "arguments": '{"command": "echo step-1"}'}
    assert [entry["logprob"] for entry in choice["logprobs"]["content"]] == [
        scripted_logprob(token, len(prompt) + i) for i, token in enumerate(choice["token_ids"])
    ]
    _, completion, _ = complete(backend, prompt=prompt)
    assert completion["choices"][0]["token_ids"] == choice["token_ids"]
    later = [*messages, choice["message"], {"role": "tool", "tool_call_id": call["id"], "content": "step-1"}]
    _, answer, _ = post(backend.url + "/v1/chat/completions", body | {"messages": later})
    assert answer["prompt_token_ids"][: len(prompt) + len(choice["token_ids"])] == prompt + choice["token_ids"]
    assert "step-2" in answer["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"]


def test_a_journal_of_calls_outlives_the_server(scripted: Start, tmp_path: Path) -> None:
    backend = scripted("toy", journal=tmp_path / "journal")
    body = {"model": "scripted", "prompt": PROMPT, "max_tokens": 100}
    post(backend.url + "/v1/completions", body, X_Request_Id="first")
    backend.kill()
    backend.start()
    post(backend.url + "/v1/completions", body, X_Request_Id="second")
    lines = [json.loads(line) for line in (tmp_path / "journal").read_text().splitlines()]
    assert [(line["request_id"], line["outcome"]) for line in lines] == [
        ("cmpl-first", "stop"),
        ("cmpl-second", "stop"),
    ]
    assert 0 < lines[0]["started"] < lines[1]["started"]


def test_a_malformed_call_is_text_in_a_chat(scripted: Start) -> None:
    body = {"model": "scripted", "messages": [{"role": "user", "content": "go"}], "tools": TOOLS}
    _, answer, _ = post(scripted("malformed").url + "/v1/chat/completions", body)
    (choice,) = answer["choices"]
    assert choice["message"]["tool_calls"] == []
    assert "<tool_call>" in choice["message"]["content"]
    assert choice["finish_reason"] == "stop"


@pytest.mark.parametrize("messages", [[], "hi", [1], [{"role": "user", "content": 5}], [{}], None])
def test_messages_that_cannot_be_rendered_are_a_400(looper: ScriptedBackend, messages: Any) -> None:
    status, _, _ = post(looper.url + "/v1/chat/completions", {"model": "scripted", "messages": messages})
    assert status == 400


def test_tokenize_and_detokenize_agree_with_the_tokenizer_directory(looper: ScriptedBackend) -> None:
    text = "def f(x):\n    return x  # é"
    _, answer, _ = post(looper.url + "/tokenize", {"prompt": text})
    assert answer["tokens"] == TOKENIZER.encode(text)
    assert answer["count"] == len(answer["tokens"])
    assert post(looper.url + "/detokenize", {"tokens": answer["tokens"]})[1]["prompt"] == text
    messages = [{"role": "user", "content": "hello"}]
    assert post(looper.url + "/tokenize", {"messages": messages})[1]["tokens"] == PROMPT
    assert looper.tokenizer_dir == scripted_tokenizer_dir()


def test_calls_are_not_kept_unless_asked_for(scripted: Start) -> None:
    backend = scripted("loop")
    complete(backend)
    assert backend.calls() == []


def test_the_ring_of_calls_is_bounded(looper: ScriptedBackend) -> None:
    for _ in range(12):
        complete(looper)
    assert len(looper.calls()) == 8
    assert len(looper.calls(3)) == 3


def test_a_prefix_seen_before_counts_as_cached(scripted: Start) -> None:
    backend = scripted("loop")
    prompt = list(range(20, 120))
    first = complete(backend, prompt=prompt)[1]["usage"]["prompt_tokens_details"]["cached_tokens"]
    second = complete(backend, prompt=[*prompt, *range(200, 250)])[1]["usage"]["prompt_tokens_details"]
    assert (first, second["cached_tokens"]) == (0, 96)
    with urllib.request.urlopen(backend.url + "/metrics", timeout=30) as response:
        text = response.read().decode()
    assert 'vllm:prefix_cache_hits_total{engine="0",model_name="scripted"} 96.0' in text
    assert 'vllm:num_requests_running{engine="0",model_name="scripted"} 0.0' in text


def test_a_prefix_seen_under_another_salt_is_not_cached(scripted: Start) -> None:
    backend = scripted("loop", record=8)
    prompt = list(range(40, 140))

    def cached(**salt: str) -> int:
        used = complete(backend, prompt=prompt, **salt)[1]["usage"]
        return int(used["prompt_tokens_details"]["cached_tokens"])

    assert [cached(cache_salt="v1"), cached(cache_salt="v1"), cached(cache_salt="v2"), cached()] == [0, 96, 0, 0]
    assert [call["cache_salt"] for call in backend.calls()] == ["v1", "v1", "v2", None]
    status, answer, *_ = complete(backend, prompt=prompt, cache_salt="")
    assert status == 400
    assert answer["error"]["param"] == "cache_salt"


def test_no_answer_stands_in_what_the_backend_is_sent(solver: ScriptedBackend) -> None:
    task = '```python\ndef add(x: int, y: int):\n    """Add two numbers x and y\n    >>> add(2, 3)\n    5\n'
    task += '    >>> add(5, 7)\n    12\n    """\n```'
    body = {"model": "scripted", "messages": [{"role": "user", "content": task}], "tools": TOOLS}
    _, answer, _ = post(solver.url + "/v1/chat/completions", body)
    call = solver.calls(1)[0]
    assert "return x + y" not in TOKENIZER.decode(call["prompt_ids"])
    reply = {"role": "assistant", "content": answer["choices"][0]["message"]["content"]}
    _, answer, _ = post(
        solver.url + "/v1/chat/completions",
        body | {"messages": [*body["messages"], reply, {"role": "user", "content": "."}]},  # type: ignore[misc]
    )
    assert "return x + y" in json.dumps(answer)


def test_the_generate_route_tells_the_version_of_the_weights(looper: ScriptedBackend) -> None:
    body = {"model": "scripted", "token_ids": PROMPT, "sampling_params": {"max_tokens": 100, "logprobs": 0, "seed": 3}}
    _, completion, _ = complete(looper)
    post(looper.url + "/update_weight_version", {"new_version": "step-2"})
    _, answer, _ = post(looper.url + "/inference/v1/generate", body, X_Request_Id="lab-1")
    (choice,) = answer["choices"]
    assert answer["request_id"] == "generate-tokens-lab-1"
    assert choice["token_ids"] == completion["choices"][0]["token_ids"]
    assert choice["weight_versions"] == [{"version": "step-2", "start": 0, "end": len(choice["token_ids"])}]
    values = [entry["logprob"] for entry in choice["logprobs"]["content"]]
    assert values == completion["choices"][0]["logprobs"]["token_logprobs"]
    with urllib.request.urlopen(looper.url + "/weight_info", timeout=30) as response:
        assert json.load(response)["weight_version"] == "step-2"


def test_the_first_servers_form_gives_ids_and_log_probabilities(looper: ScriptedBackend) -> None:
    _, completion, _ = complete(looper)
    _, answer, _ = post(looper.url + "/generate", {"prompt_ids": PROMPT, "temperature": 1.0, "max_tokens": 100})
    assert answer["response_ids"] == completion["choices"][0]["token_ids"]
    assert answer["logprobs"] == completion["choices"][0]["logprobs"]["token_logprobs"]
