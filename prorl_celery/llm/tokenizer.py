"""A model's tokenizer and chat template, from a local directory: text to ids and back, never through `transformers`.

Read are `tokenizer.json`, `tokenizer_config.json` (chat template, named tokens), `chat_template.jinja` (which goes
first), `generation_config.json` and `config.json` (what ends a turn, how many ids there are).

What users and tools write is **plain text**: `<|im_end|>` in a command's output must not end a turn. So before
rendering, each special token's text inside a message is replaced by a placeholder that nobody can guess, and after
rendering the text is put back and cut inside it, so that no tokenizer can see it as one token. The template's own
text keeps its special tokens. Messages without such text, nearly all, are rendered and encoded as they are.
"""

from __future__ import annotations

import json
import re
import secrets
import threading
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from prorl_celery.errors import BackendError, BadInstance
from prorl_celery.jobs.turns import ids_array
from prorl_celery.llm.calls.base import THINK, Parser
from prorl_celery.llm.calls.forms import FORMS, form_of
from prorl_celery.llm.template import ChatTemplate, Message, TemplateError

ASSISTANT_MARKS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<|python_tag|>")
"""What an assistant message of the caller's may hold as real tokens: they are how a model thinks and calls."""

_MARK = re.compile(r"<\|[^|<>]+\|>")
_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


class ChatTokenizer:
    """Encodes, decodes and renders for one model directory. Immutable after `__init__`; safe in many threads."""

    def __init__(self, directory: str | Path) -> None:
        """Raises `BackendError`, naming the directory, when it is missing or not a chat model's tokenizer."""
        self.directory = Path(directory)
        try:
            self._load()
        except TemplateError as error:
            raise BackendError(f"tokenizer directory {self.directory}: {error}") from error
        except (KeyError, TypeError, AttributeError) as error:
            raise BackendError(f"tokenizer directory {self.directory} is not in the usual form: {error!r}") from error

    def _load(self) -> None:
        if not self.directory.is_dir():
            raise BackendError(f"tokenizer directory {self.directory} does not exist on this node")
        config = self._json("tokenizer_config.json")
        named = {name: _token_text(config[name]) for name in _NAMED_TOKENS if config.get(name)}
        sources = self._template_sources(config)
        self.template = ChatTemplate(sources["default"], named)
        self._tool_template = ChatTemplate(sources["tool_use"], named) if "tool_use" in sources else self.template
        self._tokenizer, specials = self._read_tokenizer(" ".join(sources.values()))
        self.special_ids = {text: self._tokenizer.token_to_id(text) for text in specials}
        added = self._tokenizer.get_added_tokens_decoder()
        self.vocab_size = max(
            self._tokenizer.get_vocab_size(True),
            max(added, default=-1) + 1,  # added tokens may leave a gap behind the others
            int(self._json("config.json").get("vocab_size") or 0),
        )
        self.stop_ids = self._read_stop_ids(named)
        self._nonce = f"Q{secrets.token_hex(12)}Q"
        self._specials = sorted(specials, key=len, reverse=True)
        self._cuts = {text: _cut(text, specials) for text in specials}
        self._any_special = _alternatives(self._specials)
        self._structural = _alternatives([text for text in self._specials if text not in ASSISTANT_MARKS])
        self._placeholder = re.compile(rf"{self._nonce}(\d+)Z")
        self._lead = self._find_lead()
        self.parse_calls: Parser = FORMS[form_of(self._tool_template.source)]
        self._prompt_thinks = self._find_thought()

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        add_generation_prompt: bool = True,
    ) -> str:
        """The template's text, with placeholders for special tokens in the messages; only for `encode`.

        Raises `TemplateError`.
        """
        template = self._tool_template if tools else self.template
        plain = [self._mask_message(message) for message in messages]
        return template.render(plain, tools, add_generation_prompt=add_generation_prompt)

    def encode(self, rendered: str, *, continues: bool = False) -> array[int]:
        """Ids of what `render` gave. `continues`: it follows other text, so nothing is put before its first word."""
        parts = self._placeholder.split(rendered) if self._nonce in rendered else [rendered]
        pieces = [parts[0]]
        for number, text in zip(parts[1::2], parts[2::2], strict=True):
            special = self._specials[int(number)]
            cut = self._cuts[special]
            pieces[-1] += special[:cut]
            pieces.append(special[cut:] + text)
        ids = ids_array()
        for piece in pieces:
            ids.extend(self._encode_piece(piece, behind=continues or len(ids) > 0))
        return ids

    def encode_plain(self, text: str, *, continues: bool = False) -> array[int]:
        """Ids of a text in which nothing is special."""
        return self.encode(self._mask_text(text, self._any_special), continues=continues)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, special tokens included."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=False)

    def decode_reply(self, ids: Sequence[int]) -> str:
        """Text of a sampled turn without the token that ended it.

        Where the template's prompt opens the reasoning block, its tag is put before, so that thoughts are told by it.
        """
        end = len(ids)
        while end and ids[end - 1] in self.stop_ids:
            end -= 1
        text = self.decode(ids[:end])
        return THINK + text if self._prompt_thinks and not text.lstrip().startswith(THINK) else text

    def same_end(self, sampled: int, written: int) -> bool:
        """Whether a sampled id ends a turn as the id that the template writes there would have."""
        if sampled == written:
            return sampled in self.stop_ids or sampled in self.special_ids.values()
        return sampled in self.stop_ids and written in self.stop_ids

    def _encode_piece(self, text: str, *, behind: bool) -> Sequence[int]:
        if not text:
            return ()
        if behind and self._lead:
            return self._tokenizer.encode(self._lead + text, add_special_tokens=False).ids[1:]
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def _mask_message(self, message: Message) -> dict[str, Any]:
        pattern = self._structural if message.get("role") == "assistant" else self._any_special
        masked = {}
        for key, value in message.items():
            if key == "content" and isinstance(value, list):
                value = _flatten(value)
            elif key == "tool_calls" and value:
                value = [_with_decoded_arguments(call) for call in value]
            masked[key] = self._mask(value, pattern)
        return masked

    def _mask(self, value: Any, pattern: re.Pattern[str]) -> Any:
        if isinstance(value, str):
            return self._mask_text(value, pattern)
        if isinstance(value, Mapping):
            return {self._mask(key, pattern): self._mask(item, pattern) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._mask(item, pattern) for item in value]
        return value

    def _mask_text(self, text: str, pattern: re.Pattern[str]) -> str:
        if pattern.search(text) is None:
            return text
        return pattern.sub(lambda match: f"{self._nonce}{self._specials.index(match[0])}Z", text)

    def _read_tokenizer(self, template_text: str) -> tuple[Tokenizer, list[str]]:
        """The tokenizer, and the added tokens that mean structure: special ones, look-alikes, what the template writes.

        They match raw text only (`normalized` off), else a look-alike that a normalizer folds would pass the mask.
        """
        file = self.directory / "tokenizer.json"
        data = self._json(file.name, required=True)
        specials, changed = [], bool(data.get("truncation") or data.get("padding"))
        for token in data.get("added_tokens") or []:
            text = token["content"]
            if text.strip() and (token.get("special") or text in template_text or _MARK.fullmatch(text)):
                changed = changed or bool(token.get("normalized"))
                token["normalized"] = False
                specials.append(text)
        data["truncation"] = data["padding"] = None
        try:
            # A real model's file has 10 MB; writing it anew takes longer than reading it.
            return Tokenizer.from_str(json.dumps(data) if changed else self._text(file)), specials
        except Exception as error:
            raise BackendError(f"{file} is not a tokenizer: {error}") from error

    def _read_stop_ids(self, named: Mapping[str, str]) -> frozenset[int]:
        stop = set()
        if "eos_token" in named and (token_id := self._tokenizer.token_to_id(named["eos_token"])) is not None:
            stop.add(token_id)
        for name in ("generation_config.json", "config.json"):
            value = self._json(name).get("eos_token_id")
            stop.update(value if isinstance(value, list) else [] if value is None else [value])
        if not stop:
            raise BackendError(f"tokenizer directory {self.directory} names no end-of-turn token (eos_token)")
        return frozenset(stop)

    def _template_sources(self, config: Mapping[str, Any]) -> dict[str, str]:
        value = config.get("chat_template")
        sources = {item["name"]: item["template"] for item in value} if isinstance(value, list) else {}
        if isinstance(value, str):
            sources["default"] = value
        file = self.directory / "chat_template.jinja"
        if file.is_file():
            sources["default"] = self._text(file)
        if "default" not in sources:
            raise BackendError(f"tokenizer directory {self.directory} holds no chat template")
        return sources

    def _find_thought(self) -> bool:
        """Whether the template's prompt for a reply ends within an open reasoning block."""
        try:
            return self.render([{"role": "user", "content": "a"}]).rstrip().endswith(THINK)
        except TemplateError:
            return False

    def _find_lead(self) -> str:
        """A special token to encode a continuing text behind, where the tokenizer treats a text's start apart.

        One that eats the space behind it will not do.
        """
        tokenizer = self._tokenizer
        alone = tokenizer.encode("a", add_special_tokens=False).ids
        for special, token_id in self.special_ids.items():
            ids = tokenizer.encode(special + "a", add_special_tokens=False).ids
            spaced = tokenizer.encode(special + " a", add_special_tokens=False).ids
            if ids[:1] == [token_id] and ids != spaced:
                return "" if ids[1:] == alone else special
        return ""

    def _json(self, name: str, *, required: bool = False) -> dict[str, Any]:
        file = self.directory / name
        if not required and not file.is_file():
            return {}
        try:
            value = json.loads(self._text(file))
        except ValueError as error:
            raise BackendError(f"{file} is not JSON: {error}") from error
        if not isinstance(value, dict):
            raise BackendError(f"{file} does not hold a JSON object")
        return value

    def _text(self, file: Path) -> str:
        try:
            return file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise BackendError(f"{file} cannot be read: {error}") from error


def load_tokenizer(directory: str | Path) -> ChatTokenizer:
    """The directory's tokenizer, loaded once per process. Raises `BackendError`; a failure is not remembered."""
    key = str(Path(directory).resolve())
    with _lock:
        lock = _loading.setdefault(key, threading.Lock())
    with lock:
        if key not in _loaded:
            _loaded[key] = ChatTokenizer(key)
        return _loaded[key]


_lock = threading.Lock()
_loading: dict[str, threading.Lock] = {}
_loaded: dict[str, ChatTokenizer] = {}


def _alternatives(texts: Sequence[str]) -> re.Pattern[str]:
    return re.compile("|".join(re.escape(text) for text in texts) if texts else r"(?!)")


def _cut(text: str, specials: Sequence[str]) -> int:
    """Where to cut a special token's text so that neither part holds a special token."""
    for at in range(1, len(text)):
        if not any(special in text[:at] or special in text[at:] for special in specials):
            return at
    raise BackendError(f"special token {text!r} cannot be written as plain text")


def _token_text(value: Any) -> str:
    return str(value["content"]) if isinstance(value, Mapping) else str(value)


def _flatten(parts: Sequence[Any]) -> str:
    """Content given as a list of parts, as one text."""
    texts = []
    for part in parts:
        if not isinstance(part, Mapping) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise BadInstance("a message's content holds a part that is not text")
        texts.append(part["text"])
    return "".join(texts)


def _with_decoded_arguments(call: Any) -> Any:
    """Templates write arguments by `tojson`, so they want the object, not OpenAI's text of it."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"])
    except ValueError:
        return call
    return {**call, "function": {**function, "arguments": arguments}}
