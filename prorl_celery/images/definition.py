"""A definition file, read far enough to know what goes into an image: its text, its base, the files it copies.

A definition is one or more stages; each begins with a header (`Bootstrap: ...`, `From: ...`) and has sections
(`%post`, `%files`, ...). `{{ NAME }}` stands for an argument, given or from the stage's `%arguments`. The tool
runs the sections; this fills in the arguments, and `staged` writes a definition whose paths are absolute.
"""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from glob import glob
from pathlib import Path

from prorl_celery.errors import ImageError
from prorl_celery.images import trees

BOOTSTRAP = re.compile(r"^bootstrap:", re.IGNORECASE)
HEADER = re.compile(r"^([A-Za-z]+):\s*(.*?)\s*$")
SECTION = re.compile(r"^%(\w+)\b(.*)$")
ARGUMENT = re.compile(r"\{\{\s*(\w+)\s*\}\}")
REGISTRIES = ("docker", "oras", "library", "shub")


@dataclass(frozen=True, slots=True)
class Base:
    """Where a stage begins: `bootstrap` is the way (docker, localimage, scratch, ...), `source` the image or tree."""

    bootstrap: str
    source: str

    def __str__(self) -> str:
        return f"{self.bootstrap}:{self.source}" if self.source else self.bootstrap

    @property
    def is_pinned(self) -> bool:
        """Whether a registry can give but one image for it."""
        return self.bootstrap not in REGISTRIES or "@sha256:" in self.source


@dataclass(frozen=True, slots=True)
class Files:
    """A line of `%files` that copies from the machine."""

    pattern: str
    target: str


@dataclass(frozen=True, slots=True)
class Definition:
    """What was read: the lines of each stage, arguments filled in, and what they name."""

    path: Path
    stages: tuple[tuple[str, ...], ...]
    bases: tuple[Base, ...]
    files: tuple[Files, ...]

    @property
    def text(self) -> str:
        """The whole, arguments filled in."""
        return "".join(f"{line}\n" for stage in self.stages for line in stage)

    def local_bases(self, find: Callable[[str], Path]) -> dict[str, Path]:
        """The images and trees of this machine it begins with: by the name in the header, where each is.

        A name is looked up beside the definition, then by `find` among the images. Raises: `ImageError`.
        """
        found: dict[str, Path] = {}
        for base in self.bases:
            if base.bootstrap == "localimage":
                if not base.source:
                    raise ImageError(f"{self.path} begins with a localimage and does not say which (From: ...)")
                beside = self.path.parent / base.source
                found[base.source] = beside if beside.exists() else find(base.source)
        return found


@dataclass(frozen=True, slots=True)
class Staged:
    """A definition ready for the tool, and a hash of what each line of its `%files` copies."""

    path: Path
    digests: Mapping[str, str]


def arguments_of(path: Path) -> set[str]:
    """The arguments that a definition has places for. Raises: `ImageError`."""
    return set(ARGUMENT.findall(_text(path)))


def read(path: Path, arguments: Mapping[str, str]) -> Definition:
    """Read a definition. Raises: `ImageError`."""
    text = _text(path)
    if unused := sorted(set(arguments) - set(ARGUMENT.findall(text))):
        raise ImageError(f"{path} uses no argument {', '.join(unused)}")
    stages = tuple(_filled(stage, arguments) for stage in _stages(text))
    if not stages:
        raise ImageError(f"{path} is no definition: it has no line `Bootstrap: ...`")
    bases = []
    for stage in stages:
        header = {name.lower(): value for name, value in _header(stage)}
        bases.append(Base(header.get("bootstrap", "").lower(), header.get("from", "")))
    files = tuple(_files(path, line) for stage in stages for line in _section(stage, "files"))
    return Definition(path, stages, tuple(bases), files)


def staged(definition: Definition, folder: Path, bases: Mapping[str, Path], *, step: trees.Step) -> Staged:
    """Copy what the definition copies into `folder`, which is made, and write it there with the paths of the copies.

    So the build needs no right to read the user's folders, and what is hashed is what is built.
    Raises: `ImageError`.
    """
    folder.mkdir()
    written: list[str] = []
    digests: dict[str, str] = {}
    for stage in definition.stages:
        section = None
        for line in stage:
            if found := SECTION.match(line):
                section = _section_name(found)
            elif section is None and (head := HEADER.match(line)) and head[1].lower() == "from" and head[2] in bases:
                line = f"From: {bases[head[2]]}"
            elif section == "files" and _says_something(line):
                files = _files(definition.path, line)
                place = folder / str(len(written))
                line = f"    {_copied(definition.path, files.pattern, place, step)} {shlex.quote(files.target)}"
                digests[files.pattern] = trees.digest(place, step=step)
            written.append(line)
    there = folder / definition.path.name
    there.write_text("".join(f"{line}\n" for line in written), encoding="utf-8")
    return Staged(there, digests)


def _copied(definition: Path, pattern: str, place: Path, step: trees.Step) -> str:
    """Copy what a pattern matches into `place`, links followed as the tool does; the pattern of the copies."""
    # Not Path.glob, which takes no absolute pattern.
    sources = [Path(name) for name in sorted(glob(str(definition.parent / pattern)))]  # noqa: PTH207
    if not sources:
        raise ImageError(f"{definition}: %files names {pattern}, and there is none")

    def copy(source: str, target: str) -> None:
        step()
        shutil.copyfile(source, target)
        shutil.copymode(source, target)

    place.mkdir()
    try:
        for source in sources:
            if source.is_dir():
                shutil.copytree(source, place / source.name, copy_function=copy, ignore_dangling_symlinks=True)
            else:
                copy(str(source), str(place / source.name))
    except OSError as error:  # shutil.Error, of several, is one
        raise ImageError(f"{definition}: cannot copy {pattern} of %files: {error}") from error
    return shlex.quote(str(place / sources[0].name)) if len(sources) == 1 else f"{place}/*"


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ImageError(f"cannot read the definition {path}: {error}") from error


def _stages(text: str) -> Iterator[list[str]]:
    """The lines of each stage; what is before the first header is the first one's."""
    stage: list[str] = []
    begun = False
    for line in text.splitlines():
        if BOOTSTRAP.match(line):
            if begun:
                yield stage
                stage = []
            begun = True
        stage.append(line)
    if begun:
        yield stage


def _filled(stage: Sequence[str], arguments: Mapping[str, str]) -> tuple[str, ...]:
    """With the arguments in their places. One that nobody gives stays, and the tool refuses it by name."""
    pairs = (line.strip().partition("=") for line in _section(stage, "arguments"))
    known = {name.strip(): value.strip() for name, _, value in pairs} | dict(arguments)
    return tuple(ARGUMENT.sub(lambda found: known.get(found[1], found[0]), line) for line in stage)


def _header(stage: Sequence[str]) -> Iterator[tuple[str, str]]:
    for line in stage:
        if SECTION.match(line):
            return
        if found := HEADER.match(line):
            yield found[1], found[2]


def _section(stage: Sequence[str], name: str) -> Iterator[str]:
    """The lines of a section, of all by its name, without comments."""
    section = None
    for line in stage:
        if found := SECTION.match(line):
            section = _section_name(found)
        elif section == name and _says_something(line):
            yield line


def _section_name(found: re.Match[str]) -> str:
    """A section's name; with what follows it, which makes it another kind (`%files from STAGE`)."""
    return f"{found[1]} {found[2].strip()}".strip()


def _says_something(line: str) -> bool:
    return bool(line.strip()) and not line.strip().startswith("#")


def _files(path: Path, line: str) -> Files:
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise ImageError(f"{path}: %files has a line that cannot be read, {line.strip()!r}: {error}") from error
    if len(words) > 2:
        raise ImageError(f"{path}: %files has a line of more than two names: {line.strip()!r}")
    return Files(words[0], words[-1])
