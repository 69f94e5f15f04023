"""What a file of results holds that a trainer would train on: groups and tokens counted, and what is wrong with it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prorl_celery.cli.jobfile import group_of


@dataclass(slots=True)
class Sampled:
    """The counts. `faults` names each result that cannot be trained on, and why."""

    tokens: int = 0
    faults: list[str] = field(default_factory=list)
    rewards: dict[str, list[float]] = field(default_factory=dict)

    @property
    def mixed(self) -> int:
        """Groups in which some samples are right and some are wrong."""
        return len(self.rewards) - self.all_wrong - self.all_right

    @property
    def all_wrong(self) -> int:
        """Groups without a right sample."""
        return sum(max(rewards) <= 0.0 for rewards in self.rewards.values())

    @property
    def all_right(self) -> int:
        """Groups without a wrong one."""
        return sum(min(rewards) >= 1.0 for rewards in self.rewards.values())


def read_sampled(file: Path) -> Sampled:
    """Count the results of a JSON-lines file. Raises `OSError`."""
    sampled = Sampled()
    with file.open("rb") as lines:
        for line in lines:
            _add(json.loads(line), sampled)
    return sampled


def _add(result: dict[str, Any], sampled: Sampled) -> None:
    sampled.faults += [f"{result['job_id']}: {fault}" for fault in _faults(result)]
    sampled.tokens += sum(sum(segment["loss_mask"]) for segment in result.get("segments") or [])
    if (reward := result.get("reward")) is not None:
        sampled.rewards.setdefault(group_of(result["job_id"]), []).append(reward)


def _faults(result: dict[str, Any]) -> list[str]:
    faults = []
    if result.get("reward") is None:
        faults.append("no reward")
    segments = result.get("segments") or []
    if not any(sum(segment["loss_mask"]) for segment in segments):
        faults.append("no sampled token")
    for segment in segments:
        ids = segment["response_ids"]
        lengths = {name: len(segment[name]) for name in ("loss_mask", "logprobs", "policy_versions")}
        faults += [f"{len(ids)} ids, {length} {name}" for name, length in lengths.items() if length != len(ids)]
        if not segment["prompt_ids"]:
            faults.append("no prompt ids")
        if any(logprob > 0.0 for logprob in segment["logprobs"]):
            faults.append("a log-probability above 0")
    return faults
