"""A conversation with a model: sample a reply, observe what its tool calls came to, sample again.

`TokenConversation` speaks ids (token-in/token-out), `ChatConversation` (chat.py) speaks messages; an agent loop sees
no difference. `open_conversation` picks by the endpoint and the mode that the job wants.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, Protocol

from prorl_celery.errors import BackendError, ContextOverflow, InternalError
from prorl_celery.jobs.turns import Turn, ids_array, logprobs_array
from prorl_celery.llm.abort import give_up
from prorl_celery.llm.calls.base import Parsed, ToolCall
from prorl_celery.llm.completions import complete
from prorl_celery.llm.endpoint import Endpoint
from prorl_celery.llm.gate import Interrupted, Passage
from prorl_celery.llm.generate import generate
from prorl_celery.llm.legacy import generate_legacy
from prorl_celery.llm.reply import Reply, assistant_message, parts_of, reply_of, tool_message
from prorl_celery.llm.request import ConversationRequest
from prorl_celery.llm.sampling import UNKNOWN_VERSION, call_seed, request_id, room_for
from prorl_celery.llm.tokenizer import load_tokenizer
from prorl_celery.llm.trajectory import Trajectory
from prorl_celery.llm.wire import Sampled, TokenRequest

TOKEN_KINDS = {"vllm": complete, "vllm_generate": generate, "legacy": generate_legacy}
"""Kind of backend -> how one call of token mode is made there."""


class Conversation(Protocol):
    """What an agent loop needs of a model."""

    def sample(self, *, max_tokens: int | None = None) -> Reply:
        """The model's next turn, of at most `max_tokens` tokens (None: what the sampling parameters say).

        Leaves the conversation as it was when it raises, so that it may be called again.
        Raises: `ContextOverflow` when the prompt leaves no room for a token, `BackendError`, `StageTimeout`, and what
        the cancel signal raises.
        """
        ...

    def observe(self, observations: Sequence[tuple[ToolCall, str]]) -> list[dict[str, Any]]:
        """Add what the reply's calls came to; the tool messages that this added."""
        ...

    def move(self, endpoint: Endpoint) -> None:
        """Go on at another backend of the same model."""
        ...

    def resume(self, turns: Sequence[Turn]) -> Reply | None:
        """Stand where a conversation of the same request stood whose turns, all of them, were logged so.

        The last one may be open: then its reply is returned, and the calls whose observations it lacks are to be made
        and observed before the next `sample`. To be called once, before anything else. What was sampled is taken from
        the log as it is; the request's messages give way to those in the log.
        """
        ...


class TokenConversation:
    """Token-in/token-out: the prompt is every id so far, never encoded again.

    Raises when made: `BackendError` for a tokenizer that cannot be loaded or an unknown kind of backend,
    `BadInstance` when the chat template refuses the messages.
    """

    def __init__(self, endpoint: Endpoint, request: ConversationRequest) -> None:
        if endpoint.kind not in TOKEN_KINDS:
            raise BackendError(f"backends of kind {endpoint.kind!r} do not speak token ids", url=endpoint.url)
        if endpoint.tokenizer is None:
            raise BackendError(f"{endpoint.url} is registered without a tokenizer directory", url=endpoint.url)
        self._endpoint = endpoint
        self._request = request
        self._version: int | None = None
        self._tokenizer = load_tokenizer(endpoint.tokenizer)
        self._tools = list(request.tools)
        self._trajectory = Trajectory(self._tokenizer, self._tools)
        self._trajectory.start(request.messages)
        self._messages = [dict(message) for message in request.messages]
        self._unrecorded = list(self._messages)
        self._turn = 0
        self._split: tuple[bool, str | None] = (True, None)
        self._begin_turn()

    def sample(self, *, max_tokens: int | None = None) -> Reply:
        self._open_turn()
        wanted = max_tokens or self._request.sampling.max_tokens
        prompt_tokens = len(self._trajectory.ids) - len(self._trajectory.sampled)
        room = room_for(wanted, prompt_tokens, self._request.max_context_tokens, self._endpoint.max_model_len)
        if room < 1:
            raise ContextOverflow(f"a prompt of {prompt_tokens} tokens leaves no room for a reply")
        finish_reason = "abort"
        while finish_reason == "abort":
            # An engine that gave up its calls (for new weights, say) answers "abort" and what it has: that stands, and
            # the turn goes on from there.
            left = room - len(self._trajectory.sampled)
            finish_reason = self._call(left) if left > 0 else "length"
        reply = self._reply(finish_reason, prompt_tokens)
        self._messages.append(reply.messages[-1])
        self._unrecorded = []
        self._turn += 1
        self._answered = True
        return reply

    def observe(self, observations: Sequence[tuple[ToolCall, str]]) -> list[dict[str, Any]]:
        added = [tool_message(call, content) for call, content in observations]
        self._observed.extend(added)
        return added

    def move(self, endpoint: Endpoint) -> None:
        if endpoint.model != self._endpoint.model or endpoint.kind not in TOKEN_KINDS:
            raise BackendError(f"{endpoint.url} cannot go on with model {self._endpoint.model}", url=endpoint.url)
        self._endpoint = endpoint

    def resume(self, turns: Sequence[Turn]) -> Reply | None:
        if not turns:
            return None
        last = turns[-1]
        said, observed = parts_of(last)
        self._trajectory.resume(turns)
        self._messages = [message for turn in turns[:-1] for message in turn.messages] + said
        self._unrecorded = []
        self._turn = len(turns)
        self._version = last.policy_version
        self._answered = True
        self._observed.extend(observed)
        if last.closed:
            return None
        parsed = self._parsed(last.sampled_ids, self._turn - 1)
        return reply_of(last, parsed.content, parsed.calls)

    def _open_turn(self) -> None:
        """Put what was observed behind the last reply's tokens; nothing when that is done."""
        if not self._answered:
            return
        if not self._observed:
            raise InternalError("a reply was asked for twice, with nothing observed between")
        self._messages.extend(self._observed)
        if self._trajectory.add_messages(self._observed):
            self._split = (False, None)
        else:
            self._trajectory.start(self._messages)
            self._split = (True, "template")
        self._begin_turn()

    def _begin_turn(self) -> None:
        self._answered = False
        self._observed: list[dict[str, Any]] = []
        self._logprobs = logprobs_array()
        self._versions = ids_array()
        self._calls = 0
        self._llm_s = 0.0
        self._cached_tokens: int | None = None

    def _call(self, max_tokens: int) -> str:
        """One call, its tokens added to the trajectory at once; why it ended."""
        while True:
            with self._request.gate.call(self._endpoint) as passage, contextlib.suppress(Interrupted):
                self.move(passage.endpoint)
                return self._make(passage, max_tokens)

    def _make(self, passage: Passage, max_tokens: int) -> str:
        endpoint, sampling = self._endpoint, self._request.sampling
        request = TokenRequest(
            prompt_ids=self._trajectory.ids,
            prompt_json=self._trajectory.prompt_json(),
            max_tokens=max_tokens,
            sampling=sampling,
            seed=call_seed(sampling.seed, self._turn, self._calls),
            request_id=request_id(self._request.job_id, self._turn),
            vocab_size=self._tokenizer.vocab_size,
            cache_salt=passage.cache_salt,
            stop_ids=self._tokenizer.stop_ids,
        )
        speak = TOKEN_KINDS[endpoint.kind]
        goes_on = self._calls > 0

        async def call() -> Sampled:
            session = self._request.model_loop.session
            return await passage.make(
                lambda: speak(session, endpoint, request),
                pause_first=goes_on,
                give_up=lambda: give_up(session, endpoint, request.request_id),
            )

        sampled = self._request.model_loop.call(call, cancel=self._request.cancel, timeout=self._request.deadline())
        self._trajectory.add_sampled(sampled.ids)
        self._logprobs.extend(sampled.logprobs)
        self._version = passage.version
        version = UNKNOWN_VERSION if passage.version is None else passage.version
        self._versions.extend(sampled.versions or ids_array([version]) * len(sampled.ids))
        if self._calls == 0:  # a later call of the turn finds its own first tokens in the cache
            self._cached_tokens = sampled.cached_tokens
        self._calls += 1
        self._llm_s += sampled.seconds
        return sampled.finish_reason

    def _reply(self, finish_reason: str, prompt_tokens: int) -> Reply:
        ids = self._trajectory.sampled
        parsed = self._parsed(ids, self._turn)
        message = assistant_message(parsed.content, parsed.reasoning, parsed.calls)
        return Reply(
            messages=[*self._unrecorded, message],
            text=parsed.content,
            calls=parsed.calls,
            finish_reason=finish_reason,
            delta_ids=self._trajectory.delta,
            sampled_ids=ids,
            logprobs=self._logprobs,
            versions=self._versions,
            new_segment=self._split[0],
            split_reason=self._split[1],
            prompt_tokens=prompt_tokens,
            completion_tokens=len(ids),
            cached_tokens=self._cached_tokens,
            backend=self._endpoint.url,
            policy_version=self._version,
            llm_s=self._llm_s,
            model=self._endpoint.model if self._turn == 0 else None,
            mode="tokens" if self._turn == 0 else None,
        )

    def _parsed(self, ids: Sequence[int], turn: int) -> Parsed:
        """What was sampled in the turn of that number, taken apart."""
        text = self._tokenizer.decode_reply(ids)
        for stop in self._request.sampling.stop:
            text = text.split(stop, 1)[0]
        return self._tokenizer.parse_calls(text, lambda n: f"c{turn:05d}{n:03d}", self._tools)


def open_conversation(endpoint: Endpoint, request: ConversationRequest, *, mode: str | None = None) -> Conversation:
    """A conversation in `mode` (`tokens` or `chat`; None: tokens where the endpoint can). Raises as the classes do."""
    from prorl_celery.llm.chat import ChatConversation  # brings the chat form only where it is spoken

    can_tokens = endpoint.kind in TOKEN_KINDS and endpoint.tokenizer is not None
    kind: type[TokenConversation | ChatConversation] = TokenConversation
    if mode == "chat" or (mode is None and not can_tokens):
        kind = ChatConversation
    return kind(endpoint, request)
