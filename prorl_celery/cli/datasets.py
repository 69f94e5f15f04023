"""`prorl datasets`: lay out data sets that jobs need more of than a line of JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from prorl_celery.cli.common import settings_with
from prorl_celery.cli.output import print_table
from prorl_celery.data.pypi.prepare import INSTANCES, Preparation, prepare
from prorl_celery.data.pypi.rows import PypiRow, files_of, rows_of
from prorl_celery.errors import DatasetError
from prorl_celery.grading.swe.pypi_material import roots_of
from prorl_celery.sandbox.share import extra_python
from prorl_celery.settings import Settings

PYTHON_SECONDS = 20.0


@click.group()
def datasets() -> None:
    """Data sets that jobs need more of than a line of JSON."""


@datasets.command("prepare")
@click.argument("kind", type=click.Choice(["swe-pypi"]))
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), metavar="DIR")
@click.option(
    "--from", "places", multiple=True, type=click.Path(path_type=Path), metavar="FILE_OR_FOLDER",
    help="Instances: a JSON file, or a folder of such; again for more. Default: those in DIR itself.",
)  # fmt: skip
@click.option("--gold", type=click.Path(path_type=Path), metavar="FOLDER", help="Write the fixes too: FOLDER/ID.diff.")
@click.option("--image", help="The image of the sandboxes; default: the host's programs, without one.")
@click.option("--python", metavar="X.Y", help="The sandboxes' Python; default: that of sandboxes without an image.")
@click.option("--pytest", default="pytest>=7", show_default=True, help="Which pytest the tests are run by.")
@click.option("--jobs", "parallel", type=click.IntRange(1, 64), default=4, show_default=True, help="How many at once.")
@click.argument("more", nargs=-1, type=click.Path(path_type=Path), metavar="[FILE_OR_FOLDER]...")
def prepare_command(
    kind: str,
    folder: Path,
    places: Sequence[Path],
    gold: Path | None,
    image: str | None,
    python: str | None,
    pytest: str,
    parallel: int,
    more: Sequence[Path],
) -> None:
    """Make real bugs of PyPI packages ready: DIR/instances.jsonl for `prorl submit`, and what its jobs need.

    Downloads each base release from the configured package index by pip and checks its SHA-256; fetches pytest and what
    else the tests need. Jobs then run with no network. Nodes must see DIR by the same path, and PRORL_DATASETS must
    name it, or a folder above it. Run again, it goes on where it stopped.
    """
    settings, _ = settings_with()
    sources = [*places, *more] or [folder]
    rows = [row for path in files_of(sources) for row in rows_of(path)]
    own = sandbox_python()
    if python is None:
        if image is not None:
            raise DatasetError("which Python has the image? --python X.Y says it")
        if own is None:
            raise DatasetError("this machine has no Python that sandboxes without an image could see; --python X.Y")
        python = own[1]
    plan = Preparation(
        folder=folder.absolute(),
        python=python,
        interpreter=_compiler(python, own),
        gold=None if gold is None else gold.absolute(),
        image=image,
        pytest=pytest,
        parallel=parallel,
    )
    done = 0

    def told(row: PypiRow, what: str) -> None:
        nonlocal done
        done += what == "ready"
        click.echo(f"[{done}/{len(rows)}] {row.instance_id}: {what}", err=True)

    target = prepare(rows, plan, told=told)
    click.echo(str(target))
    _advise(plan, settings)


@datasets.command("list")
def list_command() -> None:
    """List the data sets below the folders of PRORL_DATASETS."""
    settings, _ = settings_with()
    rows = []
    for root in roots_of(settings):
        for path in sorted({*root.glob(INSTANCES), *root.glob(f"*/{INSTANCES}"), *root.glob(f"*/*/{INSTANCES}")}):
            try:
                lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
                sources = sorted({str(line.get("data_source")) for line in lines})
                ready = sum(Path(line["workspace"]).is_dir() for line in lines if "workspace" in line)
            except (OSError, ValueError, AttributeError) as error:
                rows.append([str(path), "?", "?", str(error)[:60]])
                continue
            rows.append([str(path), str(len(lines)), ", ".join(sources), f"{ready} workspaces"])
    if not rows:
        looked = ", ".join(map(str, roots_of(settings)))
        click.echo(f"prorl: none below {looked}; PRORL_DATASETS names the folders that hold some", err=True)
    print_table(["file", "instances", "data_source", ""], rows)


def sandbox_python() -> tuple[Path, str] | None:
    """The Python that a sandbox without an image has, and its version, "3.11"; None where it would have none."""
    extra = extra_python(None)
    for path in (Path("/usr/bin/python3"), *([Path(extra, "bin/python3")] if extra else [])):
        if path.exists():
            return path, _version(path)
    return None


def _version(path: Path) -> str:
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        done = subprocess.run(
            [path, "-I", "-c", code], capture_output=True, text=True, timeout=PYTHON_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise DatasetError(f"{path} does not run: {error}") from error
    return done.stdout.strip()


def _compiler(python: str, own: tuple[Path, str] | None) -> Path | None:
    """A Python of that version on this machine."""
    if own is not None and own[1] == python:
        return own[0]
    return Path(sys.executable) if python == f"{sys.version_info[0]}.{sys.version_info[1]}" else None


def _advise(plan: Preparation, settings: Settings) -> None:
    if not any(plan.folder.resolve().is_relative_to(root) for root in roots_of(settings)):
        click.echo(f"Nodes take jobs from it when they run with PRORL_DATASETS={plan.folder}", err=True)
