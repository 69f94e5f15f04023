"""The scripted backend's wire forms, aborts and failures on demand, over real connections to a real process."""

from __future__ import annotations

import http.client
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from scripted_agent import TOKENIZER, TOOLS, post

from prorl_celery.testing import ScriptedBackend, scripted_tokenizer_dir
from prorl_celery.testing.scripted.tokens import scripted_logprob

Start = Callable[..., ScriptedBackend]
PROMPT = TOKENIZER.encode("<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n")


@pytest.fixture(scope="module")
def looper() -> Iterator[ScriptedBackend]:
    with ScriptedBackend("loop", record=8, max_model_len=200) as backend:
        yield backend


@pytest.fixture
def slow(scripted: Start) -> ScriptedBackend:
    """A backend whose calls outlast the test unless somebody ends them."""
    return scripted("toy:5,100", latency=60, record=8)


def complete(backend: ScriptedBackend, **changes: Any) -> tuple[int, dict[str, Any], dict[str, str]]:
    body = {"model": "scripted", "prompt": PROMPT, "max_tokens": 100, "return_token_ids": True, "logprobs": 0}
    return post(backend.url + "/v1/completions", body | changes)


def send(backend: ScriptedBackend, **headers: str) -> socket.socket:
    """Send a completion and leave it unanswered."""
    where = urlsplit(backend.url)
    body = json.dumps({"model": "scripted", "prompt": PROMPT, "max_tokens": 500, "return_token_ids": True})
    lines = [f"{name}: {value}\r\n" for name, value in headers.items()]
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n{''.join(lines)}\r\n"
    connection = socket.create_connection((where.hostname, where.port), 30)
    connection.sendall((head + body).encode())
    return connection


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


def test_a_caller_that_goes_away_is_an_abort_at_once(slow: ScriptedBackend) -> None:
    connections = [send(slow) for _ in range(5)]
    slow.wait_until(live=5)
    for connection in connections[:3]:
        connection.close()
    stats = slow.wait_until(live=2, seconds=5)
    assert stats["aborts"] == 3
    assert stats["outcomes"] == {"disconnect": 3}
    for connection in connections[3:]:
        connection.close()
    assert slow.wait_until(live=0, seconds=5)["peak_live"] == 5
    assert {call["outcome"] for call in slow.calls()} == {"disconnect"}


def test_a_request_aborted_by_its_id_answers_with_what_it_has(scripted: Start) -> None:
    backend = scripted("toy:5,100", latency=20)
    connection = send(backend, **{"X-Request-Id": "kill-me"})
    backend.wait_until(live=1)
    post(backend.url + "/abort_requests", {"request_ids": ["cmpl-kill-me", "cmpl-unknown"]})
    response = http.client.HTTPResponse(connection)
    response.begin()
    (choice,) = json.load(response)["choices"]
    assert response.headers["X-Request-Id"] == "kill-me"
    assert choice["finish_reason"] == "abort"
    assert len(choice["token_ids"]) < 100
    assert backend.wait_until(live=0)["aborts"] == 1
    response.close()
    connection.close()


@pytest.mark.parametrize(("mode", "status"), [("http500", 500), ("http429", 429)])
def test_errors_on_demand_are_as_many_as_ordered(scripted: Start, mode: str, status: int) -> None:
    backend = scripted("loop")
    backend.fail(mode, count=2)
    answers = [complete(backend) for _ in range(3)]
    assert [answer[0] for answer in answers] == [status, status, 200]
    assert ("Retry-After" in answers[0][2]) == (mode == "http429")
    assert backend.stats()["outcomes"] == {mode: 2, "stop": 1}


@pytest.mark.parametrize("mode", ["html", "half_json"])
def test_nonsense_on_demand_is_no_json(scripted: Start, mode: str) -> None:
    backend = scripted("loop")
    backend.fail(mode, count=1)
    with pytest.raises(json.JSONDecodeError):
        complete(backend)
    assert complete(backend)[0] == 200


def test_a_connection_closed_on_demand_gives_no_answer(scripted: Start) -> None:
    backend = scripted("loop")
    backend.fail("close", count=1)
    with pytest.raises((ConnectionError, http.client.RemoteDisconnected)):
        complete(backend)
    assert complete(backend)[0] == 200


def test_answers_without_ids_and_with_nan_on_demand(scripted: Start) -> None:
    backend = scripted("loop")
    backend.fail("no_ids", count=1)
    assert complete(backend)[1]["choices"][0]["token_ids"] is None
    backend.fail("nan", count=1)
    values = complete(backend)[1]["choices"][0]["logprobs"]["token_logprobs"]
    assert all(value != value for value in values)


def test_hanging_and_slow_calls_are_live_until_the_caller_goes(scripted: Start) -> None:
    backend = scripted("loop")
    for mode in ("hang", "slow"):
        backend.fail(mode, count=1, seconds=60)
        connection = send(backend)
        backend.wait_until(live=1)
        connection.close()
        assert backend.wait_until(live=0, seconds=5)["outcomes"]["disconnect"] >= 1


def test_failures_come_with_their_probability_until_reset(scripted: Start) -> None:
    backend = scripted("loop")
    backend.fail("http500", probability=0.5)
    statuses = [complete(backend)[0] for _ in range(60)]
    assert 10 < statuses.count(500) < 50
    backend.reset()
    assert {complete(backend)[0] for _ in range(20)} == {200}
    assert backend.stats()["calls"] == 20


@pytest.mark.parametrize(
    "order", [{"mode": "explode", "count": 1}, {"mode": "nan"}, {"mode": "nan", "count": 1, "probability": 1}]
)
def test_a_wrong_order_of_failures_is_refused(looper: ScriptedBackend, order: dict[str, Any]) -> None:
    assert post(looper.url + "/scripted/fail", order)[0] == 400


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


def test_a_thousand_calls_live_at_once(scripted: Start) -> None:
    backend = scripted("toy", latency=3)
    connections: list[socket.socket] = []
    try:
        connections += [send(backend) for _ in range(1000)]
        assert backend.wait_until(calls=1000, live=0, seconds=30)["outcomes"] == {"stop": 1000}
        assert backend.stats()["peak_live"] > 500
    finally:
        for connection in connections:
            connection.close()


def test_it_ends_with_the_process_that_started_it() -> None:
    program = (
        "import sys, time; from prorl_celery.testing import ScriptedBackend\n"
        "backend = ScriptedBackend('loop').start()\n"
        "print(backend._process.pid, flush=True); sys.stdin.read()\n"
    )
    parent = subprocess.Popen([sys.executable, "-P", "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert parent.stdin is not None
    assert parent.stdout is not None
    child = os.pidfd_open(int(parent.stdout.readline()))
    parent.kill()
    parent.communicate(timeout=10)
    poll = select.poll()
    poll.register(child)
    assert poll.poll(10_000), "the scripted backend outlived its parent"
    os.close(child)


def test_one_started_in_a_thread_outlives_the_thread() -> None:
    backends: list[ScriptedBackend] = []
    thread = threading.Thread(target=lambda: backends.append(ScriptedBackend("loop").start()))
    thread.start()
    thread.join(30)
    time.sleep(0.2)  # a parent-death signal would have come by now
    assert complete(backends[0])[0] == 200
    backends[0].stop()


def test_the_command_prints_one_line_and_stops_clean_on_a_signal() -> None:
    command = [sys.executable, "-P", "-m", "prorl_celery.testing.scripted", "--port=0", "--policy=loop"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert server.stdout is not None
    line = server.stdout.readline()
    assert "test double" in line
    assert f"tokenizer={scripted_tokenizer_dir()}" in line
    server.send_signal(signal.SIGTERM)
    out, errors = server.communicate(timeout=10)
    assert (server.returncode, out, errors) == (0, "", "")


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
