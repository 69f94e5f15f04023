"""The tokens of one conversation, kept across turns. Pure: no I/O, no clock.

Given the first messages, then for each turn what was sampled and what was observed; gives the next prompt, which is
always every id so far plus the template's own text around the new messages. What was sampled is never encoded again.

How the text around new messages is found: by rendering a conversation of two dummy messages with the new ones behind
it and taking what the template writes after the dummy assistant's words. That costs the same in turn 200 as in turn 2.
Its first token is the template's end of turn; where the model has sampled one already, it is left out.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from prorl_celery.errors import BadInstance
from prorl_celery.jobs.turns import Turn, ids_array
from prorl_celery.llm.template import Message, TemplateError
from prorl_celery.llm.tokenizer import ChatTokenizer

_SPOKEN = f"W{secrets.token_hex(12)}W"
_ASKED = f"W{secrets.token_hex(12)}W"
_USER: Message = {"role": "user", "content": _ASKED}


class Trajectory:
    """`ids` is the prompt of the next call; of it, `delta` came since the last turn and `sampled` in this one."""

    def __init__(self, tokenizer: ChatTokenizer, tools: Sequence[Mapping[str, Any]] | None = None) -> None:
        self._tokenizer = tokenizer
        self._tools = list(tools) if tools else None
        self.ids = ids_array()
        self.delta = ids_array()
        self.sampled = ids_array()
        self._texts: list[str] = []

    def start(self, messages: Sequence[Message]) -> None:
        """Begin (anew) with a whole conversation. Raises `BadInstance` when the template refuses it."""
        try:
            ids = self._tokenizer.encode(self._tokenizer.render(messages, self._tools))
        except TemplateError as error:
            raise BadInstance(str(error), field="messages") from error
        self.ids, self.delta, self.sampled, self._texts = ids_array(), ids_array(), ids_array(), []
        self._append(ids)
        self.delta = ids

    def resume(self, turns: Sequence[Turn]) -> None:
        """Stand where these turns ended, by the ids that were logged: nothing is encoded."""
        for turn in turns:
            if turn.new_segment:
                self.ids, self._texts = ids_array(), []
            self._append(turn.delta_ids)
            self._append(turn.sampled_ids)
            self.delta, self.sampled = ids_array(turn.delta_ids), ids_array(turn.sampled_ids)

    def add_sampled(self, ids: Sequence[int]) -> None:
        """What a call returned; more than once where a turn took more than one call."""
        self._append(ids)
        self.sampled.extend(ids)

    def add_messages(self, messages: Sequence[Message]) -> bool:
        """Close the turn with what was observed, and open the next one.

        False, and nothing has changed, when the template will not show where a turn ends: then only `start`, with
        the whole conversation, goes on.
        """
        text = self._after_turn(messages)
        if text is None:
            return False
        delta = self._tokenizer.encode(text, continues=True)
        if delta and self.sampled and self._tokenizer.same_end(self.sampled[-1], delta[0]):
            delta = delta[1:]
        self._append(delta)
        self.delta, self.sampled = delta, ids_array()
        return True

    def prompt_json(self) -> str:
        """`ids` as JSON numbers separated by commas; each id is written once in its life."""
        return ",".join(self._texts)

    def _append(self, ids: Sequence[int]) -> None:
        if ids:
            self.ids.extend(ids)
            self._texts.append(",".join(map(str, ids)))

    def _after_turn(self, messages: Sequence[Message]) -> str | None:
        """What the template writes after an assistant's words when `messages` follow."""
        spoken: Message = {"role": "assistant", "content": _SPOKEN}
        text = self._render([_USER, spoken, *messages])
        if text is not None and (at := text.rfind(_SPOKEN)) >= 0:
            return text[at + len(_SPOKEN) :]
        return self._after_calls(messages)

    def _after_calls(self, messages: Sequence[Message]) -> str | None:
        """The same for templates that want each tool message to answer a call, and then leave the words out."""
        calling: Message = {"role": "assistant", "content": "", "tool_calls": [_call(m) for m in messages]}
        before = self._render([_USER, calling], add_generation_prompt=False)
        after = self._render([_USER, calling, *messages])
        if before is None or after is None or _ASKED not in before or not after.startswith(before):
            return None
        stops = [before.rfind(self._tokenizer.decode([stop])) for stop in self._tokenizer.stop_ids]
        end = max(stops)
        return after[end if end >= 0 else len(before) :]

    def _render(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> str | None:
        try:
            return self._tokenizer.render(messages, self._tools, add_generation_prompt=add_generation_prompt)
        except TemplateError:
            return None


def _call(message: Message) -> dict[str, Any]:
    name = message.get("name") or "tool"
    return {
        "id": message.get("tool_call_id") or "call00000",
        "type": "function",
        "function": {"name": name, "arguments": {}},
    }
