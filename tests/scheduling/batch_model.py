"""What a batch should do, in plain Python: the rules of `groups.lua`, `filling.lua`, `carrying.lua` said a second time.

Nothing is counted ahead here: every number is worked out afresh from the groups and jobs, whenever it is asked for.
"""

from __future__ import annotations

from dataclasses import dataclass, field

AHEAD = 3
REDRAWS = 2


@dataclass
class ModelGroup:
    """A prompt that was started."""

    state: str = "open"
    rewards: list[float] = field(default_factory=list)
    failed: int = 0
    live: set[str] = field(default_factory=set)


@dataclass
class ModelBatch:
    """A batch. `live_jobs` are those that have not ended, revoked ones too."""

    name: str
    target: int
    samples: int
    room: int
    min_samples: int
    policy: str = "retry"
    filtered: bool = True
    stop_after: int = 0
    decided: bool = False
    more: bool = True
    state: str = "filling"
    prompts: int = 0
    waiting: list[int] = field(default_factory=list)
    groups: dict[int, ModelGroup] = field(default_factory=dict)
    won: list[int] = field(default_factory=list)
    closed: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("uniform", "failed", "revoked"), 0))
    live_jobs: set[str] = field(default_factory=set)
    revoked: set[str] = field(default_factory=set)
    redrawn: int = 0

    @property
    def live(self) -> bool:
        return self.state in {"filling", "waiting_for_prompts"}

    def add(self, count: int, *, more: bool) -> None:
        assert self.live
        self.waiting += range(self.prompts, self.prompts + count)
        self.prompts += count
        self.more = more
        if count and self.state == "waiting_for_prompts":
            self.state = "filling"
        self._refill()

    def withdraw(self, prompt: int) -> None:
        if not self.live:
            return
        if prompt in self.waiting:
            self.waiting.remove(prompt)
        elif prompt in self.groups and self.groups[prompt].state == "open":
            self._close(prompt, "revoked")
        else:
            return
        self._refill()

    def cancel(self) -> None:
        if self.live:
            self.state = "cancelled"
            self._drop()

    def ends(self, job_id: str, reward: float | None, *, cancelled: bool = False) -> None:
        """A job has come to its end: with a reward, failed (None), or cancelled."""
        prompt, sample, redraw = _parts(job_id)
        group = self.groups[prompt]
        self.live_jobs.remove(job_id)
        self.revoked.discard(job_id)
        group.live.discard(job_id)
        if group.state != "open":
            self._refill()
            return
        if reward is not None:
            group.rewards.append(reward)
        elif not cancelled and self.policy == "retry" and redraw < REDRAWS and self.live:
            self.redrawn += 1
            self._begin(group, f"{self.name}:{prompt}:{sample}:r{redraw + 1}")
            return
        else:
            group.failed += 1
            if self.policy == "drop_group" and self.live:
                self._close(prompt, "failed")
                self._refill()
                return
        verdict = self._verdict(group)
        if verdict and self.live:
            self._close(prompt, verdict)
            if len(self.won) == self.target:
                self.state = "complete"
                self._drop()
        self._refill()

    def _verdict(self, group: ModelGroup) -> str | None:
        differ = bool(group.rewards) and max(group.rewards) > min(group.rewards)
        scored = len(group.rewards)
        if self.samples - group.failed < self.min_samples:
            return "failed"
        if self.filtered and differ and self.decided and scored >= self.min_samples:
            return "won"
        if self.filtered and not differ and 0 < self.stop_after <= scored:
            return "uniform"
        if scored + group.failed < self.samples:
            return None
        return "won" if differ or not self.filtered else "uniform"

    def _close(self, prompt: int, state: str) -> None:
        group = self.groups[prompt]
        group.state = state
        self.revoked |= group.live
        if state == "won":
            self.won.append(prompt)
        else:
            self.closed[state] += 1

    def _drop(self) -> None:
        for prompt, group in self.groups.items():
            if group.state == "open":
                self._close(prompt, "revoked")

    def _refill(self) -> None:
        if not self.live:
            return
        while len(self.live_jobs) + self.samples <= self.room and self._wants_more():
            if not self.waiting:
                self.state = "waiting_for_prompts" if self.more else "filling"
                if not self.more and all(group.state != "open" for group in self.groups.values()):
                    self.state = "exhausted"
                return
            prompt = self.waiting.pop(0)
            group = self.groups[prompt] = ModelGroup()
            for sample in range(self.samples):
                self._begin(group, f"{self.name}:{prompt}:{sample}")
        self.state = "filling"

    def _begin(self, group: ModelGroup, job_id: str) -> None:
        group.live.add(job_id)
        self.live_jobs.add(job_id)

    def _wants_more(self) -> bool:
        closed = len(self.won) + self.closed["uniform"] + self.closed["failed"]
        rate = (len(self.won) + 1) / (closed + (2 if self.filtered else 1))
        hoped = 0.0
        for group in self.groups.values():
            if group.state == "open":
                differ = bool(group.rewards) and max(group.rewards) > min(group.rewards)
                hoped += (
                    1 if self.filtered and differ else rate * (1 / (1 + len(group.rewards)) if self.filtered else 1)
                )
        return hoped < (AHEAD if self.filtered else 1) * (self.target - len(self.won)) - 1e-6


def _parts(job_id: str) -> tuple[int, int, int]:
    _, prompt, sample, *redraw = job_id.split(":")
    return int(prompt), int(sample), int(redraw[0][1:]) if redraw else 0
