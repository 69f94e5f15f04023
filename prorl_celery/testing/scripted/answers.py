"""Answers as vLLM 0.32 gives them, as observed on each route.

Given: the request, its call, what was sampled. Gives: the answer's JSON text.
The token route's arrays are joined from ready-made pieces: encoding them as JSON would cost more than all the
rest of a call.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Mapping
from itertools import accumulate
from typing import Any

from prorl_celery.testing.scripted.engine import Call, Engine, Generation
from prorl_celery.testing.scripted.tokens import LOGPROBS

OWNER = "prorl scripted backend (test double)"
Body = Mapping[str, Any]

_TOOL_CALL = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.DOTALL)
_LOGPROB_JSON = tuple(json.dumps(value) for value in LOGPROBS)


class Answers:
    """The answers of one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        texts = engine.tokenizer.token_texts
        self._token = [json.dumps(text, ensure_ascii=False) for text in texts]
        self._length = [len(text) for text in texts]

    def completion(self, body: Body, call: Call, made: Generation) -> str:
        """`/v1/completions`."""
        head = json.dumps(self._head("text_completion", call, made), ensure_ascii=False)
        ids = _gives_ids(body, call)
        choice = (
            f'{{"index":0,"text":{json.dumps(made.text, ensure_ascii=False)},'
            f'"logprobs":{self._logprobs(body, call, made)},'
            f'"finish_reason":"{made.finish_reason}","stop_reason":null,"prompt_logprobs":null,'
            f'"token_ids":{_compact(made.sampled_ids) if ids else "null"},'
            f'"prompt_token_ids":{_compact(call.prompt_ids.tolist()) if ids else "null"}}}'
        )
        return f'{head[:-1]},"choices":[{choice}]}}'

    def chat_completion(self, body: Body, call: Call, made: Generation) -> str:
        """`/v1/chat/completions`; tool calls are parsed as vLLM does it: all of them or none."""
        content, calls = parse_tool_calls(made.text, call.request_id) if body.get("tools") else (made.text, [])
        ids = _gives_ids(body, call)
        choice: dict[str, Any] = {
            "index": 0,
            "message": {"role": "assistant", "content": content, "refusal": None, "tool_calls": calls},
            "logprobs": None,
            "finish_reason": "tool_calls" if calls and made.finish_reason == "stop" else made.finish_reason,
            "stop_reason": None,
            "token_ids": made.sampled_ids if ids else None,
        }
        if body.get("logprobs"):
            texts = self._texts(body, made)
            choice["logprobs"] = {
                "content": [
                    {"token": text, "logprob": value, "bytes": list(text.encode()), "top_logprobs": []}
                    for text, value in zip(texts, _claimed(call, made), strict=True)
                ]
            }
        answer = self._head("chat.completion", call, made)
        prompt = call.prompt_ids.tolist() if ids else None
        return json.dumps(answer | {"choices": [choice], "prompt_token_ids": prompt}, ensure_ascii=False)

    def generate(self, body: Body, call: Call, made: Generation) -> str:
        """`/inference/v1/generate`: the only one that tells the weights' version of each token."""
        version = {"version": self._engine.weight_version, "start": 0, "end": len(made.sampled_ids)}
        content = [
            {"token_id": token, "logprob": value, "rank": 1}
            for token, value in zip(made.sampled_ids, _claimed(call, made), strict=True)
        ]
        asked = body.get("sampling_params", {}).get("logprobs") is not None
        choice = {
            "index": 0,
            "logprobs": {"content": content} if asked else None,
            "finish_reason": made.finish_reason,
            "token_ids": None if _fails(call, "no_ids") else made.sampled_ids,
            "weight_versions": [version],
        }
        return json.dumps({"request_id": call.request_id, "choices": [choice], "prompt_logprobs": None})

    def legacy(self, body: Body, call: Call, made: Generation) -> str:
        """`/generate` of the first server's wrapper."""
        ids = [] if _fails(call, "no_ids") else made.sampled_ids
        return json.dumps({"response_ids": ids, "logprobs": _claimed(call, made)})

    def models(self) -> dict[str, Any]:
        """`/v1/models`: plainly a test double."""
        model_id = self._engine.model_id
        card = {
            "id": model_id,
            "object": "model",
            "created": 0,
            "owned_by": OWNER,
            "root": model_id,
            "parent": None,
            "max_model_len": self._engine.max_model_len,
            "permission": [],
        }
        return {"object": "list", "data": [card]}

    def metrics(self) -> str:
        """`/metrics`: the counters of vLLM that the service reads, as Prometheus text."""
        ledger = self._engine.ledger
        rows = (
            ("num_requests_running", "gauge", ledger.live),
            ("num_requests_waiting", "gauge", 0),
            ("prefix_cache_queries_total", "counter", ledger.prompt_tokens),
            ("prefix_cache_hits_total", "counter", ledger.cached_tokens),
            ("prompt_tokens_total", "counter", ledger.prompt_tokens),
            ("prompt_tokens_cached_total", "counter", ledger.cached_tokens),
            ("generation_tokens_total", "counter", ledger.completion_tokens),
            ("kv_cache_usage_perc", "gauge", 0),
        )
        lines = ["# The prorl scripted backend: a test double, no engine."]
        for name, kind, value in rows:
            lines.append(f"# TYPE vllm:{name} {kind}")
            lines.append(f'vllm:{name}{{engine="0",model_name="{self._engine.model_id}"}} {float(value)}')
        return "\n".join(lines) + "\n"

    def _head(self, kind: str, call: Call, made: Generation) -> dict[str, Any]:
        prompt, sampled = len(call.prompt_ids), len(made.sampled_ids)
        return {
            "id": call.request_id,
            "object": kind,
            "created": int(time.time()),
            "model": self._engine.model_id,
            "usage": {
                "prompt_tokens": prompt,
                "completion_tokens": sampled,
                "total_tokens": prompt + sampled,
                "prompt_tokens_details": {"cached_tokens": made.cached_tokens},
            },
        }

    def _logprobs(self, body: Body, call: Call, made: Generation) -> str:
        """The `logprobs` object of a completion."""
        if body.get("logprobs") is None:
            return "null"
        if body.get("return_tokens_as_token_ids"):
            tokens = [f'"token_id:{token}"' for token in made.sampled_ids]
            lengths = [len(token) - 2 for token in tokens]
        else:
            tokens = [self._token[token] for token in made.sampled_ids]
            lengths = [self._length[token] for token in made.sampled_ids]
        values = ["NaN"] * len(tokens) if _fails(call, "nan") else [_LOGPROB_JSON[k] for k in made.logprob_keys]
        offsets = accumulate(lengths[:-1], initial=0) if lengths else ()
        top = [f"{{{token}:{value}}}" for token, value in zip(tokens, values, strict=True)]
        return (
            f'{{"text_offset":[{",".join(map(str, offsets))}],"token_logprobs":[{",".join(values)}],'
            f'"tokens":[{",".join(tokens)}],"top_logprobs":[{",".join(top)}]}}'
        )

    def _texts(self, body: Body, made: Generation) -> list[str]:
        if body.get("return_tokens_as_token_ids"):
            return [f"token_id:{token}" for token in made.sampled_ids]
        return [self._engine.tokenizer.token_texts[token] for token in made.sampled_ids]


def parse_tool_calls(text: str, request_id: str) -> tuple[str | None, list[dict[str, Any]]]:
    """The text before the first call and the calls; text alone when one of them does not parse."""
    calls = []
    for index, match in enumerate(_TOOL_CALL.finditer(text)):
        try:
            parsed = json.loads(match.group(1))
            name, arguments = parsed["name"], parsed["arguments"]
        except (ValueError, KeyError, TypeError):
            return text, []
        function = {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}
        calls.append({"id": f"call-{request_id}-{index}", "type": "function", "function": function})
    if not calls:
        return text, []
    return text[: text.index("<tool_call>")].rstrip("\n") or None, calls


def _fails(call: Call, mode: str) -> bool:
    return call.failure is not None and call.failure.mode == mode


def _gives_ids(body: Body, call: Call) -> bool:
    return bool(body.get("return_token_ids")) and not _fails(call, "no_ids")


def _claimed(call: Call, made: Generation) -> list[float]:
    return [math.nan] * len(made.sampled_ids) if _fails(call, "nan") else made.logprobs


def _compact(ids: list[int]) -> str:
    """A list as vLLM writes it, without blanks."""
    return str(ids).replace(" ", "")
