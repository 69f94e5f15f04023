"""A conversation as the scripted backend sees it: read from the prompt's ids alone.

Given: the ids of a prompt. Turns are told apart by the special ids, so text that merely looks like one forges
nothing.
Gives: how many turns the assistant has had, the texts of the turns (decoded when asked for), and which tools
there are.
"""

from __future__ import annotations

import re
from array import array
from dataclasses import dataclass
from functools import cached_property, lru_cache

from prorl_celery.testing.scripted.tokens import ScriptedTokenizer

_TOOL_NAME = re.compile(r'"function":\s*\{\s*"name":\s*"([^"]+)"')


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of the template: who speaks, and the ids of the whole turn, its head included."""

    role: str
    ids: array[int]


class Conversation:
    """The turns of a prompt. The last one, if it is the assistant's and still open, is what is asked for."""

    def __init__(self, tokenizer: ScriptedTokenizer, prompt_ids: array[int]) -> None:
        self._tokenizer = tokenizer
        self._messages = _split(tokenizer, prompt_ids)

    @property
    def turn(self) -> int:
        """Which turn of the assistant's comes next, from 0."""
        return sum(message.role == "assistant" for message in self._messages)

    @cached_property
    def task(self) -> str:
        """What the first user message says."""
        return next((self._text(m) for m in self._messages if m.role == "user"), "")

    @cached_property
    def last(self) -> str:
        """What the last message says: an observation, or the user's question."""
        return self._text(self._messages[-1]) if self._messages else ""

    @cached_property
    def tools(self) -> frozenset[str]:
        """Names of the tools that the system message describes."""
        system = next((self._text(m) for m in self._messages if m.role == "system"), "")
        return _tool_names(system)

    def _text(self, message: Message) -> str:
        text = self._tokenizer.decode_again(message.ids)
        return text.removeprefix(f"{message.role}\n")


@lru_cache(maxsize=256)
def _tool_names(system: str) -> frozenset[str]:
    return frozenset(_TOOL_NAME.findall(system)) if "<tools>" in system else frozenset()


def _split(tokenizer: ScriptedTokenizer, ids: array[int]) -> list[Message]:
    """The closed turns, in order. A prompt that is not ChatML is one user message."""
    start, end = tokenizer.start_id, tokenizer.end_id
    messages: list[Message] = []
    at = 0
    while True:
        try:
            opened = ids.index(start, at) + 1
        except ValueError:
            break
        try:
            at = ids.index(end, opened)
        except ValueError:
            break  # the turn that is asked for
        messages.append(Message(_role(tokenizer, ids, opened), ids[opened:at]))
    return messages or [Message("user", ids)]


def _role(tokenizer: ScriptedTokenizer, ids: array[int], at: int) -> str:
    for role, name in tokenizer.role_ids.items():
        if ids[at : at + len(name)] == name:
            return role
    return "unknown"
