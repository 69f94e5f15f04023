"""`prorl images`: build, pull, list, check and remove the images that sandboxes start from."""

from __future__ import annotations

import contextlib
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from prorl_celery.cli.common import settings_with
from prorl_celery.cli.images_progress import follow
from prorl_celery.cli.jobfile import bodies_of
from prorl_celery.cli.output import print_table, seconds
from prorl_celery.errors import BadImage, ImageError, SettingsError
from prorl_celery.images.build import MODES, Builder
from prorl_celery.images.definition import arguments_of
from prorl_celery.images.names import SIF, canonical, image_path, images_folder
from prorl_celery.images.pull import Registry, Wanted, pull, wanted_by
from prorl_celery.images.store import ImageStore, Manifest, manifest_of
from prorl_celery.images.tool import Stop, Tool
from prorl_celery.sandbox.image_check import check_image
from prorl_celery.sandbox.launch import sandbox_user
from prorl_celery.settings import Settings

INTERRUPTED = 130
"""What a shell gives for a command that was ended by Ctrl-C."""

out_option = click.option(
    "--out", "images_dir", metavar="DIR", help="Where images are kept; PRORL_IMAGES_DIR, else images in PRORL_DATA_DIR."
)
sif_option = click.option("--sif", is_flag=True, help="Make image files; default: folders, which need no FUSE.")


@click.group()
def images() -> None:
    """Images that sandboxes start from: made from definition files, folders and registries."""


@images.command()
@click.argument("targets", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="TARGET...")
@click.option("--name", help="What the image is called; default: the file's or the folder's name.")
@click.option("--cache", type=click.Choice(MODES), default="locked", show_default=True, help="When one is used again.")
@click.option("--arg", "arguments", multiple=True, metavar="NAME=VALUE", help="For {{ NAME }} in the definition.")
@sif_option
@out_option
def build(
    targets: Sequence[Path], name: str | None, cache: str, arguments: Sequence[str], sif: bool, images_dir: str | None
) -> None:
    """Make images from definition files (.def) or from folders that hold a root file system.

    One that is there is used again, with --cache locked when all that goes in agrees by hash (the definition, what it
    copies, its base), with versioned when its name, its base's name and this program's version agree, with scratch
    never. Needs no root; as root it is done as PRORL_SANDBOX_USER.
    """
    if name and len(targets) > 1:
        raise SettingsError("--name is for one target")
    given = dict(_argument(text) for text in arguments)
    uses = {target: arguments_of(target) for target in targets if target.is_file()}
    if unused := sorted(set(given).difference(*uses.values())):
        raise SettingsError(f"no definition uses the argument {', '.join(unused)}")
    with _builder(images_dir, sif=sif) as builder:
        for target in targets:
            began = time.monotonic()
            taken = {key: given[key] for key in given if len(targets) == 1 or key in uses.get(target, ())}
            made = builder.build(target, mode=cache, name=name, arguments=taken)
            done = f"used again ({cache})" if made.reused else f"made in {seconds(time.monotonic() - began)}"
            click.echo(f"{made.path}: {done}")


@images.command(name="pull")
@click.argument(
    "datasets", nargs=-1, type=click.Path(path_type=Path, exists=True, dir_okay=False), metavar="[JSONL]..."
)
@click.option("--image", "names", multiple=True, metavar="NAME", help="An image by its name, besides.")
@click.option("--jobs", type=click.IntRange(1, 64), default=4, show_default=True, help="Images at once.")
@click.option("--source", default="docker://", show_default=True, help="What goes before a name: docker://HOST:PORT.")
@click.option("--no-https", is_flag=True, help="Ask the registry over plain http.")
@sif_option
@out_option
def pull_images(
    datasets: Sequence[Path],
    names: Sequence[str],
    jobs: int,
    source: str,
    no_https: bool,
    sif: bool,
    images_dir: str | None,
) -> None:
    """Pull the images that the instances of data sets name, from a registry.

    An instance's `image` or `docker_image` is taken, else PRORL_IMAGE_NAMES made with its id. What is complete is
    skipped: after an interruption the same command goes on. An account is taken from APPTAINER_DOCKER_USERNAME and
    APPTAINER_DOCKER_PASSWORD.
    """
    with _builder(images_dir, sif=sif) as builder:
        settings = _settings(images_dir)
        instances = (body["instance"] for file in datasets for body in bodies_of(file))
        wanted, local = wanted_by(instances, settings.image_names)
        wanted += [one for one in (Wanted((canonical(name),)) for name in names) if one not in wanted]
        if not wanted and not local:
            raise SettingsError("nothing to pull: give a data set, or --image NAME")
        if local:
            click.echo(f"{local} instances name an image by its path; those are not pulled", err=True)
        _tell_room(builder.store, len(wanted))
        outcomes = pull(builder, wanted, Registry(source=source, https=not no_https), jobs=jobs)
        with contextlib.closing(outcomes):
            failed = follow(outcomes, len(wanted))
    for outcome in failed:
        click.echo(f"{outcome.name}: {outcome.reason}\n  log: {outcome.log}", err=True)
    if failed:
        click.echo(f"prorl: {len(failed)} of {len(wanted)} images failed", err=True)
        sys.exit(1)


@images.command(name="list")
@out_option
def list_images(images_dir: str | None) -> None:
    """List the images that are there, and whether a sandbox could start from each."""
    settings = _settings(images_dir)
    user = sandbox_user(settings)
    rows: list[tuple[Any, ...]] = []
    for path in ImageStore(images_folder(settings), user).images():
        found = Manifest.read(manifest_of(path))
        state = "ready"
        try:
            check_image(path, user)
        except BadImage as error:
            state = str(error)
        size = f"{found.bytes / 1e6:.0f} MB" if found else None
        name = found.name if found else path.name
        rows.append((name, "file" if path.name.endswith(SIF) else "folder", size, found and found.built_at, state))
    print_table(("name", "kind", "size", "made", "state"), rows)


@images.command()
@click.argument("names", nargs=-1, required=True, metavar="IMAGE...")
@out_option
def check(names: Sequence[str], images_dir: str | None) -> None:
    """See whether images start, by starting each: names as in `prorl images list`, or absolute paths."""
    bad = False
    with _builder(images_dir) as builder, builder.store.claim(".check", stop=builder.stop) as claim:
        for name in names:
            path = _named(name, builder.store, _settings(images_dir))
            try:
                builder.tool.start(path, work=claim.temporary, log=claim.work / "log", stop=builder.stop)
                click.echo(f"{path}: starts")
            except BadImage as error:
                bad = True
                click.echo(f"{path}: {error}", err=True)
    sys.exit(1 if bad else 0)


@images.command()
@click.argument("names", nargs=-1, required=True, metavar="IMAGE...")
@out_option
def rm(names: Sequence[str], images_dir: str | None) -> None:
    """Remove images, in the form that is there. Sandboxes that run on a folder lose what they have not yet read."""
    settings = _settings(images_dir)
    store = ImageStore(images_folder(settings), sandbox_user(settings))
    with _interruptible() as stop:
        for name in names:
            path = _named(name, store, settings)
            if path.parent != store.folder:
                raise ImageError(f"{path} is not kept in {store.folder}")
            store.remove(path.name, stop=stop)


def _named(name: str, store: ImageStore, settings: Settings) -> Path:
    """The image of a name, or of a file's name in the images' folder. Raises: `ImageError`."""
    is_file = "/" not in name and not name.startswith(".") and (store.folder / name).exists()
    return store.folder / name if is_file else image_path(name, settings)


def _settings(images_dir: str | None) -> Settings:
    return settings_with(images_dir=images_dir)[0]


@contextlib.contextmanager
def _builder(images_dir: str | None, *, sif: bool = False) -> Iterator[Builder]:
    """Raises: `SettingsError`, `ImageError` where there is no program, `SandboxUnavailable` where there is no user."""
    settings = _settings(images_dir)
    store = ImageStore(images_folder(settings), sandbox_user(settings))
    share, held = store.take("share")
    with held, _interruptible() as stop:
        tool = Tool.find(store.user, share)
        logs = settings.data_dir.absolute() / "logs" / "images"
        yield Builder(
            store=store, tool=tool, logs=logs, stop=stop, sif=sif, say=lambda line: click.echo(line, err=True)
        )


@contextlib.contextmanager
def _interruptible() -> Iterator[Stop]:
    """A stop that SIGINT and SIGTERM set; when they did, the process exits with 130 after all was cleaned up."""
    stop = Stop()

    def interrupt(number: int, frame: object) -> None:
        for again in (signal.SIGINT, signal.SIGTERM):
            signal.signal(again, signal.SIG_IGN)  # the clean-up is bounded; a second one must not cut it short
        stop.set()
        click.echo("prorl: interrupted; ending what runs", err=True)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        stop.close()


def _argument(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise SettingsError(f"--arg takes NAME=VALUE, not {text!r}")
    return name, value


def _tell_room(store: ImageStore, count: int) -> None:
    """Say so at once where the images that are there make it likely that the disk will not do."""
    sizes = [found.bytes for path in store.images() if (found := Manifest.read(manifest_of(path))) is not None]
    free = shutil.disk_usage(store.folder).free
    if not sizes:
        return
    needed = sum(sizes) / len(sizes) * max(0, count - len(sizes))
    if needed > free:
        click.echo(
            f"prorl: by the size of those that are there the rest need {needed / 1e9:.0f} GB, and {store.folder} has "
            f"{free / 1e9:.0f} GB free",
            err=True,
        )
