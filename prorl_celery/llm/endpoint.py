"""One inference backend as a conversation needs to know it. Given by the backend heap; JSON-like and immutable."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where to call, which model, in which wire form.

    `url` may or may not end with `/v1`. `tokenizer` is a local directory, needed for token mode. `policy_version` is
    the version of the weights behind it, None when nobody told. `max_model_len` is in tokens, None when unknown.
    """

    url: str
    model: str
    kind: str = "vllm"
    """`vllm`, `vllm_generate`, `legacy` or `chat`."""
    tokenizer: str | None = None
    api_key: str | None = field(default=None, repr=False)
    policy_version: int | None = None
    max_model_len: int | None = None
    gives_ids: bool = True
    """Whether its chat route answers token ids when asked; asking one that cannot may be refused."""

    @property
    def base(self) -> str:
        """The server's root, without `/v1` and without a slash at its end."""
        return self.url.rstrip("/").removesuffix("/v1").rstrip("/")

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
