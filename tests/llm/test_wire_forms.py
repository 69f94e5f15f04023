"""The token forms beside /v1/completions: what is sent, what is understood, what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from llm_stub import Signal, Stub

from prorl_celery.errors import BackendError
from prorl_celery.jobs.models import SamplingParams
from prorl_celery.llm import wire
from prorl_celery.llm.conversation import TokenConversation
from prorl_celery.llm.endpoint import Endpoint
from prorl_celery.llm.loop import ModelLoop
from prorl_celery.llm.request import ConversationRequest

Make = Callable[..., TokenConversation]


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "FIRST_WAIT_SECONDS", 0.01)


@pytest.fixture
def make(stub: Stub, tokenizer_dir: Path, model_loop: ModelLoop, cancel: Signal) -> Make:
    def make(kind: str, **sampling: Any) -> TokenConversation:
        endpoint = Endpoint(url=stub.url, model="m", kind=kind, tokenizer=str(tokenizer_dir), policy_version=3)
        messages = [{"role": "user", "content": "hi"}]
        params = SamplingParams(**{"max_tokens": 8, **sampling})
        request = ConversationRequest(
            job_id="job-1", messages=messages, sampling=params, model_loop=model_loop, cancel=cancel,
            deadline=lambda: 30.0,
        )  # fmt: skip
        return TokenConversation(endpoint, request)

    return make


def generated(ids: Any, *, spans: Any = None, logprobs: Any = "as ids", finish_reason: str | None = "stop") -> Any:
    if logprobs == "as ids":
        logprobs = {"content": [{"token_id": token, "logprob": -0.5, "rank": 1} for token in ids]}
    choice = {"index": 0, "token_ids": ids, "logprobs": logprobs, "finish_reason": finish_reason}
    if spans is not None:
        choice["weight_versions"] = [{"version": v, "start": start, "end": end} for v, start, end in spans]
    return {"request_id": "r", "choices": [choice]}


def test_generate_is_sent_ids_and_every_sampling_parameter(make: Make, stub: Stub) -> None:
    stub.answer = lambda body: generated([5, 6, 2])
    reply = make("vllm_generate", temperature=0.7, top_k=4, stop=("END",), seed=9).sample()
    (body,) = stub.bodies
    assert body["model"] == "m"
    assert body["token_ids"] == list(reply.delta_ids)
    assert body["sampling_params"] == {
        "max_tokens": 8, "temperature": 0.7, "top_p": 1.0, "top_k": 4, "min_p": 0.0, "repetition_penalty": 1.0,
        "logprobs": 0, "skip_special_tokens": False, "seed": 9, "stop": ["END"],
    }  # fmt: skip
    assert list(reply.sampled_ids) == [5, 6, 2]
    assert list(reply.logprobs) == [-0.5] * 3


@pytest.mark.parametrize(
    ("spans", "versions"),
    [
        ([("7", 0, 3)], [7, 7, 7]),
        ([("7", 0, 1), ("8", 1, 3)], [7, 8, 8]),
        ([("7", 0, 0), (8, 0, 3)], [8, 8, 8]),
        ([("step-2", 0, 3)], [-1, -1, -1]),
        ([("default", 0, 3)], [3, 3, 3]),
        ([("default", 0, 1), ("8", 1, 3)], [-1, 8, 8]),
        (None, [3, 3, 3]),
        ([], [3, 3, 3]),
    ],
)
def test_generate_tells_the_version_of_each_token(spans: Any, versions: list[int], make: Make, stub: Stub) -> None:
    stub.answer = lambda body: generated([5, 6, 2], spans=spans)
    assert list(make("vllm_generate").sample().versions) == versions


NONSENSE = {
    "a gap between versions": lambda: generated([5, 6, 2], spans=[("7", 0, 1), ("8", 2, 3)]),
    "versions of fewer tokens": lambda: generated([5, 6, 2], spans=[("7", 0, 2)]),
    "versions of more tokens": lambda: generated([5, 6, 2], spans=[("7", 0, 9)]),
    "versions backwards": lambda: generated([5, 6, 2], spans=[("7", 3, 0)]),
    "a version that is no span": lambda: (
        generated([5, 6, 2]) | {"choices": [{**generated([5, 6, 2])["choices"][0], "weight_versions": "7"}]}
    ),
    "log-probabilities of other ids": lambda: generated(
        [5, 6, 2], logprobs={"content": [{"token_id": 9, "logprob": -0.5}] * 3}
    ),
    "no log-probabilities": lambda: generated([5, 6, 2], logprobs=None),
    "fewer of them": lambda: generated([5, 6, 2], logprobs={"content": [{"logprob": -0.5}]}),
    "no ids": lambda: generated(None, logprobs=None),
    "an id out of the vocabulary": lambda: generated([5, 100_000, 2]),
    "nothing sampled": lambda: generated([]),
    "no finish reason": lambda: generated([5, 6, 2], finish_reason=None),
}


@pytest.mark.parametrize("what", NONSENSE)
def test_what_generate_cannot_mean_is_a_backend_error(what: str, make: Make, stub: Stub) -> None:
    stub.answer = lambda body: NONSENSE[what]()
    with pytest.raises(BackendError, match=r"127\.0\.0\.1"):
        make("vllm_generate").sample()
    assert len(stub.bodies) == 1


@pytest.mark.parametrize(("ids", "reason"), [([5, 6, 2], "stop"), ([5] * 8, "length"), ([5] * 7 + [2], "stop")])
def test_the_last_id_and_the_length_tell_why_a_legacy_reply_ended(
    ids: list[int], reason: str, make: Make, stub: Stub
) -> None:
    stub.answer = lambda body: {"response_ids": ids, "logprobs": [-0.25] * len(ids)}
    reply = make("legacy", seed=9).sample()
    assert (list(reply.sampled_ids), reply.finish_reason) == (ids, reason)
    assert list(reply.versions) == [3] * len(ids)
    (body,) = stub.bodies
    assert body == {"prompt_ids": list(reply.delta_ids), "max_tokens": 8, "temperature": 1.0, "top_p": 1.0, "seed": 9}


@pytest.mark.parametrize(
    "reply",
    [
        {"response_ids": [], "logprobs": []},
        {"response_ids": [5, 6], "logprobs": [-0.1]},
        {"response_ids": [5, 6]},
        {"logprobs": [-0.1]},
        {"response_ids": [5] * 9, "logprobs": [-0.1] * 9},
        {"text": "hello"},
        {"error": "no engine"},
    ],
)
def test_a_legacy_reply_that_is_none_is_a_backend_error(reply: Any, make: Make, stub: Stub) -> None:
    stub.answer = lambda body: reply
    with pytest.raises(BackendError, match=r"127\.0\.0\.1"):
        make("legacy").sample()


@pytest.mark.parametrize("sampling", [{"stop": ("END",)}, {"top_k": 5}])
def test_what_the_legacy_form_cannot_say_is_refused_before_it_is_sent(
    sampling: dict[str, Any], make: Make, stub: Stub
) -> None:
    with pytest.raises(BackendError, match=f"cannot be told {next(iter(sampling))}"):
        make("legacy", **sampling).sample()
    assert stub.bodies == []
