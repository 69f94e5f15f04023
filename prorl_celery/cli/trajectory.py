"""What `prorl handler try` prints of a job that has ended."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from prorl_celery.cli.output import seconds
from prorl_celery.jobs.models import STAGES

if TYPE_CHECKING:
    from prorl_celery.testing.local import Outcome

SHOWN_CHARACTERS = 4000
"""Of one message; the JSON form has all."""


def print_outcome(outcome: Outcome) -> None:
    """The trajectory, and what came of it."""
    result = outcome.result
    click.echo(f"== {result.job_id}")
    turn = -1
    for message in result.messages:
        turn += message.get("role") == "assistant"
        _print_message(message, outcome, turn)
    click.echo("")
    if result.artifacts:
        click.echo(f"artifacts: {_shortened(json.dumps(result.artifacts, ensure_ascii=False))}")
    if result.eval:
        click.echo(f"eval: {_shortened(json.dumps(result.eval, ensure_ascii=False))}")
    click.echo(
        f"{result.state}, {result.finish_reason}: reward {result.reward}, resolved {json.dumps(result.resolved)}"
    )
    spent = [(stage, result.timing[stage].running) for stage in STAGES if stage in result.timing]
    click.echo("time: " + ", ".join(f"{stage} {seconds(worked)}" for stage, worked in spent))
    if result.error is not None:
        at = f" in {result.error.stage}" if result.error.stage else ""
        click.echo(f"error of kind {result.error.kind}{at}: {result.error.message}", err=True)
    if outcome.stuck:
        click.echo(f"not all of it would stop: {outcome.stuck}", err=True)


def print_rewards(outcomes: Sequence[Outcome], total_seconds: float) -> None:
    """A last line about all of them."""
    rewards = [outcome.result.reward for outcome in outcomes]
    scored = [reward for reward in rewards if reward is not None]
    if len(outcomes) > 1:
        mean = f", on average {sum(scored) / len(scored):.3f}" if scored else ""
        click.echo(f"== {len(outcomes)} samples: {len(scored)} with a reward{mean}")
    click.echo(f"{seconds(total_seconds)} in all")


def result_line(outcome: Outcome) -> str:
    """The result as the service would give it, on one line."""
    return outcome.result.model_dump_json()


def _print_message(message: dict[str, Any], outcome: Outcome, turn: int) -> None:
    role = message.get("role")
    if role == "assistant" and turn < len(outcome.result.turns):
        told = outcome.result.turns[turn]
        took = f"{told.completion_tokens} tokens in {seconds(told.llm_s)}"
        took += f", tools {seconds(told.tool_s)}" if message.get("tool_calls") else ""
        click.echo(f"\n[{role}, turn {turn}: {took}]")
    else:
        click.echo(f"\n[{role}]" if role != "tool" else f"[{message.get('name', role)}]")
    content = message.get("content")
    if content:
        click.echo(_shortened(content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)))
    for call in message.get("tool_calls") or []:
        function = call.get("function", {})
        click.echo(_shortened(f"-> {function.get('name')} {function.get('arguments')}"))


def _shortened(text: str) -> str:
    left_out = len(text) - SHOWN_CHARACTERS
    if left_out <= 0:
        return text
    half = SHOWN_CHARACTERS // 2
    return f"{text[:half]}\n... {left_out} characters left out ...\n{text[-half:]}"
