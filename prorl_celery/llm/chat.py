"""Chat mode: messages in, messages out, through the `openai` client, which is imported only when this is used.

Where the backend gives ids (`return_token_ids`), turns carry them all the same: `prompt_token_ids` and `token_ids` of
each reply. The server renders the prompt, so it may not begin with what was sampled before (a template that strips
thinking, text that encodes otherwise): such a turn starts a new segment and says why. Without ids, turns have none.
"""

from __future__ import annotations

import contextlib
from array import array
from collections.abc import Sequence
from typing import Any

from prorl_celery.errors import BackendError, ContextOverflow, InternalError
from prorl_celery.jobs.turns import Turn, ids_array
from prorl_celery.llm.calls.base import Parser, ToolCall
from prorl_celery.llm.calls.hermes import parse_hermes
from prorl_celery.llm.chat_wire import ChatReply, ChatRequest, chat
from prorl_celery.llm.endpoint import Endpoint
from prorl_celery.llm.gate import Interrupted, Passage
from prorl_celery.llm.given import Given
from prorl_celery.llm.reply import Reply, assistant_message, parts_of, reply_of, tool_message
from prorl_celery.llm.request import ConversationRequest
from prorl_celery.llm.sampling import UNKNOWN_VERSION, call_seed, request_id, room_for
from prorl_celery.llm.tokenizer import load_tokenizer

PROMPT_DRIFT = "prompt_drift"
"""The server's prompt does not begin with the ids of the turns before it."""
IDS_MISSING = "ids_missing"
"""A turn before this one came without ids."""


class ChatConversation:
    """The arguments mean what they mean in `TokenConversation`; the endpoint needs no tokenizer.

    The context's limit can only be kept roughly: what a prompt will count is known from the backend's count of the
    last turn; the backend's own refusal is the rest.
    """

    def __init__(self, endpoint: Endpoint, request: ConversationRequest) -> None:
        import openai  # noqa: F401 - here and not on the model loop, which it would hold up for half a second

        self._endpoint = endpoint
        self._request = request
        self._tools = list(request.tools)
        self._parse: Parser = load_tokenizer(endpoint.tokenizer).parse_calls if endpoint.tokenizer else parse_hermes
        self._version: int | None = None
        self._sent = [dict(message) for message in request.messages]
        """What the server is sent: its own messages as it gave them, so that it renders them as it sampled them."""
        self._unrecorded = [dict(message) for message in request.messages]
        self._turn = 0
        self._open = True
        self._ids = ids_array()
        self._break: str | None = None
        self._used_tokens = 0
        self._llm_s = 0.0
        self._cached_tokens: int | None = None

    def sample(self, *, max_tokens: int | None = None) -> Reply:
        if not self._open:
            raise InternalError("a reply was asked for twice, with nothing observed between")
        wanted = max_tokens or self._request.sampling.max_tokens
        room = room_for(wanted, self._used_tokens, self._request.max_context_tokens, self._endpoint.max_model_len)
        if room < 1:
            raise ContextOverflow(f"{self._used_tokens} tokens so far leave no room for a reply")
        answer = self._call(room)
        self._cached_tokens = answer.cached_tokens
        while answer.finish_reason == "abort":
            # The engine gave up its calls, for new weights say. Messages cannot go on from half a reply: asked again.
            answer = self._call(room, again=True)
        reply = self._reply(answer)
        self._unrecorded = []
        self._llm_s = 0.0
        self._used_tokens = answer.prompt_tokens + answer.completion_tokens
        self._turn += 1
        self._open = False
        return reply

    def observe(self, observations: Sequence[tuple[ToolCall, str]]) -> list[dict[str, Any]]:
        added = [tool_message(call, content) for call, content in observations]
        self._sent.extend(map(_without_name, added))
        self._open = bool(added)
        return added

    def move(self, endpoint: Endpoint) -> None:
        if endpoint.model != self._endpoint.model:
            raise BackendError(f"{endpoint.url} cannot go on with model {self._endpoint.model}", url=endpoint.url)
        self._endpoint = endpoint

    def resume(self, turns: Sequence[Turn]) -> Reply | None:
        if not turns:
            return None
        self._sent, self._ids = [], ids_array()
        content, calls = "", tuple[ToolCall, ...]()
        for number, turn in enumerate(turns):
            given = Given.of_turn(turn)
            content, _, calls = given.understood(self._parse, number, self._tools)
            said, observed = parts_of(turn)
            self._sent += [*said[:-1], given.message(calls), *map(_without_name, observed)]
            if turn.new_segment:
                self._ids = ids_array()
            self._ids.extend(turn.delta_ids)
            self._ids.extend(turn.sampled_ids)
            self._break = None if turn.delta_ids or turn.sampled_ids else IDS_MISSING
        last = turns[-1]
        self._unrecorded = []
        self._turn = len(turns)
        self._used_tokens = last.prompt_tokens + last.completion_tokens
        self._version = last.policy_version
        self._open = bool(parts_of(last)[1])
        return None if last.closed else reply_of(last, content, calls)

    def _call(self, max_tokens: int, *, again: bool = False) -> ChatReply:
        while True:
            with self._request.gate.call(self._endpoint) as passage, contextlib.suppress(Interrupted):
                self.move(passage.endpoint)
                return self._make(passage, max_tokens, again)

    def _make(self, passage: Passage, max_tokens: int, again: bool) -> ChatReply:
        endpoint, sampling, model_loop = self._endpoint, self._request.sampling, self._request.model_loop
        request = ChatRequest(
            messages=self._sent,
            tools=self._tools,
            max_tokens=max_tokens,
            sampling=sampling,
            seed=call_seed(sampling.seed, self._turn),
            request_id=request_id(self._request.job_id, self._turn),
            cache_salt=passage.cache_salt,
        )
        answer = model_loop.call(
            lambda: passage.make(lambda: chat(model_loop, endpoint, request), pause_first=again),
            cancel=self._request.cancel,
            timeout=self._request.deadline(),
        )
        self._version = passage.version
        self._llm_s += answer.seconds
        return answer

    def _reply(self, answer: ChatReply) -> Reply:
        given = Given(answer.content, answer.reasoning, answer.calls)
        content, reasoning, calls = given.understood(self._parse, self._turn, self._tools)
        message = assistant_message(content, reasoning, calls)
        self._sent.append(given.message(calls))
        delta, new_segment, split_reason = self._placed(answer)
        version = UNKNOWN_VERSION if self._version is None else self._version
        return Reply(
            messages=[*self._unrecorded, message],
            text=content,
            calls=calls,
            finish_reason=answer.finish_reason,
            delta_ids=delta,
            sampled_ids=answer.ids,
            logprobs=answer.logprobs,
            versions=ids_array([version]) * len(answer.ids),
            new_segment=new_segment,
            split_reason=split_reason,
            prompt_tokens=answer.prompt_tokens,
            completion_tokens=answer.completion_tokens,
            cached_tokens=self._cached_tokens,
            backend=self._endpoint.url,
            policy_version=self._version,
            llm_s=self._llm_s,
            model=self._endpoint.model if self._turn == 0 else None,
            mode="chat" if self._turn == 0 else None,
            given=given.to_log(content, reasoning, calls),
        )

    def _placed(self, answer: ChatReply) -> tuple[array[int], bool, str | None]:
        """Where the turn's ids stand: the prompt's part that is new, whether a segment starts, and why."""
        first = self._turn == 0
        if answer.prompt_ids is None:
            self._break = IDS_MISSING
            return ids_array(), first, None
        known, reason = len(self._ids), self._break
        if reason is None and answer.prompt_ids[:known] != self._ids:
            reason = PROMPT_DRIFT
        self._break = None
        self._ids = answer.prompt_ids + answer.ids
        if first:
            return answer.prompt_ids, True, None
        if reason is not None:
            return answer.prompt_ids, True, reason
        return answer.prompt_ids[known:], False, None


def _without_name(message: dict[str, Any]) -> dict[str, Any]:
    """A tool message as servers take it."""
    return {key: value for key, value in message.items() if key != "name"}
