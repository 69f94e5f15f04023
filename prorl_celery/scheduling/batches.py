"""Batches of prompts, filled on the server: `store/lua/carrying.lua` decides, this asks and reads.

    create -> add prompts, page by page -> ... jobs end, groups close, more prompts start ... -> complete

Every operation may be repeated as it is. Messages of jobs that an operation starts are published by whoever runs its
script (`born` of `store.scripts.Scripts`); those that nobody published are found by the sweep, as with any job.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Iterator, Sequence
from typing import Any

from prorl_celery.errors import BatchConflict, BatchEnded, BatchNotFound, BatchNotLeft
from prorl_celery.jobs.batch_models import BatchRequest, MorePrompts, Prompt
from prorl_celery.jobs.models import JobRequest
from prorl_celery.scheduling.batch_reading import BatchReader
from prorl_celery.settings import Settings
from prorl_celery.store.blobs import seal

PAGE_PROMPTS = 50
PAGE_BYTES = 1 << 20
"""Prompts that one script adds, so that none holds Redis for long."""
TENDED_JOBS = 20
"""Jobs that one script ends, for the same reason."""
TENDED_AT_ONCE = 1000
PATIENCE_SECONDS = 10.0
"""How long a worker has to act on a revocation before the job is ended for it."""

BROKER_LEVELS = 3


class BatchRegistry(BatchReader):
    """Makes, feeds and cancels batches. Safe to share between threads. Raises `StoreUnavailable`."""

    def create(self, request: BatchRequest, *, version: int | None = None) -> bool:
        """Make a batch and start what there is room for; False when it was there with the same body.

        `version`: that of the weights now, by which the age of what is adopted is judged.
        Raises: `BatchConflict` (the id or a prompt_id is taken by another body), `BatchNotFound` and `BatchNotLeft` (of
        the batch to adopt), `TooLarge`.
        """
        word = self._run(
            "batch_create",
            request.batch_id,
            _fingerprint(request),
            "" if version is None else version,
            request.adopt or "",
            request.max_staleness,
            request.memory or "",
            secrets.token_hex(6),
            *_record(request),
        )
        if word == b"conflict":
            raise BatchConflict(f"{request.batch_id} was accepted before with another body", batch_id=request.batch_id)
        if word == b"no such":
            raise BatchNotFound(f"no batch {request.adopt} to adopt", batch_id=request.adopt)
        if word == b"not left":
            why = "it is not over, carries nothing over, or was adopted by another"
            raise BatchNotLeft(f"{request.adopt} cannot be adopted: {why}", batch_id=request.adopt)
        if word == b"differs":
            raise BatchNotLeft(f"the groups of {request.adopt} have another number of samples", batch_id=request.adopt)
        # Again where it was there: whoever made it may not have come to the end of its prompts.
        self._add(request.batch_id, request.prompts, request.more_prompts, request, ended_is_fine=True)
        return bool(word == b"made")

    def add(self, batch_id: str, more: MorePrompts) -> int:
        """Add prompts; how many were new. One that is there with the same body changes nothing.

        Raises: `BatchNotFound`, `BatchConflict`, `BatchEnded` (and one of them is new), `TooLarge`.
        """
        return self._add(batch_id, more.prompts, more.more_prompts, self.request(batch_id))

    def withdraw(self, batch_id: str, prompt_id: str) -> bool:
        """A prompt is not wanted any more: it does not start, or its group ends. False when its group had ended.

        Raises: `BatchNotFound`, KeyError for a prompt that the batch never had.
        """
        word = self._run("batch_withdraw", batch_id, prompt_id)
        if word == b"no such":
            raise BatchNotFound(f"no batch {batch_id}", batch_id=batch_id)
        if word == b"unknown":
            raise KeyError(prompt_id)
        return bool(word == b"withdrawn")

    def cancel(self, batch_id: str) -> bool:
        """Cancel all of a batch; what it keeps for another is given up. False when nothing was left of it.

        Raises: `BatchNotFound`.
        """
        word = self._run("batch_cancel", batch_id)
        if word == b"unknown":
            raise BatchNotFound(f"no batch {batch_id}", batch_id=batch_id)
        return bool(word != b"ended")

    def tend(self) -> int:
        """End revoked jobs, batches that nobody feeds, groups that nobody adopts; how many jobs ended. Bounded."""
        ended, passed = 0, 0
        while True:
            seen, kept = self._run("batch_tend", TENDED_JOBS, passed, round(PATIENCE_SECONDS * 1000))
            ended += seen - kept
            passed += kept
            if seen < TENDED_JOBS or passed + ended >= TENDED_AT_ONCE:
                return int(ended)

    def _add(
        self,
        batch_id: str,
        prompts: Sequence[Prompt],
        more: bool,
        request: BatchRequest,
        *,
        ended_is_fine: bool = False,
    ) -> int:
        known = self.fingerprints(batch_id, [prompt.prompt_id for prompt in prompts])
        for prompt, told in zip(prompts, known, strict=True):
            if told is not None and told != _prompt_fingerprint(prompt):
                raise BatchConflict(
                    f"prompt {prompt.prompt_id} was accepted before with another instance",
                    batch_id=batch_id,
                    prompt_id=prompt.prompt_id,
                )
        added = 0
        # A batch is made with more to come; to ask for the same one again does not take back that these were the last.
        last = "0" if not more else "" if ended_is_fine else "1"
        pages = list(_pages(prompts, request, self._settings))
        for number, page in enumerate(pages or [[]]):
            ends = number >= len(pages) - 1
            reply: list[Any] = self._run("batch_add", batch_id, last if ends else "", *page)
            word = reply[0]
            if word == b"unknown":
                raise BatchNotFound(f"no batch {batch_id}", batch_id=batch_id)
            answer = reply[1]
            if word == b"conflict":
                raise BatchConflict(
                    f"prompt {answer.decode()} was accepted before with another instance",
                    batch_id=batch_id,
                    prompt_id=answer.decode(),
                )
            if word == b"ended":
                if ended_is_fine:
                    break
                raise BatchEnded(f"{batch_id} is {answer.decode()}: it takes no more prompts", batch_id=batch_id)
            added += answer
            while ends and reply[0] == b"ok" and reply[2]:
                reply = self._run("batch_add", batch_id, "")
        return added


def _record(request: BatchRequest) -> list[str | int]:
    fields: dict[str, str | int] = {
        "target": request.target_groups,
        "samples": request.samples_per_group,
        "room": request.max_inflight_jobs,
        "min_samples": request.min_samples or request.samples_per_group,
        "stop_after": request.stop_uniform_after or 0,
        "spread": repr(request.informative.min_spread) if request.informative else "0",
        "filter": int(request.informative is not None),
        "policy": request.failed_samples,
        "on_target": request.on_target,
        "decided": int(request.stop_group_when_decided),
        "prio": request.defaults.priority,
        "level": (9 - request.defaults.priority) // BROKER_LEVELS * BROKER_LEVELS,
        "max": request.defaults.max_attempts,
        "tags": json.dumps(request.defaults.tags) if request.defaults.tags else "",
        "idle": round(request.idle_timeout * 1000),
        "asked": request.model_copy(update={"prompts": ()}).model_dump_json(),
    }
    return [part for pair in fields.items() for part in pair]


def _fingerprint(request: BatchRequest) -> str:
    return _digest(request.model_dump(mode="json"))


def _prompt_fingerprint(prompt: Prompt) -> str:
    return _digest(prompt.instance.data())


def _digest(body: Any) -> str:
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _pages(prompts: Sequence[Prompt], request: BatchRequest, settings: Settings) -> Iterator[list[str | bytes]]:
    """The prompts as arguments of `batch_add`, in pages."""
    page: list[str | bytes] = []
    size = 0
    defaults = request.defaults.model_dump(mode="json")
    for prompt in prompts:
        job = JobRequest.model_validate({**defaults, "job_id": "sample", "instance": prompt.instance.data()})
        body = json.dumps(job.model_dump(mode="json"), separators=(",", ":")).encode()
        spec = seal(
            body, limit_bytes=settings.max_blob_bytes, what=f"prompt {prompt.prompt_id}", job_id=prompt.prompt_id
        )
        if page and (len(page) >= 3 * PAGE_PROMPTS or size + len(spec) > PAGE_BYTES):
            yield page
            page, size = [], 0
        page += (prompt.prompt_id, _prompt_fingerprint(prompt), spec)
        size += len(spec)
    if page:
        yield page
