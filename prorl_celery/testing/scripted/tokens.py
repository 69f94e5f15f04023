"""The scripted backend's tokenizer and chat template, and the log-probabilities it claims.

Given: the package's `tokenizer/` directory (see `make_tokenizer`).
Gives: text to ids and back, messages to a prompt's ids, and `scripted_logprob`, which a test can work out by
itself.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

TOKENIZER_DIR = Path(__file__).parent / "tokenizer"
TURN_START, TURN_END = "<|im_start|>", "<|im_end|>"
ROLES = ("system", "user", "assistant")


LOGPROBS = tuple(-(key + 1) / 1024 for key in range(4096))
"""All log-probabilities there are: between -4 and 0, each a multiple of 1/1024, which float32 holds exactly."""


def logprob_key(token_id: int, position: int) -> int:
    """The index in `LOGPROBS` of what is claimed for `token_id` at `position`."""
    return (token_id * 40_503 + position * 30_011) & 0xFFF


def scripted_logprob(token_id: int, position: int) -> float:
    """The log-probability claimed for `token_id` at `position` (its index in prompt and sample together).

    It depends on nothing else, so whoever has a trajectory can tell a log-probability that slipped by one
    place, or lost precision.
    """
    return LOGPROBS[logprob_key(token_id, position)]


class ScriptedTokenizer:
    """The tokenizer with its template. Thread-safe; its caches are bounded."""

    def __init__(self, directory: Path = TOKENIZER_DIR) -> None:
        self.directory = directory
        self._tokenizer: Tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        configuration = json.loads((directory / "tokenizer_config.json").read_text(encoding="utf-8"))
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.filters["tojson"] = _to_json  # jinja2's own escapes HTML
        self._template = environment.from_string(configuration["chat_template"])
        self.vocabulary_size = self._tokenizer.get_vocab_size()
        self.start_id = self._special(TURN_START)
        self.end_id = self._special(TURN_END)
        self.token_texts = [self.decode([i]) for i in range(self.vocabulary_size)]
        """What each id reads as by itself; bytes that are no text read as U+FFFD."""
        self.role_ids = {role: array("I", self.encode(role)) for role in ROLES}
        """The ids that follow a turn's start, by role. The newline after it may be one token with what follows."""
        self._decode_cached = lru_cache(maxsize=2048)(self._decode_bytes)
        self._encode_cached = lru_cache(maxsize=2048)(lambda text: array("I", self.encode(text)))

    def encode(self, text: str) -> list[int]:
        """Ids of `text`; the special tokens' texts become the special tokens."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def encode_again(self, text: str) -> list[int]:
        """As `encode`, for texts that come again (a policy says much the same to everybody)."""
        return self._encode_cached(text).tolist()

    def decode(self, ids: Sequence[int], *, skip_special: bool = False) -> str:
        """Text of `ids`."""
        text: str = self._tokenizer.decode(ids, skip_special_tokens=skip_special)
        return text

    def decode_again(self, ids: array[int]) -> str:
        """As `decode`, for ids that come again turn after turn (a system prompt, a problem)."""
        return self._decode_cached(ids.tobytes())

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        add_generation_prompt: bool = True,
    ) -> str:
        """The prompt's text. Raises `ValueError` for messages that the template cannot render."""
        try:
            return self._template.render(
                messages=messages, tools=tools or None, add_generation_prompt=add_generation_prompt
            )
        except (TemplateError, TypeError) as error:
            raise ValueError(f"the chat template cannot render these messages: {error}") from error

    def _decode_bytes(self, packed: bytes) -> str:
        ids: array[int] = array("I")
        ids.frombytes(packed)
        return self.decode(ids.tolist())

    def _special(self, text: str) -> int:
        token_id = self._tokenizer.token_to_id(text)
        if token_id is None:
            raise ValueError(f"{self.directory} has no token {text}")
        return int(token_id)


def _to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
