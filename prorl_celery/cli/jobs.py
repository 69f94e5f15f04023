"""`prorl jobs`, `show`, `cancel`: look at jobs and end them."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from prorl_celery.cli.common import connect, json_option, service_options
from prorl_celery.cli.output import print_json, print_table, seconds
from prorl_celery.errors import ApiError

STATES = ("queued", "running", "completed", "failed", "cancelled", "timed_out")


@click.command()
@service_options
@json_option
@click.option("--state", type=click.Choice(STATES))
@click.option("--tag", metavar="KEY[=VALUE]")
@click.option("--batch", "batch_id", metavar="ID")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True)
@click.option("--cursor", help="Of the page before.")
def jobs(url: str | None, token: str | None, as_json: bool, **query: Any) -> None:
    """List jobs, newest first."""
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
    if status["error"]:
        facts.append(("error", f"{status['error']['kind']}: {status['error']['message']}"))
    print_table(("", job_id), facts)
    for message in (result or {}).get("messages", []):
        _say(message)
    if result and result.get("eval"):
        click.echo(f"eval: {json.dumps(result['eval'], ensure_ascii=False)}")


@click.command()
@click.argument("job_ids", nargs=-1, required=True)
@service_options
def cancel(job_ids: tuple[str, ...], url: str | None, token: str | None) -> None:
    """Cancel jobs."""
    api = connect(url, token)
    failed = False
    for job_id in job_ids:
        try:
            status = api.delete("v1", "jobs", job_id)
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
