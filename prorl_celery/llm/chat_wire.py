"""The chat form: one POST to /v1/chat/completions through `openai`'s client, its reply checked.

The client is kept on the model loop, one per backend and key, with its own retries off: a retry that we do not know
of would sample twice.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from prorl_celery.errors import BackendError, BackendGone
from prorl_celery.jobs.models import SamplingParams
from prorl_celery.jobs.turns import ids_array, logprobs_array
from prorl_celery.llm.endpoint import Endpoint
from prorl_celery.llm.loop import CONNECT_SECONDS, ModelLoop
from prorl_celery.llm.wire import (
    REPLY_BYTES,
    REPLY_BYTES_PER_ID,
    Busy,
    cached_tokens,
    checked_ids,
    checked_logprobs,
    finish_reason_of,
    only_choice,
    read_json,
    refusal,
)

if TYPE_CHECKING:
    from openai import AsyncOpenAI

PATH = "/v1/chat/completions"
PROMPT_BYTES = 16 << 20
"""Room in a reply for the echoed ids of a prompt whose length is the server's to know."""
_WITHOUT_PARSER = "servers without a parser for tool calls"
_NO_PARSER = ("--tool-call-parser", "--enable-auto-tool-choice")
"""What vLLM's refusal names, which is the only thing about it that its versions have in common."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """One call of chat mode."""

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]]
    max_tokens: int
    sampling: SamplingParams
    seed: int | None
    request_id: str
    cache_salt: str | None = None
    """As in `wire.TokenRequest`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatReply:
    """One reply. `calls` are (id, name, arguments as text). `prompt_ids` is None where the backend gave no ids."""

    content: str
    reasoning: str | None
    calls: tuple[tuple[str, str, str], ...]
    finish_reason: str
    prompt_ids: array[int] | None
    ids: array[int]
    logprobs: array[float]
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None
    seconds: float


async def chat(loop: ModelLoop, endpoint: Endpoint, request: ChatRequest) -> ChatReply:
    """One call, not repeated. Raises `Busy`, `BackendError`, `ContextOverflow`.

    A server that was started without a parser for tool calls refuses tools; it is asked again to leave the calls in
    the text, where they are read here, and from then on at once.
    """
    plain = loop.resource(_WITHOUT_PARSER, _no_servers)
    known = endpoint.base in plain
    try:
        return await _ask(loop, endpoint, request, tool_choice="none" if known else None)
    except BackendError as error:
        if known or not request.tools or not any(word in str(error) for word in _NO_PARSER):
            raise
        plain.add(endpoint.base)
    return await _ask(loop, endpoint, request, tool_choice="none")


def _no_servers() -> tuple[set[str], Callable[[], Awaitable[object]]]:
    async def close() -> None:
        return None

    return set(), close


async def _ask(loop: ModelLoop, endpoint: Endpoint, request: ChatRequest, *, tool_choice: str | None) -> ChatReply:
    import httpx2  # openai's own transport
    import openai

    client = loop.resource((endpoint.base, endpoint.api_key), lambda: _client(endpoint))
    fields = _fields(endpoint, request)
    if request.tools and tool_choice is not None:
        fields["tool_choice"] = tool_choice
    started = time.monotonic()
    limit_bytes = REPLY_BYTES + REPLY_BYTES_PER_ID * request.max_tokens + PROMPT_BYTES * endpoint.gives_ids
    data = bytearray()
    try:
        async with client.chat.completions.with_streaming_response.create(**fields) as response:
            async for chunk in response.iter_bytes():
                data += chunk
                if len(data) > limit_bytes:
                    raise BackendError(f"{endpoint.base} answered more than {limit_bytes} bytes", url=endpoint.url)
    except openai.APIStatusError as error:
        raise refusal(endpoint, PATH, error.status_code, error.response.headers, error.response.content) from error
    except openai.APIConnectionError as error:
        cause = error.__cause__ or error
        raise Busy(BackendGone(f"{endpoint.base}{PATH} did not answer: {cause}", url=endpoint.url)) from error
    except httpx2.HTTPError as error:
        raise BackendGone(f"{endpoint.base}{PATH} broke off its reply: {error}", url=endpoint.url) from error
    return _read(endpoint, request, bytes(data), time.monotonic() - started)


def _client(endpoint: Endpoint) -> tuple[AsyncOpenAI, Callable[[], Awaitable[object]]]:
    import httpx2
    import openai

    transport = openai.DefaultAsyncHttpx2Client(
        limits=httpx2.Limits(max_connections=None, max_keepalive_connections=256),
        timeout=httpx2.Timeout(None, connect=CONNECT_SECONDS),
        trust_env=False,
        follow_redirects=False,
    )
    client = openai.AsyncOpenAI(
        base_url=endpoint.base + "/v1",
        api_key=endpoint.api_key or "none",
        max_retries=0,
        timeout=httpx2.Timeout(None, connect=CONNECT_SECONDS),
        http_client=transport,
    )
    return client, client.close


def _fields(endpoint: Endpoint, request: ChatRequest) -> dict[str, Any]:
    sampling = request.sampling
    fields: dict[str, Any] = {
        "model": endpoint.model,
        "messages": list(request.messages),
        "max_tokens": request.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "extra_headers": {"X-Request-Id": request.request_id},
    }
    if request.tools:
        fields["tools"] = list(request.tools)
    if request.seed is not None:
        fields["seed"] = request.seed
    if sampling.stop:
        fields["stop"] = list(sampling.stop)
    extra: dict[str, Any] = {}
    if endpoint.gives_ids:
        fields["logprobs"] = True
        # The neutral values too: see completions.py.
        extra |= {"return_token_ids": True, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
        if request.cache_salt is not None:
            extra["cache_salt"] = request.cache_salt
    if sampling.top_k is not None:
        extra["top_k"] = sampling.top_k
    fields["extra_body"] = extra
    return fields


def _read(endpoint: Endpoint, request: ChatRequest, data: bytes, seconds: float) -> ChatReply:
    reply = read_json(endpoint, data)
    choice = only_choice(endpoint, reply)
    message = choice.get("message")
    if not isinstance(message, dict):
        raise BackendError(f"{endpoint.base} answered without a message", url=endpoint.url)
    content = message.get("content")
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    if not isinstance(content, str | None) or not isinstance(reasoning, str | None):
        raise BackendError(f"{endpoint.base} answered a message whose content is not text", url=endpoint.url)
    finish_reason = finish_reason_of(endpoint, choice)
    prompt_ids, ids, logprobs = None, ids_array(), logprobs_array()
    if choice.get("token_ids") is not None:
        prompt_ids = checked_ids(endpoint, reply.get("prompt_token_ids"), None, "prompt ids")
        ids = checked_ids(endpoint, choice["token_ids"], None, "sampled ids")
        if not prompt_ids or len(ids) > request.max_tokens or not (ids or finish_reason == "abort"):
            said = f"{len(prompt_ids)} prompt ids and {len(ids)} sampled ids ({finish_reason})"
            raise BackendError(f"{endpoint.base} answered {said}, {request.max_tokens} allowed", url=endpoint.url)
        logprobs = checked_logprobs(endpoint, _logprob_values(choice) if ids else [], len(ids))
    elif endpoint.gives_ids and endpoint.kind != "chat":
        raise BackendError(f"{endpoint.base} answered no token ids", url=endpoint.url)
    prompt_tokens, completion_tokens = _usage(reply)
    return ChatReply(
        content=content or "",
        reasoning=reasoning,
        calls=_calls(endpoint, message),
        finish_reason=finish_reason,
        prompt_ids=prompt_ids,
        ids=ids,
        logprobs=logprobs,
        prompt_tokens=prompt_tokens if prompt_ids is None else len(prompt_ids),
        completion_tokens=completion_tokens if prompt_ids is None else len(ids),
        cached_tokens=cached_tokens(reply),
        seconds=seconds,
    )


def _logprob_values(choice: Mapping[str, Any]) -> Any:
    logprobs = choice.get("logprobs")
    entries = logprobs.get("content") if isinstance(logprobs, dict) else None
    if not isinstance(entries, list):
        return None
    return [entry.get("logprob") if isinstance(entry, dict) else None for entry in entries]


def _calls(endpoint: Endpoint, message: Mapping[str, Any]) -> tuple[tuple[str, str, str], ...]:
    calls = []
    for call in message.get("tool_calls") or ():
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict):
            raise BackendError(f"{endpoint.base} answered a tool call that is none", url=endpoint.url)
        call_id, name, arguments = call.get("id"), function.get("name"), function.get("arguments")
        if not isinstance(arguments, str):
            raise BackendError(f"{endpoint.base} answered a tool call without arguments", url=endpoint.url)
        calls.append((str(call_id or ""), str(name or ""), arguments))
    return tuple(calls)


def _usage(reply: Mapping[str, Any]) -> tuple[int, int]:
    usage = reply.get("usage")
    if not isinstance(usage, dict):
        return 0, 0
    values = (usage.get("prompt_tokens"), usage.get("completion_tokens"))
    prompt, completion = (value if isinstance(value, int) else 0 for value in values)
    return prompt, completion
