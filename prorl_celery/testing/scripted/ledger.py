"""What the scripted backend counts: calls, live calls, aborts, tokens, prefix re-use; on request, each call.

Everything is bounded: the prefix cache keeps the blocks used last, the ring the calls that came last.
"""

from __future__ import annotations

import json
import os
import time
from array import array
from collections import Counter, OrderedDict, deque
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

BLOCK_TOKENS = 16
CACHED_BLOCKS = 1 << 17


@dataclass(slots=True)
class CallRecord:
    """One generation call: what came, what was sampled, how it ended (`live` until it does)."""

    request_id: str
    route: str
    seed: int | None
    prompt_ids: array[int]
    started: float
    cache_salt: str | None = None
    weight_version: str = "0"
    sampled_ids: list[int] = field(default_factory=list)
    outcome: str = "live"
    took_s: float = 0.0


class PrefixCache:
    """Which prefixes were seen before, in whole blocks, as an engine's prefix cache would tell."""

    def __init__(self) -> None:
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def reuse(self, ids: array[int], salt: str | None = None) -> int:
        """How many leading tokens of `ids` were seen before under this salt; remembers all its whole blocks."""
        blocks, packed, width = self._blocks, ids.tobytes(), BLOCK_TOKENS * ids.itemsize
        key, hits, missed = hash(salt) if salt else 0, 0, False
        for at in range(0, len(packed) - width + 1, width):
            key = hash((key, packed[at : at + width]))
            if key in blocks:
                blocks.move_to_end(key)
                hits += not missed
            else:
                missed = True
                blocks[key] = None
        while len(blocks) > CACHED_BLOCKS:
            blocks.popitem(last=False)
        return hits * BLOCK_TOKENS


class Ledger:
    """The counters. One thread only: the server's loop."""

    def __init__(self, record: int = 0, journal: Path | None = None) -> None:
        """`journal` gets a line of JSON for each call that ends, and keeps it when the server is killed."""
        append = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._journal = None if journal is None else os.open(journal, append, 0o600)
        self._ring: deque[CallRecord] = deque(maxlen=record)
        self._keeps_calls = record > 0
        self.reset()

    def reset(self) -> None:
        """Start again from zero; live calls stay live, and the prefix cache forgets."""
        self.live: int = getattr(self, "live", 0)
        self.peak_live = self.live
        self.calls = 0
        self.aborts = 0
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self.cached_tokens = 0
        self.cache_resets = 0
        self.outcomes: Counter[str] = Counter()
        self.prefixes = PrefixCache()
        self._ring.clear()
        self._cpu_from = time.process_time()

    def forget_prefixes(self) -> None:
        """The prefix cache is empty from now on."""
        self.cache_resets += 1
        self.prefixes = PrefixCache()

    def begin(self, record: CallRecord) -> None:
        """A call came."""
        self.calls += 1
        self.live += 1
        self.peak_live = max(self.peak_live, self.live)
        if self._keeps_calls:
            self._ring.append(record)

    def end(self, record: CallRecord, outcome: str) -> None:
        """It ended: by a finish reason, `disconnect`, or the failure it suffered."""
        self.live -= 1
        self.outcomes[outcome] += 1
        self.aborts += outcome in ("abort", "disconnect")
        record.outcome = outcome
        record.took_s = time.monotonic() - record.started
        if self._journal is not None:
            line = {"request_id": record.request_id, "started": record.started, "outcome": outcome}
            os.write(self._journal, json.dumps(line).encode() + b"\n")

    def sampled(self, prompt_tokens: int, completion_tokens: int, cached_tokens: int) -> None:
        """A call's tokens."""
        self.prompt_tokens += prompt_tokens
        self.completion_tokens += completion_tokens
        self.cached_tokens += cached_tokens

    def stats(self) -> dict[str, Any]:
        """The counters as JSON. `cpu_s` is what the process used since the last reset."""
        return {
            "calls": self.calls,
            "live": self.live,
            "peak_live": self.peak_live,
            "aborts": self.aborts,
            "outcomes": dict(self.outcomes),
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "cached_tokens": self.cached_tokens,
            "cache_resets": self.cache_resets,
            "cpu_s": time.process_time() - self._cpu_from,
        }

    def recent(self, limit: int) -> list[dict[str, Any]]:
        """The last `limit` calls, oldest first."""
        calls = list(self._ring)
        wanted = calls[max(0, len(calls) - limit) :]
        return [asdict(call) | {"prompt_ids": call.prompt_ids.tolist()} for call in wanted]
