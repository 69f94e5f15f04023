"""The job as trainers see it: what they send, what they read back. The API's schema is generated from these.

Names are fixed by the HTTP contract. Unknown fields are refused on what comes in.
"""

from __future__ import annotations

import secrets
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationInfo,
    field_validator,
    model_validator,
)

Stage = Literal["init", "rollout", "eval"]
State = Literal["queued", "running", "completed", "failed", "cancelled", "timed_out"]
FinishReason = Literal["finish", "stop", "max_turns", "context_overflow", "timeout", "cancelled", "error"]
ErrorKind = Literal[
    "bad_instance",
    "handler",
    "sandbox",
    "backend",
    "tool",
    "context_overflow",
    "timeout",
    "cancelled",
    "lost_worker",
    "eval",
    "internal",
]

STAGES: tuple[Stage, ...] = ("init", "rollout", "eval")
TERMINAL: frozenset[State] = frozenset({"completed", "failed", "cancelled", "timed_out"})

Id = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._:-]{1,128}$")]
Name = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]{1,256}$")]


def _http_url(url: str) -> str:
    """The url itself. Messages repeat nothing of it: it may hold a secret."""
    if any(character <= " " or character == "\x7f" for character in url):
        raise ValueError("a url has no blanks and no control characters")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ValueError("is no url: its host or its port cannot be read") from None
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.fragment or port == 0:
        raise ValueError("must be http://HOST/... or https://HOST/..., without a fragment")
    return url


HttpUrl = Annotated[str, StringConstraints(max_length=2048), AfterValidator(_http_url)]


class Incoming(BaseModel):
    """A body that a caller sends: unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Instance(BaseModel):
    """The task's data. `data_source` names the handler; the other fields are the handler's own."""

    model_config = ConfigDict(extra="allow", frozen=True)

    data_source: Name
    instance_id: Name | None = None

    def data(self) -> dict[str, Any]:
        """All fields that were given, the handler's own among them, nulls too."""
        data = self.model_dump()
        if self.instance_id is None:
            del data["instance_id"]
        return data


class SamplingParams(Incoming):
    """How the model samples. `model` may be left out where one model alone is served."""

    model: Name | None = None
    temperature: float = Field(1.0, ge=0.0, le=10.0)
    top_p: float = Field(1.0, gt=0.0, le=1.0)
    top_k: int | None = Field(None, ge=-1)
    max_tokens: int = Field(2048, ge=1, le=1_000_000, description="most tokens of one turn")
    seed: int | None = Field(None, ge=0, lt=2**63)
    stop: tuple[Annotated[str, StringConstraints(min_length=1)], ...] = ()


class AgentParams(Incoming):
    """What the agent may do."""

    max_turns: int = Field(50, ge=1, le=10_000)
    max_context_tokens: int | None = Field(None, ge=1, description="default: the backend's")
    tools: tuple[Name, ...] | None = Field(None, description="default: the handler's")


class Timeouts(Incoming):
    """Seconds of work each stage may take; waiting is not charged."""

    init: float = Field(300.0, gt=0.0, le=7 * 86400.0)
    rollout: float = Field(3600.0, gt=0.0, le=7 * 86400.0)
    eval: float = Field(1200.0, gt=0.0, le=7 * 86400.0)


class LLMParams(Incoming):
    """`tokens`: token-in/token-out; `chat`: messages in, messages out. Default: tokens where the backend can."""

    mode: Literal["tokens", "chat"] | None = None


class Overlong(Incoming):
    """A penalty for sampling more tokens than wished (Yu et al. 2025, "DAPO", section 3.4): none up to `max_tokens`
    less `buffer_tokens`, from there growing evenly to `penalty` at `max_tokens`, and `penalty` beyond.
    """

    max_tokens: int = Field(ge=1, le=100_000_000, description="sampled tokens of the whole trajectory")
    buffer_tokens: int = Field(ge=0, description="over which the penalty grows; 0: all of it beyond max_tokens")
    penalty: float = Field(1.0, ge=0.0, le=1e6, allow_inf_nan=False, description="most that is taken off the reward")

    @field_validator("buffer_tokens")
    @classmethod
    def _fits(cls, buffer_tokens: int, info: ValidationInfo) -> int:
        most = info.data.get("max_tokens")
        if most is not None and buffer_tokens > most:
            raise ValueError(f"is more than max_tokens, {most}")
        return buffer_tokens


class Repetition(Incoming):
    """A penalty for saying the same again: `penalty` times the share of n-grams that stand in the trajectory before."""

    ngram: int = Field(ge=1, le=1024, description="tokens of one n-gram; words where a backend gives no token ids")
    penalty: float = Field(ge=0.0, le=1e6, allow_inf_nan=False, description="taken off where all is repeated")


class RewardShaping(Incoming):
    """What is taken off a reward for how its trajectory looks. The result keeps the raw one: `eval.raw_reward`."""

    overlong: Overlong | None = None
    repetition: Repetition | None = None

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.overlong is None and self.repetition is None:
            raise ValueError("names neither overlong nor repetition")
        return self


def _is_none(value: object) -> bool:
    return value is None


class JobOptions(Incoming):
    """How a job is run: all of it but its id and instance."""

    sampling_params: SamplingParams = Field(default_factory=lambda: SamplingParams.model_validate({}))
    agent: AgentParams = Field(default_factory=lambda: AgentParams.model_validate({}))
    timeouts: Timeouts = Field(default_factory=lambda: Timeouts.model_validate({}))
    llm: LLMParams = Field(default_factory=lambda: LLMParams.model_validate({}))
    max_attempts: int = Field(3, ge=1, le=100, description="tries at the job; of each, tries at its eval")
    priority: int = Field(5, ge=0, le=9)
    policy_version: int | None = Field(None, ge=0)
    tags: dict[Name, Name] = Field(default_factory=dict, max_length=32)
    # Left out where there is none: the fingerprints of jobs that were accepted by an earlier version stay.
    reward_url: HttpUrl | None = Field(
        None, exclude_if=_is_none, description="a server that scores instead of the handler's eval"
    )
    reward_shaping: RewardShaping | None = Field(None, exclude_if=_is_none)


class JobRequest(JobOptions):
    """One rollout of one instance."""

    job_id: Id = Field(default_factory=lambda: "job-" + secrets.token_hex(8))
    instance: Instance


class JobList(Incoming):
    """Many jobs, accepted or refused as a whole."""

    jobs: tuple[JobRequest, ...] = Field(min_length=1, max_length=1000)

    @field_validator("jobs")
    @classmethod
    def _ids_differ(cls, jobs: tuple[JobRequest, ...]) -> tuple[JobRequest, ...]:
        seen: set[str] = set()
        for job in jobs:
            if job.job_id in seen:
                raise ValueError(f"job_id {job.job_id} stands twice in the list")
            seen.add(job.job_id)
        return jobs


class JobError(BaseModel):
    """Why a job failed. `retryable`: the same job sent anew might succeed."""

    kind: ErrorKind
    stage: Stage | None
    message: str
    retryable: bool


class StageTiming(BaseModel):
    """Seconds a job waited for a stage and was worked on in it, over all attempts."""

    queued: float = 0.0
    running: float = 0.0


class Stalled(BaseModel):
    """What a running job has been at for so long that it counts as stalled."""

    stage: Stage
    node: str
    process: str
    thread: str
    act: str
    seconds: float


class JobStatus(BaseModel):
    """Where a job stands."""

    job_id: str
    state: State
    stage: Stage | None
    attempt: int
    node: str | None = None
    backend: str | None = None
    turns: int = 0
    last_activity: str | None = None
    created_at: str
    finished_at: str | None = None
    batch_id: str | None = None
    group_id: str | None = None
    tags: dict[str, str] = Field(default_factory=dict)
    cancel_requested: bool = False
    timing: dict[Stage, StageTiming] = Field(default_factory=dict)
    reward: float | None = None
    error: JobError | None = None
    stalled: Stalled | None = Field(None, description="what a job that does not move is at, and for how long")


class Segment(BaseModel):
    """One training row. All lists but `prompt_ids` have one length (see the HTTP contract)."""

    prompt_ids: list[int]
    response_ids: list[int]
    loss_mask: list[int]
    logprobs: list[float]
    policy_versions: list[int]
    split_reason: str | None = None


class TurnSummary(BaseModel):
    """One model call and the tool calls that followed."""

    llm_s: float
    tool_s: float
    prompt_tokens: int
    completion_tokens: int
    backend: str | None
    policy_version: int | None
    finish_reason: str
    total_s: float = 0.0
    cached_tokens: int | None = None
    malformed_calls: int = 0


class Result(BaseModel):
    """What a trainer takes away from a finished job."""

    job_id: str
    state: State
    reward: float | None = None
    resolved: bool | None = None
    finish_reason: FinishReason
    messages: list[dict[str, Any]]
    segments: list[Segment]
    turns: list[TurnSummary]
    artifacts: dict[str, Any] = Field(default_factory=dict)
    eval: dict[str, Any] = Field(default_factory=dict)
    timing: dict[Stage, StageTiming] = Field(default_factory=dict)
    error: JobError | None = None
    attempt: int = 1
    instance_id: str | None = None
    tags: dict[str, str] = Field(default_factory=dict)
