"""`prorl jobs`, `show`, `events`, `cancel`, `retry`: look at jobs, end them, give them a new life."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import click

from prorl_celery.cli.common import client_of, connect, json_option, service_options
from prorl_celery.cli.output import print_json, print_table, seconds
from prorl_celery.errors import ApiError

STATES = ("queued", "running", "completed", "failed", "cancelled", "timed_out")


@click.command()
@service_options
@json_option
@click.option("--state", type=click.Choice(STATES))
@click.option("--tag", metavar="KEY[=VALUE]")
@click.option("--batch", "batch_id", metavar="ID")
@click.option("--dead", is_flag=True, help="Those that failed for good, though another try might help.")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True)
@click.option("--cursor", help="Of the page before.")
def jobs(url: str | None, token: str | None, as_json: bool, dead: bool, **query: Any) -> None:
    """List jobs, newest first; with --dead the dead letters, the latest first. `prorl retry` gives them a new life."""
    if dead:
        query["dead"] = "true"
    page = connect(url, token).get("v1", "jobs", **query)
    if as_json:
        print_json(page)
        return
    rows = [
        (
            job["job_id"],
            job["state"],
            job["stage"],
            job["attempt"],
            job["turns"],
            job["reward"],
            job["created_at"],
            (job["error"] or {}).get("message"),
        )
        for job in page["jobs"]
    ]
    print_table(("job_id", "state", "stage", "attempt", "turns", "reward", "created", "error"), rows)
    if page["next"]:
        click.echo(f"more: --cursor {page['next']}", err=True)


@click.command()
@click.argument("job_id")
@service_options
@json_option
@click.option("--wait", is_flag=True, help="Until it has ended.")
def show(job_id: str, url: str | None, token: str | None, as_json: bool, wait: bool) -> None:
    """Show a job: its status and, once it has ended, its trajectory. With --json, the result with all
    token ids.
    """
    api = connect(url, token, patience=60.0 if wait else 0.0)
    status = api.get("v1", "jobs", job_id)
    while wait and status["state"] in {"queued", "running"}:
        status = api.get("v1", "jobs", job_id, wait=30)
    result = _result(api, job_id, tokens=as_json)
    if as_json:
        print_json(result or status)
        return
    facts = [(name, status[name]) for name in ("state", "stage", "attempt", "node", "backend", "turns", "reward")]
    facts += [(stage, _stage(timing)) for stage, timing in status["timing"].items()]
    facts += [(f"reward: {name}", value) for name, value in _parts(result)]
    if stall := status.get("stalled"):
        facts.append(("stalled", f"at {stall['act']} for {seconds(stall['seconds'])} ({stall['process']})"))
    if status["error"]:
        facts.append(("error", f"{status['error']['kind']}: {status['error']['message']}"))
    print_table(("", job_id), facts)
    for message in (result or {}).get("messages", []):
        _say(message)
    if result and result.get("eval"):
        click.echo(f"eval: {json.dumps(result['eval'], ensure_ascii=False)}")


@click.command()
@click.argument("job_id")
@service_options
@json_option
@click.option("--timeout", type=click.FloatRange(min=0.0), default=7 * 86400.0, help="Seconds; default: 7 days.")
def events(job_id: str, url: str | None, token: str | None, as_json: bool, timeout: float) -> None:
    """Tell what happens to a job, from its start to its end. With --json, a line of JSON each."""
    for event in client_of(url, token).events(job_id, timeout=timeout):
        data = dict(event.data)
        if as_json:
            click.echo(json.dumps({"number": event.number, "event": event.name, **data}))
        else:
            at = data.pop("at")
            click.echo(f"{at} {event.name} " + " ".join(f"{name}={value}" for name, value in data.items()))


@click.command()
@click.argument("job_ids", nargs=-1, required=True)
@service_options
def cancel(job_ids: tuple[str, ...], url: str | None, token: str | None) -> None:
    """Cancel jobs."""
    api = connect(url, token)
    _each(job_ids, lambda job_id: api.delete("v1", "jobs", job_id))


@click.command()
@click.argument("job_ids", nargs=-1, required=True)
@service_options
def retry(job_ids: tuple[str, ...], url: str | None, token: str | None) -> None:
    """Give jobs that failed or timed out a new life: all their attempts, from init. Their results are withdrawn."""
    api = connect(url, token)
    _each(job_ids, lambda job_id: api.post("v1", "jobs", job_id, "retry", body=None))


def _each(job_ids: tuple[str, ...], act: Callable[[str], dict[str, Any]]) -> None:
    """Do it to each, and tell what became of it; the exit code is 1 when one was refused."""
    failed = False
    for job_id in job_ids:
        try:
            status = act(job_id)
        except ApiError as error:
            click.echo(f"{job_id}: {error}", err=True)
            failed = True
        else:
            asked = " (asked to stop)" if status.get("cancel_requested") else ""
            click.echo(f"{job_id}: {status['state']}{asked}")
    sys.exit(1 if failed else 0)


def _result(api: Any, job_id: str, *, tokens: bool) -> dict[str, Any] | None:
    try:
        result: dict[str, Any] = api.get("v1", "jobs", job_id, "result", tokens=str(tokens).lower())
    except ApiError as error:
        if error.status in {409, 410}:
            return None
        raise
    return result


def _parts(result: dict[str, Any] | None) -> list[tuple[str, float]]:
    """What the reward is made of: the raw one where it was shaped, the parts that were told."""
    told = (result or {}).get("eval") or {}
    raw = [("raw", told["raw_reward"])] if "raw_reward" in told else []
    parts = told.get("reward_parts")
    return raw + (list(parts.items()) if isinstance(parts, dict) else [])


def _stage(timing: dict[str, float]) -> str:
    return f"queued {seconds(timing['queued'])}, running {seconds(timing['running'])}"


def _say(message: dict[str, Any]) -> None:
    click.echo(f"\n[{message.get('role')}]")
    if message.get("content"):
        content = message["content"]
        click.echo(content if isinstance(content, str) else json.dumps(content, ensure_ascii=False))
    for called in message.get("tool_calls") or []:
        function = called.get("function", {})
        click.echo(f"-> {function.get('name')}({function.get('arguments')})")
