"""`prorl submit`: a file of problems in, a file of trajectories out."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import click

from prorl_celery.cli.api import Api
from prorl_celery.cli.common import connect, json_option, service_options
from prorl_celery.cli.jobfile import DATASETS, bodies_of, jobs_of
from prorl_celery.cli.output import print_json
from prorl_celery.cli.progress import follow
from prorl_celery.cli.report import Tally
from prorl_celery.cli.resultfile import ResultFile
from prorl_celery.cli.submission import Submission
from prorl_celery.errors import ApiUnavailable

PATIENCE_S = 300.0
"""How long a service that restarts is waited for."""


@click.command()
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False), required=False)
@click.option("--dataset", type=click.Choice(list(DATASETS)), help="Instead of a file.")
@click.option("--limit", type=click.IntRange(1), help="Only the first so many problems.")
@click.option("--samples", type=click.IntRange(1), default=1, show_default=True, help="Jobs per problem.")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="Default: NAME.results.jsonl here.")
@click.option("--run", help="A name for the run: another one repeats jobs that were run before.")
@click.option("--inflight", type=click.IntRange(1), default=1000, show_default=True, help="Most jobs not yet ended.")
@click.option("--model", help="Where several models are served.")
@click.option("--temperature", type=float)
@click.option("--max-tokens", type=click.IntRange(1), help="Of one turn.")
@click.option("--max-turns", type=click.IntRange(1))
@service_options
@json_option
def submit(
    file: Path | None,
    dataset: str | None,
    limit: int | None,
    samples: int,
    out: Path | None,
    run: str | None,
    inflight: int,
    model: str | None,
    temperature: float | None,
    max_tokens: int | None,
    max_turns: int | None,
    url: str | None,
    token: str | None,
    as_json: bool,
) -> None:
    """Submit the jobs of FILE (JSON lines: jobs, or instances alone), wait, write the results.

    Run again, it goes on where it stopped: ids come from the contents, and what stands in the results' file
    is not fetched again. The exit code is 0 when every job completed.
    """
    if (file is None) == (dataset is None):
        raise click.UsageError("give either FILE or --dataset")
    name = file.name if file is not None else str(dataset)
    sampling = _given(model=model, temperature=temperature, max_tokens=max_tokens)

    def jobs() -> Iterator[dict[str, Any]]:
        bodies = bodies_of(file) if file is not None else DATASETS[str(dataset)]()
        return jobs_of(
            islice(bodies, limit),
            samples=samples,
            run=run or name,
            sampling_params=sampling,
            agent=_given(max_turns=max_turns),
        )

    path = out or Path(f"{Path(name).stem}.results.jsonl")
    api = connect(url, token, patience=PATIENCE_S)
    _say_when_away(api)
    try:
        tally = run_jobs(api, jobs, path, inflight=inflight)
    except KeyboardInterrupt:
        click.echo("prorl: interrupted; what was submitted runs on. The same command goes on from here.", err=True)
        sys.exit(130)
    if as_json:
        print_json({**tally.summary(), "results": str(path)})
    else:
        tally.show()
        click.echo(f"trajectories: {path}")
    sys.exit(0 if tally.states["completed"] == tally.total else 1)


def _say_when_away(api: Api) -> None:
    """It may be starting, so it is waited for; but who mistyped an address should not wait without a word."""
    try:
        api.with_patience(0.0).get("healthz")
    except ApiUnavailable as error:
        click.echo(f"prorl: {error}; waiting for it, {PATIENCE_S:.0f} s at most", err=True)


def run_jobs(api: Api, jobs: Any, path: Path, *, inflight: int = 1000) -> Tally:
    """Submit the jobs that `jobs()` iterates, write their results to `path` and count them. Raises
    `ApiError`.
    """
    wanted = {job["job_id"] for job in jobs()}
    tally = Tally(len(wanted))
    with ResultFile(path) as out:
        for result in out.results:
            if result["job_id"] in wanted:
                tally.add(result, earlier=True)
        follow(Submission(api, out, jobs(), inflight=inflight).run(), tally)
    return tally


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}
