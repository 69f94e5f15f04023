"""What `prorl submit` says of the rows of a file before it sends any."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import islice
from typing import Any

import click

from prorl_celery.cli.api import Api
from prorl_celery.cli.common import settings_with
from prorl_celery.cli.jobsource import JobSource
from prorl_celery.cli.output import print_json
from prorl_celery.data.checking import MOST_TOLD, Report, Twice
from prorl_celery.errors import ApiError, SettingsError
from prorl_celery.handlers.registry import HandlerRegistry, load_handlers

SHOWN_CHARACTERS = 2000


def check_rows(
    source: JobSource, api: Api | None, *, skip_bad: bool, show: bool, as_json: bool, samples: int
) -> Report | None:
    """Check all rows, tell what is bad, what is there twice and what could not be checked; None when nothing may be
    sent. `show`: tell all there is to know, to stdout. Raises `ApiError`.
    """
    report = source.check(_handlers())
    refused = bool(report.bad) and (report.ends or not skip_bad)
    for bad in report.bad:
        _say(f"{source.name}, {bad}")
    if (more := len(report.bad_rows) - len(report.bad)) > 0:
        _say(f"{more} more rows will not do")
    if refused:
        _say("nothing was sent" + ("" if report.ends else "; --skip-bad leaves such rows out"))
    elif report.bad:
        _say(f"{len(report.bad_rows)} of {report.good + len(report.bad_rows)} rows are left out")
    same, same_id = source.repeated() if not refused else (Twice(set()), Twice(set()))
    _tell_repeated(same, "rows are the same as another; each is a job of its own")
    _tell_repeated(same_id, "rows have the instance_id of another one")
    for name, count in report.unchecked.items():
        _say(f"{count} rows of {name!r} were not checked: its handler is not here (PRORL_HANDLERS)")
    if api is not None and not refused and (unknown := _nobodys(report.unchecked, api)):
        _say(f"no node of the service has a handler for {', '.join(unknown)}; nothing was sent")
        refused = True
    if show:
        _show(source, report, same, same_id, as_json=as_json, samples=samples)
    return None if refused else report


def _handlers() -> HandlerRegistry | None:
    """The handlers of this environment; None, said, where they cannot be had: then the service checks."""
    try:
        return load_handlers(settings_with()[0])
    except SettingsError as error:
        _say(f"instances are not checked here: {error}")
        return None


def _nobodys(sources: Iterable[str], api: Api) -> list[str]:
    """Those that no node knows. None where no node is up, or this token may not ask."""
    wanted = list(sources)
    if not wanted:
        return []
    try:
        nodes = api.get("v1", "nodes")["nodes"]
    except ApiError as error:
        if error.status != 403:
            raise
        return []
    known = {name for node in nodes for name in node["handlers"]}
    return [name for name in wanted if known and not {name, name.split("/", 1)[0] + "/*"} & known]


def _tell_repeated(twice: Twice, what: str) -> None:
    if twice.count:
        _say(f"{twice.count} {what}: {'; '.join(twice.told[:3])}{'; ...' if twice.count > 3 else ''}")


def _show(source: JobSource, report: Report, same: Twice, same_id: Twice, *, as_json: bool, samples: int) -> None:
    first = next(islice(source.jobs(), 1), None) if report.good else None
    if as_json:
        print_json(
            {
                "rows": report.good,
                "bad_rows": len(report.bad_rows),
                "bad": [
                    {"where": bad.where, "field": bad.field, "message": bad.message} for bad in report.bad[:MOST_TOLD]
                ],
                "jobs": report.good * samples,
                "data_sources": dict(report.sources),
                "unchecked": dict(report.unchecked),
                "same_rows": same.count,
                "same_instance_ids": same_id.count,
                "first": first,
            }
        )
        return
    of = ", ".join(f"{count} of {name!r}" for name, count in report.sources.items()) or "none"
    click.echo(
        f"rows that will do: {report.good} ({of}); others: {len(report.bad_rows)}; jobs: {report.good * samples}"
    )
    if first is not None:
        click.echo(f"the first: {_cut(first['instance'])}")


def _cut(instance: Any) -> str:
    text = json.dumps(instance, ensure_ascii=False)
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + f"... ({len(text)} characters)"


def _say(text: str) -> None:
    click.echo(f"prorl: {text}", err=True)
