"""Batches as trainers see them: what they send, what they read back. The API's schema is generated from these.

A batch asks for `target_groups` groups of `samples_per_group` rollouts of one prompt each. With `informative` only
those groups count whose rewards differ (dynamic sampling: Yu et al. 2025, "DAPO", section 3.2); others are replaced.
"""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import BaseModel, Field, field_validator, model_validator

from prorl_celery.jobs.models import Id, Incoming, Instance, JobOptions, Name

BatchState = Literal["filling", "waiting_for_prompts", "complete", "exhausted", "cancelled"]
LIVE: frozenset[BatchState] = frozenset({"filling", "waiting_for_prompts"})
GROUP_STATES = ("pending", "inflight", "informative", "uninformative", "failed", "revoked", "carried")

LONGEST_BATCH_ID = 100
"""A job's id is the batch's and three numbers."""
MOST_PROMPTS = 100_000
"""In one call; a batch may be sent more in further ones."""


class Prompt(Incoming):
    """One prompt: the instance that all samples of its group are rollouts of."""

    prompt_id: Name
    instance: Instance


class Informative(Incoming):
    """Which groups count: those whose highest and lowest reward lie further apart than `min_spread`."""

    metric: Literal["reward"] = "reward"
    min_spread: float = Field(1e-6, ge=0.0, le=1e9)


class Defaults(JobOptions):
    """What every job of the batch is asked with: any field of a job but its id and instance."""


def _differ(prompts: tuple[Prompt, ...]) -> tuple[Prompt, ...]:
    seen: dict[str, Prompt] = {}
    for prompt in prompts:
        if prompt.prompt_id in seen:
            raise ValueError(f"prompt_id {prompt.prompt_id} stands twice in the list")
        seen[prompt.prompt_id] = prompt
    return prompts


class BatchRequest(Incoming):
    """A request for so many groups."""

    batch_id: Id = Field(max_length=LONGEST_BATCH_ID)
    target_groups: int = Field(ge=1, le=100_000)
    samples_per_group: int = Field(ge=1, le=1024)
    prompts: tuple[Prompt, ...] = Field((), max_length=MOST_PROMPTS)
    more_prompts: bool = Field(False, description="true: more may be posted; false: the list is all there is")
    max_inflight_jobs: int = Field(512, ge=1, le=100_000, description="jobs that are queued or run at once")
    informative: Informative | None = Field(
        default_factory=lambda: Informative.model_validate({}), description="null: every group counts that closes"
    )
    failed_samples: Literal["retry", "drop_group", "keep_group"] = "retry"
    min_samples: int | None = Field(None, ge=1, description="scored samples that a group must have; default: all")
    on_target: Literal["cancel", "carry_over"] = "cancel"
    max_staleness: int = Field(1, ge=0, description="versions that an adopted group's oldest sample may be behind")
    adopt: Id | None = Field(None, description="the batch whose unfinished groups are taken over")
    stop_uniform_after: int | None = Field(
        None, ge=2, description="give a group up whose first so many samples are alike"
    )
    stop_group_when_decided: bool = Field(
        False, description="a group whose rewards differ is done when it has min_samples"
    )
    memory: Name | None = Field(
        None, description="prompts that were uniform lately, under this name, are tried after the others"
    )
    idle_timeout: float = Field(3600.0, gt=0.0, le=7 * 86400.0, description="seconds that it waits for prompts")
    defaults: Defaults = Field(default_factory=lambda: Defaults.model_validate({}))

    _prompts_differ = field_validator("prompts")(_differ)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.informative is not None and self.samples_per_group < 2:
            raise ValueError(
                "samples_per_group: rewards of one sample cannot differ; ask for two or more, or for informative: null"
            )
        if self.max_inflight_jobs < self.samples_per_group:
            raise ValueError("max_inflight_jobs: is less than one group's samples_per_group")
        if self.min_samples is not None and self.min_samples > self.samples_per_group:
            raise ValueError("min_samples: is more than samples_per_group")
        if self.stop_uniform_after is not None and self.stop_uniform_after > self.samples_per_group:
            raise ValueError("stop_uniform_after: is more than samples_per_group")
        return self


class MorePrompts(Incoming):
    """Prompts for a batch that is there."""

    prompts: tuple[Prompt, ...] = Field((), max_length=MOST_PROMPTS)
    more_prompts: bool = Field(True, description="false: these are the last")

    _prompts_differ = field_validator("prompts")(_differ)


class GroupCounts(BaseModel):
    """Groups of a batch by what became of them. `informative` are those that count."""

    pending: int = 0
    inflight: int = 0
    informative: int = 0
    uninformative: int = 0
    uniform_0: int = Field(0, description="of the uninformative: all rewards 0 or less")
    uniform_1: int = Field(0, description="of the uninformative: all rewards 1 or more")
    failed: int = 0
    revoked: int = 0
    carried: int = Field(0, description="adopted from another batch; they count among the others too")
    withdrawn: int = 0


class JobCounts(BaseModel):
    """Jobs of a batch. `live`: queued or running."""

    live: int = 0
    started: int = 0
    redrawn: int = 0


class Spent(BaseModel):
    """What was spent on what is thrown away: seconds of work in all stages, sampled tokens."""

    seconds: float = 0.0
    tokens: int = 0


class Waste(BaseModel):
    """By reason: samples of revoked groups, of uniform ones, of failed samples and groups."""

    revoked: Spent = Spent()
    uniform: Spent = Spent()
    failed: Spent = Spent()


class BatchStatus(BaseModel):
    """Where a batch stands."""

    batch_id: str
    state: BatchState
    target_groups: int
    samples_per_group: int
    prompts: int
    more_prompts: bool
    groups: GroupCounts
    jobs: JobCounts
    waste: Waste
    informative_rate: float | None = Field(None, description="informative groups of those that closed scored")
    seconds_to_target: float | None = Field(None, description="an estimate, from the rate at which groups were won")
    adopted_by: str | None = None
    created_at: str
    ended_at: str | None = None


class GroupView(BaseModel):
    """A group that counts. `results` are those of its samples, each as of a job."""

    group_id: str
    prompt_id: str
    batch_id: str = Field(description="the batch that drew it; another than the one that is asked where it was adopted")
    samples: int
    scored: int
    min_reward: float
    max_reward: float
    oldest_policy_version: int | None
    results: list[dict[str, Any]] = Field(default_factory=list)
