"""Pull the images of a data set from a registry, several at once.

What is complete is skipped, so that a run that was interrupted, in whatever way, goes on when it is started again. An
image is asked for under each of its names in turn and kept under the first. A failure that may pass is tried again a
few times, ever later; one that stays, and every other image's, leaves the rest to go on. A full disk ends the run.
"""

from __future__ import annotations

import contextlib
import itertools
import queue
import threading
import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import prorl_celery
from prorl_celery.errors import BadInstance, DiskFull, ImageError, ImageNotFound, ProrlError, Stopping
from prorl_celery.images import trees
from prorl_celery.images.build import Builder
from prorl_celery.images.names import SIF, canonical, file_name, names_of
from prorl_celery.images.store import Claim, Manifest, manifest_of

ATTEMPTS = 4
BACK_OFF_SECONDS = 2.0
"""Before the second attempt; doubled before each one after."""
CACHE_BYTES = 8 << 30
"""Layers kept for the next image, of each of the pulls at once; when there are more they all go."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """An image: its names, best first."""

    names: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.names[0]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one: `pulled`, `there` (it was complete), or `failed` for a reason."""

    name: str
    state: str
    seconds: float = 0.0
    bytes: int = 0
    reason: str = ""
    log: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Registry:
    """Where images come from."""

    source: str = "docker://"
    """What goes before a name: `docker://` for the registry that it names, `docker://HOST:PORT` for one's own."""
    https: bool = True

    def url(self, name: str) -> str:
        """Where the image of that name is."""
        return self.source + ("" if self.source.endswith("/") else "/") + name


def wanted_by(instances: Iterable[Mapping[str, Any]], templates: Sequence[str]) -> tuple[list[Wanted], int]:
    """The images that instances need, each once, in order; and how many instances name a path, which none need pull.

    Raises: `BadInstance` with the number of the instance.
    """
    found: dict[str, Wanted] = {}
    local = 0
    for number, instance in enumerate(instances, 1):
        try:
            names = names_of(instance, templates)
            if names[0].startswith("/"):
                local += 1
                continue
            wanted = Wanted(tuple(dict.fromkeys(map(canonical, names))))
        except (BadInstance, ImageError) as error:
            raise BadInstance(f"instance {number}: {error}", field=getattr(error, "field", None)) from error
        found.setdefault(wanted.name, wanted)
    return list(found.values()), local


def pull(
    builder: Builder, wanted: Sequence[Wanted], registry: Registry, *, jobs: int
) -> Generator[Outcome, None, None]:
    """Pull what is not there, `jobs` at once; each outcome as it comes.

    Closing the iterator early sets the builder's stop and waits until all has ended; then nothing half-made is left.
    Raises: `DiskFull`.
    """
    todo: queue.SimpleQueue[Wanted] = queue.SimpleQueue()
    done: queue.SimpleQueue[Outcome | BaseException] = queue.SimpleQueue()
    for one in wanted:
        todo.put(one)
    threads: list[threading.Thread] = []
    try:
        for number in range(min(jobs, len(wanted))):
            thread = threading.Thread(target=_work, args=(builder, registry, todo, done), name=f"pull-{number}")
            thread.start()
            threads.append(thread)
        for _ in wanted:
            outcome = done.get()
            if isinstance(outcome, BaseException):
                raise outcome
            yield outcome
    except BaseException:
        builder.stop.set()
        raise
    finally:
        for thread in threads:
            thread.join()


def _work(
    builder: Builder,
    registry: Registry,
    todo: queue.SimpleQueue[Wanted],
    done: queue.SimpleQueue[Outcome | BaseException],
) -> None:
    """One thread: images one after another, with a cache of layers of its own, since the tool's takes but one user."""
    try:
        cache, held = builder.store.take("cache")
        with held:
            while True:
                builder.stop.raise_if_set()
                done.put(_outcome(builder, registry, todo.get_nowait(), cache))
                if trees.size(cache) > CACHE_BYTES:
                    for entry in cache.iterdir():
                        trees.remove(entry)
    except (queue.Empty, Stopping):
        return
    except BaseException as error:  # noqa: BLE001 - the main thread raises it
        done.put(error)


def _outcome(builder: Builder, registry: Registry, wanted: Wanted, cache: Path) -> Outcome:
    began = time.monotonic()
    try:
        with builder.store.claim(file_name(wanted.name) + SIF * builder.sif, stop=builder.stop) as claim:
            blank = Manifest(
                name=wanted.name,
                source="",
                mode="pulled",
                keys={"pulled": wanted.name},
                built_at="",
                tool="",
                prorl=prorl_celery.__version__,
                bytes=0,
            )
            if builder.is_made(claim.target, blank, "pulled"):
                return Outcome(wanted.name, "there")
            builder.log(wanted.name).write_bytes(b"")
            _pull(builder, registry, wanted, claim, cache, blank)
            found = Manifest.read(manifest_of(claim.target))
            size = found.bytes if found is not None else 0
    except (DiskFull, Stopping):
        raise
    except ProrlError as error:
        return Outcome(wanted.name, "failed", time.monotonic() - began, 0, str(error), builder.log(wanted.name))
    with contextlib.suppress(OSError):
        builder.log(wanted.name).unlink()
    return Outcome(wanted.name, "pulled", time.monotonic() - began, size)


def _pull(builder: Builder, registry: Registry, wanted: Wanted, claim: Claim, cache: Path, blank: Manifest) -> None:
    """Raises: `ImageNotFound` when no name is known, the last error otherwise."""
    missing: list[str] = []
    last: ImageError | None = None
    for name in wanted.names:
        try:
            built = _fetched(builder, registry.url(name), registry.https, claim, cache, builder.log(wanted.name))
        except ImageNotFound as error:
            missing.append(f"{name}: {error}")
        except DiskFull as error:
            raise DiskFull(f"the disk of {builder.store.folder} is full: {error}") from error
        except ImageError as error:
            last = error
        else:
            builder.finish(claim, built, replace(blank, source=registry.url(name)))
            return
    raise last or ImageNotFound("; ".join(missing))


def _fetched(builder: Builder, url: str, https: bool, claim: Claim, cache: Path, log: Path) -> Path:
    """Unpack an image, trying again what may pass."""
    built = claim.temporary / "image"
    options = ["--sandbox", "--fix-perms", *([] if https else ["--no-https"])]
    for attempt in itertools.count(1):
        try:
            builder.tool.build(
                [*options, str(built), url],
                work=claim.temporary,
                cache=cache,
                log=log,
                stop=builder.stop,
                registry=True,
            )
            return built
        except (ImageNotFound, DiskFull):
            raise
        except ImageError as error:
            if attempt == ATTEMPTS:
                raise ImageError(f"{error} ({ATTEMPTS} attempts)") from error
            for entry in claim.temporary.iterdir():
                trees.remove(entry)
            builder.stop.wait(BACK_OFF_SECONDS * 2 ** (attempt - 1))
    raise AssertionError  # not reached
