"""eval: score what rollout left behind, by the handler or by the job's reward server; shape the reward; finish the job.

What is shaped is the reward alone, never `resolved`. `eval` in the result keeps the raw reward and what was taken off.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from prorl_celery.errors import EvalError, RewardRefused
from prorl_celery.handlers.base import EvalContext
from prorl_celery.jobs.models import RewardShaping
from prorl_celery.jobs.turns import Turn
from prorl_celery.rewards import remote
from prorl_celery.rewards.parts import checked_parts, finite
from prorl_celery.rewards.shaping import shape
from prorl_celery.rewards.urls import allowed, origin, shown
from tasks.contexts import EvalStage
from tasks.sandboxes import StageSandboxes
from tasks.work import Work, call_handler


def run(work: Work) -> None:
    """Run eval of a claim and finish its job."""
    work.clock.start()
    claim = work.claim
    repeated = work.published != work.rollout["fence"]
    sandboxes = StageSandboxes(work, "eval", work.rollout["sandboxes"], taken_over=repeated)
    if repeated:
        # An eval before this one may have used what was started ahead for eval.
        sandboxes.forget_ahead()
    ctx = EvalStage(work, sandboxes, work.init["handler"], work.rollout["handler"])
    asked = work.handler.eval if work.job.reward_url is None else lambda ctx: _of_server(work, ctx)
    verdict = call_handler(work, asked, ctx, "eval")
    reward, resolved = _scored(verdict)
    verdict = _told(verdict)
    if (shaping := work.job.reward_shaping) is not None:
        reward, verdict = _shaped(reward, verdict, ctx.turns(), shaping)
    work.end(
        lambda: work.process.store.finish(
            claim,
            state="completed",
            finish_reason=work.rollout["finish_reason"],
            reward=reward,
            resolved=resolved,
            artifacts=work.rollout["artifacts"],
            eval=verdict,
            **work.times(),
        )
    )


def _scored(verdict: Any) -> tuple[float, bool | None]:
    """Reward and resolved of what eval returned. Raises `EvalError` when there is no reward in it."""
    if not isinstance(verdict, dict):
        raise EvalError(f"eval must return an object with a reward, not {type(verdict).__name__}")
    reward = verdict.get("reward")
    number = finite(reward)
    if number is None:
        said = f"{reward!r:.80} ({type(reward).__name__})" if "reward" in verdict else "absent"
        raise EvalError(f"eval's reward must be a finite number, but is {said}")
    resolved = verdict.get("resolved")
    if resolved is not None and not isinstance(resolved, bool):
        raise EvalError(f"eval's resolved must be true, false or null, not {resolved!r}")
    return number, resolved


def _told(verdict: dict[str, Any]) -> dict[str, Any]:
    """What the result's `eval` says: all that eval returned, its parts as floats. Raises `EvalError` for bad parts."""
    parts = checked_parts(verdict)
    return {**verdict, "reward_parts": parts} if parts else verdict


def _shaped(
    reward: float, verdict: dict[str, Any], turns: Sequence[Turn], shaping: RewardShaping
) -> tuple[float, dict[str, Any]]:
    """The shaped reward, and what `eval` says of how it came about."""
    shaped = shape(reward, turns, shaping)
    if finite(shaped.reward) is None:
        raise EvalError(f"eval's reward, {reward:g}, cannot be shaped: {shaped.reward:g} is no finite number")
    parts = {**(verdict.get("reward_parts") or {}), **shaped.parts}
    return shaped.reward, {**verdict, "reward": shaped.reward, "raw_reward": reward, "reward_parts": parts}


MARGIN_SECONDS = 1.0
"""Left to say why there is no score, before the stage's end; of a short stage half."""


def _of_server(work: Work, ctx: EvalContext) -> dict[str, Any]:
    """What the job's reward server says. Raises `RewardUnavailable`, `RewardRefused`, and what the signal raises."""
    url, settings = str(work.job.reward_url), work.process.settings
    if settings.reward_urls and not allowed(url, settings.reward_urls):
        raise RewardRefused(f"PRORL_REWARD_URLS of this node does not allow {origin(url)}")
    body = remote.body_of(
        work.handler.solution(ctx), work.handler.ground_truth(ctx.instance), work.job.instance.data_source
    )
    left = work.clock.remaining_seconds
    seconds = min(max(left / 2, left - MARGIN_SECONDS), settings.reward_wait_seconds)
    models, servers = work.process.models, work.process.rewards
    began = time.monotonic()
    with work.act(f"reward call {origin(url)}"):
        found = models.call(
            lambda: remote.score(
                models.session, servers, url, body, seconds=seconds, call_seconds=settings.reward_timeout_seconds
            ),
            cancel=work.signal,
            timeout=left,
        )
    server = {"url": shown(url), "seconds": round(time.monotonic() - began, 4), "said": found.said}
    return {"reward": found.score, "reward_server": server}
