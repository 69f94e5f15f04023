"""`prorl submit`: a file of problems in, a file of trajectories out."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from prorl_celery.cli.api import Api
from prorl_celery.cli.common import connect, json_option, service_options
from prorl_celery.cli.jobfile import JobOptions
from prorl_celery.cli.jobsource import DATASETS, JobSource, rows_of_dataset
from prorl_celery.cli.output import print_json
from prorl_celery.cli.progress import follow
from prorl_celery.cli.report import Tally
from prorl_celery.cli.resultfile import ResultFile
from prorl_celery.cli.rowreport import check_rows
from prorl_celery.cli.submission import Submission
from prorl_celery.data.columns import ToInstance, load_map, load_table
from prorl_celery.data.columns_known import KNOWN
from prorl_celery.errors import ApiUnavailable, SettingsError

PATIENCE_S = 300.0
"""How long a service that restarts is waited for."""
BAD_ROWS = 2
"""Exit code: nothing was sent, since not all rows will do."""


@click.command()
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False), required=False)
@click.option("--dataset", metavar="NAME", help=f"Instead of a file: {', '.join(DATASETS)}.")
@click.option("--columns", metavar="NAME|FILE", help=f"How a row becomes an instance: {', '.join(KNOWN)}, or a map.")
@click.option("--limit", type=click.IntRange(1), help="Only the first so many problems.")
@click.option("--samples", type=click.IntRange(1), default=1, show_default=True, help="Jobs per problem.")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="Default: NAME.results.jsonl here.")
@click.option("--run", help="A name for the run: another one repeats jobs that were run before.")
@click.option("--inflight", type=click.IntRange(1), default=1000, show_default=True, help="Most jobs not yet ended.")
@click.option("--model", help="Where several models are served.")
@click.option("--temperature", type=float)
@click.option("--max-tokens", type=click.IntRange(1), help="Of one turn.")
@click.option("--max-turns", type=click.IntRange(1))
@click.option("--reward-url", metavar="URL", help="A server that scores instead of the handlers.")
@click.option(
    "--reward-shaping",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="TOML or JSON: what is taken off rewards for length and repetition.",
)
@click.option("--skip-bad", is_flag=True, help="Leave out rows that will not do, instead of sending nothing.")
@click.option("--dry-run", is_flag=True, help="Check all rows, say what they are, send nothing.")
@service_options
@json_option
def submit(
    file: Path | None,
    dataset: str | None,
    columns: str | None,
    limit: int | None,
    samples: int,
    out: Path | None,
    run: str | None,
    inflight: int,
    model: str | None,
    temperature: float | None,
    max_tokens: int | None,
    max_turns: int | None,
    reward_url: str | None,
    reward_shaping: Path | None,
    skip_bad: bool,
    dry_run: bool,
    url: str | None,
    token: str | None,
    as_json: bool,
) -> None:
    """Submit the jobs of FILE, wait, write the results. FILE has jobs, or instances alone: JSON lines (also .gz, .zst),
    a JSON array, or parquet.

    All rows are checked before the first is sent; when one will not do, it is told with its line, nothing is sent, and
    the exit code is 2.

    Run again, it goes on where it stopped: ids come from the contents, and what stands in the results' file
    is not fetched again. The exit code is 0 when every job completed.
    """
    if (file is None) == (dataset is None):
        raise click.UsageError("give either FILE or --dataset")
    if dataset is not None and columns is not None:
        raise click.UsageError("--columns is for a FILE")
    name = file.name if file is not None else str(dataset)
    options = JobOptions(
        run=run or name,
        samples=samples,
        sampling_params=_given(model=model, temperature=temperature, max_tokens=max_tokens),
        agent=_given(max_turns=max_turns),
        reward_url=reward_url,
        reward_shaping=None if reward_shaping is None else load_table(reward_shaping),
    )
    more: dict[str, Any] = {"limit": limit, "to_instance": _map(columns)}
    if file is not None:
        source = JobSource.of_file(file, options, **more)
    else:
        source = JobSource(name, lambda: rows_of_dataset(name), options, **more)
    api = None if dry_run else connect(url, token, patience=PATIENCE_S)
    report = check_rows(source, api, skip_bad=skip_bad, show=dry_run, as_json=as_json, samples=samples)
    if report is None:
        sys.exit(BAD_ROWS)
    if api is None:
        return
    stem = Path(name).stem if file is not None else name.replace(":", "-")
    path = out or Path(f"{stem}.results.jsonl")
    _say_when_away(api)
    try:
        tally = run_jobs(api, source.jobs, path, inflight=inflight, count=report.good * samples, samples=samples)
    except KeyboardInterrupt:
        click.echo("prorl: interrupted; what was submitted runs on. The same command goes on from here.", err=True)
        sys.exit(130)
    if as_json:
        print_json({**tally.summary(), "results": str(path)})
    else:
        tally.show()
        click.echo(f"trajectories: {path}")
        if tally.errors:
            click.echo("jobs that failed stay so when this is run again; --run NAME makes new ones of all", err=True)
    sys.exit(0 if tally.states["completed"] == tally.total else 1)


def _map(columns: str | None) -> ToInstance | None:
    """A map by its name, else by its file. Raises `SettingsError`."""
    if columns is None or columns in KNOWN:
        return None if columns is None else KNOWN[columns]
    if not Path(columns).exists():
        raise SettingsError(f"--columns {columns}: no such file, nor one of {', '.join(KNOWN)}")
    return load_map(Path(columns))


def _say_when_away(api: Api) -> None:
    """It may be starting, so it is waited for; but who mistyped an address should not wait without a word."""
    try:
        api.with_patience(0.0).get("healthz")
    except ApiUnavailable as error:
        click.echo(f"prorl: {error}; waiting for it, {PATIENCE_S:.0f} s at most", err=True)


def run_jobs(
    api: Api,
    jobs: Callable[[], Iterator[dict[str, Any]]],
    path: Path,
    *,
    inflight: int = 1000,
    count: int | None = None,
    samples: int = 0,
) -> Tally:
    """Submit the jobs that `jobs()` iterates, write their results to `path` and count them. Raises
    `ApiError`. `count`: how many they are, where that is known; `samples`: how many of a group, likewise.
    """
    with ResultFile(path) as out:
        here = {result["job_id"]: result for result in out.results}
        if here or count is None:
            wanted, count = [], 0
            for job in jobs():
                count += 1
                if job["job_id"] in here:
                    wanted.append(job["job_id"])
        else:
            wanted = []
        tally = Tally(count, samples=samples)
        for job_id in wanted:
            tally.add(here[job_id], earlier=True)
        follow(Submission(api, out, jobs(), inflight=inflight).run(), tally)
    return tally


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}
