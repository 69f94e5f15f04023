"""The inference backends: who is registered, and which one a job gets.

A job is given the backend of its model with the fewest live jobs for its weight, and keeps it while that will do. The
count of a backend is the size of the set of its live jobs; a job leaves it in the script that ends the job or sends it
back, so that the count cannot leak. All choosing is one script, `store/lua/backend_acquire.lua`. A backend that joins,
or comes back, with fewer jobs than the others have catches up by steps: it never gets more than twice its share.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import redis
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, WithJsonSchema

from prorl_celery.errors import BackendError, FenceLost
from prorl_celery.jobs.models import Incoming, Name
from prorl_celery.settings import Settings
from prorl_celery.store.clients import reaching_redis
from prorl_celery.store.keys import Keys
from prorl_celery.store.scripts import Scripts

Kind = Literal["vllm", "vllm_generate", "legacy", "chat"]
BackendState = Literal["up", "draining", "down"]
RECOUNT_PAGE = 500
_URL = r"^https?://[^\s/?#]+[^\s?#]*$"


def _url(text: str) -> str:
    if re.fullmatch(_URL, text) is None:
        raise ValueError("not an http:// or https:// url of a server")
    return text


Url = Annotated[
    str,
    StringConstraints(max_length=2048),
    AfterValidator(_url),
    WithJsonSchema({"type": "string", "pattern": _URL, "maxLength": 2048}),
]


class BackendSpec(Incoming):
    """A backend as a caller registers it. The same url again updates it."""

    url: Url
    model: Name
    weight: float = Field(1.0, gt=0.0, le=1e6, description="jobs it takes, relative to the others")
    api_key: str | None = Field(None, repr=False)
    kind: Kind = "vllm"
    tokenizer: str | None = Field(None, description="folder or name; default: the model's")
    policy_version: int | None = Field(None, ge=0)


class Backend(BaseModel):
    """A backend as it is stored: what was registered, and what was found out about it."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    url: str
    model: str
    weight: float = 1.0
    api_key: str | None = Field(None, repr=False)
    kind: Kind = "vllm"
    tokenizer: str | None = None
    policy_version: int | None = None
    state: BackendState = "up"
    max_model_len: int | None = None
    gives_ids: bool = False
    errors: int = 0
    """Calls that failed for good: no reply, a broken one, nonsense. Not: those that it was too busy for."""
    cache_hit_rate: float | None = None
    """Part of the prompts' tokens that its prefix cache held, since it started; where it tells."""


class BackendStatus(Backend):
    """A backend with the number of live jobs assigned to it."""

    assigned: int = 0


class BackendRegistry:
    """Registers backends and gives them to jobs. Safe to share between threads. Raises `StoreUnavailable`."""

    def __init__(self, client: redis.Redis, settings: Settings) -> None:
        self.keys = Keys(settings.key_prefix)
        self._client: Any = client
        self._run = Scripts(client, settings).run

    def put(self, backend: Backend) -> None:
        """Register a backend, or update it; its jobs stay its own. Waiting jobs are told on the channel `backends`."""
        self._run("backend_put", backend.url, backend.model_dump_json(exclude_none=True))

    def remove(self, url: str, mode: Literal["drain", "now"]) -> bool:
        """`drain`: no new jobs, gone when the live ones have ended. `now`: gone, and its jobs get another at their next
        acquire. False when there is no such backend.
        """
        return bool(self._run("backend_remove", url, mode) >= 0)

    def list(self) -> list[BackendStatus]:
        """All backends, by url."""
        with reaching_redis():
            records = self._client.hgetall(self.keys("backends"))
            urls = sorted(records)
            pipe = self._client.pipeline(transaction=False)
            for url in urls:
                pipe.scard(self.keys("assigned", url.decode()))
            counts = pipe.execute() if urls else []
        return [
            BackendStatus.model_validate_json(records[url]).model_copy(update={"assigned": count})
            for url, count in zip(urls, counts, strict=True)
        ]

    def get(self, url: str) -> Backend | None:
        """The backend of this url."""
        with reaching_redis():
            record = self._client.hget(self.keys("backends"), url)
        return Backend.model_validate_json(record) if record else None

    def serving(self, urls: Sequence[str]) -> dict[str, Backend | None]:
        """The backends of these urls, None for those that are not registered."""
        with reaching_redis():
            records = self._client.hmget(self.keys("backends"), list(urls)) if urls else []
        return {
            url: Backend.model_validate_json(record) if record else None
            for url, record in zip(urls, records, strict=True)
        }

    def recount(self) -> int:
        """Strike jobs from the backends' sets that are not theirs; how many. One page of a set at a time."""
        with reaching_redis():
            urls = [url.decode() for url in self._client.hkeys(self.keys("backends"))]
        struck, page = 0, b"0"
        for url in urls:
            while True:
                page, more = self._run("backend_recount", url, page, RECOUNT_PAGE)
                struck += more
                if page == b"0":
                    break
        return struck

    def set_state(self, url: str, state: BackendState) -> bool:
        """Take a backend out (`down`, `draining`) or back in (`up`). False when there is no such backend."""
        return self.change(url, state=state) is not None

    def change(
        self,
        url: str,
        *,
        state: BackendState | None = None,
        policy_version: int | None = None,
        max_model_len: int | None = None,
        gives_ids: bool | None = None,
        cache_hit_rate: float | None = None,
        more_errors: int = 0,
    ) -> Backend | None:
        """Change what is named, and add to the errors, in one step that keeps the rest. None: no such backend.

        One that drains is gone when it goes down. Processes with jobs on it hear of it on the channel `backends`.
        """
        fields = {
            "state": state,
            "policy_version": policy_version,
            "max_model_len": max_model_len,
            "gives_ids": gives_ids,
            "cache_hit_rate": cache_hit_rate,
        }
        patch = json.dumps({name: value for name, value in fields.items() if value is not None})
        record = self._run("backend_change", url, patch, more_errors, secrets.token_hex(6))
        return Backend.model_validate_json(record) if record else None

    def acquire(
        self,
        job_id: str,
        fence: int,
        *,
        model: str | None,
        mode: Literal["tokens", "chat"] | None,
        policy_version: int | None = None,
        exclude: Sequence[str] = (),
    ) -> Backend | None:
        """The backend of a claimed job; None when there is none for it now. The same call again gives the same one.

        A backend that is down, excluded or of another version is exchanged. `model` None: the only model served.
        Raises: `FenceLost`, `BackendError` when several models are served and none was named.
        """
        word, *rest = self._run(
            "backend_acquire", job_id, fence, model or "", mode or "",
            "" if policy_version is None else policy_version, secrets.randbits(31), *exclude,
        )  # fmt: skip
        if word == b"ok":
            return Backend.model_validate_json(rest[0])
        if word == b"fenced":
            raise FenceLost(f"claim {fence} of {job_id} may not take a backend: it has ended or lapsed", job_id=job_id)
        if word == b"models":
            names = ", ".join(sorted(name.decode() for name in rest))
            raise BackendError(f"name a model: {names} are served", job_id=job_id)
        return None

    def release(self, job_id: str, fence: int) -> bool:
        """Give a claimed job's backend back, if it has one; False when the claim is of the past, whose end did so."""
        return bool(self._run("backend_release", job_id, fence))
