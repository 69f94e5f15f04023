"""Make an image from a definition file or from a folder that holds a root file system.

Three cache modes say when one that is there is used again:

    scratch     never
    versioned   its name, its base's name and this project's version agree
    locked      all that goes in agrees, by hash: the definition with its arguments, the files it copies, its base; or
                the folder. A base in a registry must then be named by digest, since a tag can move
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import prorl_celery
from prorl_celery.errors import BadImage, ImageError
from prorl_celery.images import definition, trees
from prorl_celery.images.names import SIF, canonical, file_name
from prorl_celery.images.store import Claim, ImageStore, Manifest, manifest_of
from prorl_celery.images.tool import Stop, Tool
from prorl_celery.sandbox.image_check import START, check_image
from prorl_celery.sandbox.share import reachable

MODES = ("locked", "versioned", "scratch")
SQUASH = ("--mksquashfs-args", "-comp zstd -Xcompression-level 3")
"""A third of gzip's time; kernels since 4.14 and squashfuse read it."""


@dataclass(frozen=True, slots=True)
class Made:
    """An image, and whether it was there already."""

    path: Path
    reused: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Builder:
    """Makes images for a store. `logs` is a folder: what the tool says goes to a file there, one an image."""

    store: ImageStore
    tool: Tool
    logs: Path
    stop: Stop
    sif: bool = False
    """Make files; else folders, which need no FUSE to start from."""
    say: Callable[[str], None] = lambda line: None
    """Gets a line when a build begins."""
    making: tuple[Path, ...] = ()
    """The definitions whose bases are being made, so that two that begin with each other end."""

    def build(
        self, target: Path, *, mode: str = "locked", name: str | None = None, arguments: Mapping[str, str] | None = None
    ) -> Made:
        """Make the image of a definition file or a root folder, unless `mode` finds it made.

        `name`: of the image; else the file's or the folder's. `arguments`: for `{{ NAME }}` in the definition. A base
        NAME that is not there is made first, where NAME.def stands beside the definition.
        Raises: `ImageError`, `DiskFull`, `BadImage` when what was made does not start, `Stopping`.
        """
        is_tree = target.is_dir()
        if not target.exists():
            raise ImageError(f"there is no {target}: give a definition file or a folder that holds a root file system")
        if is_tree and arguments:
            raise ImageError(f"{target} is a folder, which takes no arguments")
        name = canonical(name or (target.resolve().name if is_tree else target.stem))
        recipe = None if is_tree else definition.read(target.absolute(), arguments or {})
        base = "a folder" if recipe is None else ", ".join(map(str, recipe.bases))
        blank = Manifest(
            name=name,
            source=str(target.absolute()),
            mode=mode,
            keys={"versioned": f"{name} from {base} by {prorl_celery.__version__}"},
            built_at="",
            tool="",
            prorl=prorl_celery.__version__,
            bytes=0,
        )
        if recipe is not None:
            self._make_bases(recipe, mode)
        with self.store.claim(file_name(name) + SIF * self.sif, stop=self.stop) as claim:
            if self.is_made(claim.target, blank, mode):
                return Made(claim.target, reused=True)
            if recipe is None:
                return self._from_tree(claim, target.resolve(), blank)
            return self._from_definition(claim, recipe, blank)

    def is_made(self, path: Path, wanted: Manifest, mode: str) -> bool:
        """Whether the image is there, fit, and agrees in what `mode` asks."""
        found = Manifest.read(manifest_of(path))
        if found is None or mode not in wanted.keys or found.keys.get(mode) != wanted.keys[mode]:
            return False
        try:
            check_image(path, self.tool.user)
        except BadImage:
            return False
        return True

    def log(self, name: str) -> Path:
        """Where what the tool says of an image goes."""
        try:
            self.logs.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ImageError(f"cannot make the folder of logs {self.logs}: {error.strerror}") from error
        return self.logs / f"{file_name(name)}.log"

    def finish(self, claim: Claim, built: Path, manifest: Manifest) -> Made:
        """Start what was built once, and put it in its place. Raises: `BadImage`."""
        if built.is_symlink():
            raise ImageError(f"{built} is a link")
        log = self.log(manifest.name)
        self.tool.start(built, work=claim.temporary, log=log, stop=self.stop)
        if self.sif:
            packed = claim.temporary / "packed"
            arguments = [*SQUASH, str(packed), str(built)]
            self.tool.build(arguments, work=claim.temporary, cache=claim.temporary, log=log, stop=self.stop)
            check_image(packed, self.tool.user)
            built = packed
        now = datetime.now(UTC).isoformat(timespec="seconds")
        manifest = replace(manifest, built_at=now, tool=self.tool.version, bytes=trees.size(built))
        claim.install(built, manifest)
        return Made(claim.target, reused=False)

    def _begin(self, name: str) -> Path:
        """Begin its log anew."""
        log = self.log(name)
        log.write_bytes(b"")
        self.say(f"making {name}; log: {log}")
        return log

    def _from_definition(self, claim: Claim, recipe: definition.Definition, blank: Manifest) -> Made:
        bases = recipe.local_bases(self._find_base)
        for path in bases.values():
            self._check_base(path)
        stage = claim.work / "staged"
        staged = definition.staged(recipe, stage, bases, step=self.stop.raise_if_set)
        inputs = {"definition": hashlib.sha256(recipe.text.encode()).hexdigest()}
        inputs |= {f"file {pattern}": digest for pattern, digest in staged.digests.items()}
        inputs |= {f"base {base}": trees.digest(path, step=self.stop.raise_if_set) for base, path in bases.items()}
        manifest = _locked(blank, inputs)
        if loose := [str(base) for base in recipe.bases if not base.is_pinned]:
            if blank.mode == "locked":
                raise ImageError(
                    f"{recipe.path} begins with {', '.join(loose)}, which can change: name it by digest "
                    "(NAME@sha256:...), or build with --cache versioned"
                )
            manifest = replace(blank, inputs=inputs)
        if self.is_made(claim.target, manifest, blank.mode):
            return Made(claim.target, reused=True)
        log = self._begin(blank.name)
        sizes = sum(map(trees.size, bases.values()))
        self.store.room(sizes * (1 + self.sif), f"the image {blank.name}")
        if self.tool.user is not None:
            trees.give(stage, self.tool.user)
        built = claim.temporary / "image"
        self.tool.build(
            ["--sandbox", "--fakeroot", str(built), str(staged.path)],
            work=claim.temporary,
            cache=claim.temporary,
            log=log,
            stop=self.stop,
            registry=any(base.bootstrap in definition.REGISTRIES for base in recipe.bases),
        )
        return self.finish(claim, built, manifest)

    def _make_bases(self, recipe: definition.Definition, mode: str) -> None:
        for base in recipe.bases:
            if base.bootstrap != "localimage" or not base.source or "/" in base.source:
                continue
            beside = recipe.path.parent / f"{base.source}.def"
            is_there = (recipe.path.parent / base.source).exists() or self._kept(base.source)
            making = (*self.making, recipe.path)
            if not is_there and beside.is_file() and beside not in making:
                replace(self, sif=False, making=making).build(beside, mode=mode)

    def _kept(self, name: str) -> Path | None:
        """The image of this name, in the form that is there."""
        file = self.store.folder / file_name(name)
        return next((path for path in (file, file.with_name(file.name + SIF)) if path.exists()), None)

    def _find_base(self, name: str) -> Path:
        found = self._kept(name)
        if found is None:
            raise ImageError(f"there is no image {name} to begin with in {self.store.folder}: build it first")
        return found

    def _check_base(self, path: Path) -> None:
        """The tool can copy a folder only for its owner."""
        user = self.tool.user
        if not reachable(path, user) or (path.is_dir() and path.stat().st_uid != (user.uid if user else os.geteuid())):
            who = user.name if user else "this user"
            raise ImageError(
                f"{path}, to begin with, is not {who}'s: make an image of it by `prorl images build {path}`"
            )

    def _from_tree(self, claim: Claim, tree: Path, blank: Manifest) -> Made:
        if self.store.folder.resolve().is_relative_to(tree):
            raise ImageError(f"{tree} holds the images' folder itself")
        manifest = _locked(blank, {"folder": trees.digest(tree, step=self.stop.raise_if_set)})
        if self.is_made(claim.target, manifest, blank.mode):
            return Made(claim.target, reused=True)
        log = self._begin(blank.name)
        self.store.room(trees.size(tree) * (1 + self.sif), f"the image {blank.name}")
        built = claim.work / "image"
        trees.copy(tree, built, step=self.stop.raise_if_set)
        if not (built / START).exists():
            # The tool refuses a tree with another owner or with devices, so it makes an image of nothing, and what
            # makes that an image is added to the copy.
            nothing, image = claim.temporary / "nothing", claim.temporary / "image"
            nothing.mkdir()
            if self.tool.user is not None:
                trees.give(nothing, self.tool.user)
            arguments = ["--sandbox", str(image), str(nothing)]
            self.tool.build(arguments, work=claim.temporary, cache=claim.temporary, log=log, stop=self.stop)
            trees.fill_in(image, built)
        if self.tool.user is not None:
            trees.give(built, self.tool.user)
        return self.finish(claim, built, manifest)


def _locked(blank: Manifest, inputs: dict[str, str]) -> Manifest:
    """With its inputs, and the key of the mode `locked` made of them."""
    key = hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()
    return replace(blank, inputs=inputs, keys=blank.keys | {"locked": key})
