"""Against a real vLLM with a real model: the ids we send are those it reads, and what it samples comes back exactly.

Slow: `make test-smollm2`, with `VLLM_TEST_DIR`.
"""

from __future__ import annotations

import threading
import urllib.request
from typing import Any

import pytest
from set_cancel import SetCancel

from prorl_celery.errors import Cancelled
from prorl_celery.jobs.models import SamplingParams
from prorl_celery.llm.conversation import TokenConversation
from prorl_celery.llm.endpoint import Endpoint
from prorl_celery.llm.loop import ModelLoop
from prorl_celery.llm.request import ConversationRequest
from prorl_celery.llm.tokenizer import ChatTokenizer
from prorl_celery.node.pause import until
from prorl_celery.node.readiness import ask
from prorl_celery.node.vllm.install import Prepared
from prorl_celery.node.vllm.server import VllmServer

pytestmark = pytest.mark.slow

QUESTION = [{"role": "user", "content": "What is 2+3? Answer with a number only."}]
CONVERSATIONS: list[list[dict[str, str]]] = [
    QUESTION,
    [{"role": "system", "content": "Be brief."}, *QUESTION],
    [*QUESTION, {"role": "assistant", "content": "5"}, {"role": "user", "content": "And 2+4?"}],
    [{"role": "user", "content": "  spaces,\n\nlines\tand tabs  "}],
    [{"role": "user", "content": "naïve café — 数字 🙂 العربية"}],
    [{"role": "user", "content": "def f(x):\n    return x ** 2  # 3.14159, 1,000\n"}],
    [{"role": "user", "content": ""}],
]


@pytest.fixture(scope="session")
def tokenizer(prepared: Prepared) -> ChatTokenizer:
    return ChatTokenizer(prepared.model)


def post(server: VllmServer, path: str, **body: Any) -> Any:
    status, reply = ask(server.url + path, body={"model": "smollm2", **body}, timeout=120.0)
    assert status == 200, reply
    return reply


def rendered(tokenizer: ChatTokenizer, messages: list[dict[str, str]]) -> list[int]:
    return list(tokenizer.encode(tokenizer.render(messages, None, add_generation_prompt=True)))


@pytest.mark.parametrize("messages", CONVERSATIONS)
def test_our_ids_of_a_conversation_are_those_of_vllm(
    vllm: VllmServer, tokenizer: ChatTokenizer, messages: list[dict[str, str]]
) -> None:
    theirs = post(vllm, "/tokenize", messages=messages, add_generation_prompt=True)["tokens"]
    assert rendered(tokenizer, messages) == theirs


def test_prompt_ids_come_back_as_sent_and_the_sampled_ids_hold_the_one_that_ended_the_turn(
    vllm: VllmServer, tokenizer: ChatTokenizer
) -> None:
    ids = rendered(tokenizer, QUESTION)
    reply = post(vllm, "/v1/completions", prompt=ids, max_tokens=32, temperature=0, logprobs=0, return_token_ids=True)
    (choice,) = reply["choices"]
    assert choice["prompt_token_ids"] == ids
    assert choice["finish_reason"] == "stop"
    assert choice["token_ids"][-1] in tokenizer.stop_ids
    assert len(choice["token_ids"]) == len(choice["logprobs"]["token_logprobs"])
    assert reply["usage"]["completion_tokens"] == len(choice["token_ids"])
    assert tokenizer.decode_reply(choice["token_ids"]) == choice["text"]
    assert "5" in choice["text"]


def test_a_reply_cut_by_its_length_holds_no_end_of_turn(vllm: VllmServer, tokenizer: ChatTokenizer) -> None:
    ids = rendered(tokenizer, QUESTION)
    reply = post(vllm, "/v1/completions", prompt=ids, max_tokens=2, temperature=0, logprobs=0, return_token_ids=True)
    (choice,) = reply["choices"]
    assert choice["finish_reason"] == "length"
    assert len(choice["token_ids"]) == 2
    assert not set(choice["token_ids"]) & tokenizer.stop_ids


def test_the_chat_route_samples_the_same_ids_and_tells_them(vllm: VllmServer, tokenizer: ChatTokenizer) -> None:
    reply = post(
        vllm,
        "/v1/chat/completions",
        messages=QUESTION,
        max_tokens=32,
        temperature=0,
        logprobs=True,
        return_token_ids=True,
    )
    ids = rendered(tokenizer, QUESTION)
    assert reply["prompt_token_ids"] == ids
    (choice,) = reply["choices"]
    plain = post(vllm, "/v1/completions", prompt=ids, max_tokens=32, temperature=0, return_token_ids=True)
    assert choice["token_ids"] == plain["choices"][0]["token_ids"]
    assert len(choice["logprobs"]["content"]) == len(choice["token_ids"])


def conversation(vllm: VllmServer, model_loop: ModelLoop, cancel: SetCancel, **sampling: Any) -> TokenConversation:
    endpoint = Endpoint(
        url=vllm.url, model="smollm2", tokenizer=str(vllm.spec.prepared.model), policy_version=0, max_model_len=4096
    )
    params = SamplingParams.model_validate(sampling)
    request = ConversationRequest(
        job_id="job-1",
        messages=QUESTION,
        sampling=params,
        model_loop=model_loop,
        cancel=cancel,
        deadline=lambda: 120.0,
    )
    return TokenConversation(endpoint, request)


def test_a_turn_of_ours_holds_the_ids_it_sampled_and_a_seed_repeats_it(
    vllm: VllmServer, model_loop: ModelLoop, cancel: SetCancel, tokenizer: ChatTokenizer
) -> None:
    sampling = {"temperature": 0.8, "max_tokens": 24, "seed": 7}
    replies = [conversation(vllm, model_loop, cancel, **sampling).sample() for _ in range(2)]
    reply = replies[0]
    assert list(reply.delta_ids) == rendered(tokenizer, QUESTION)
    assert len(reply.sampled_ids) == len(reply.logprobs) == len(reply.versions) == reply.completion_tokens > 0
    assert set(reply.versions) == {0}
    assert all(logprob <= 0.0 for logprob in reply.logprobs)
    assert list(replies[1].sampled_ids) == list(reply.sampled_ids)


def test_a_cancelled_call_is_aborted_in_the_engine(vllm: VllmServer, model_loop: ModelLoop, cancel: SetCancel) -> None:
    talk = conversation(vllm, model_loop, cancel, max_tokens=2000, temperature=1.0)
    outcome: list[BaseException] = []

    def sample() -> None:
        try:
            talk.sample()
        except Cancelled as error:
            outcome.append(error)

    thread = threading.Thread(target=sample)
    thread.start()
    assert until(lambda: running(vllm) == 1, 30.0, every=0.1)
    cancel.set()
    thread.join(30.0)
    assert outcome
    assert until(lambda: running(vllm) == 0, 10.0, every=0.1)


def running(vllm: VllmServer) -> int:
    """Requests in the engine now."""
    with urllib.request.urlopen(vllm.url + "/metrics", timeout=10) as reply:
        lines = reply.read().decode().splitlines()
    return sum(int(float(line.split()[-1])) for line in lines if line.startswith("vllm:num_requests_running{"))
