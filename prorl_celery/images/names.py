"""How images are called: by name, on disk, and for a SWE instance.

A name is what a registry calls an image: `debian`, `swebench/sweb.eval.x86_64.x:v2`, `host:5000/team/tools@sha256:...`.
On disk an image is a folder of its name, or a file of its name and `.sif`, in the images' folder, with `/` written `+`
and `:` written `=`, which no name contains; so two names never share a file.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from prorl_celery.errors import BadInstance, ImageError
from prorl_celery.settings import Settings

SIF = ".sif"
DOCKER_HUB = ("docker.io/", "index.docker.io/")
NAME = re.compile(
    r"(?:(?:localhost|[A-Za-z0-9][A-Za-z0-9-]*(?:(?:\.[A-Za-z0-9-]+)+|(?=:)))(?::\d+)?/)?"  # host and port
    r"[a-z0-9][a-z0-9._-]*(?:/[a-z0-9][a-z0-9._-]*)*"  # repository
    r"(?::\w[\w.-]{0,127})?"  # tag
    r"(?:@sha256:[0-9a-f]{64})?"  # digest
)
LONGEST = 200
"""Bytes of a file's name before it is shortened; a file system allows 255, of which suffixes take some."""


def canonical(name: str) -> str:
    """The shortest name of the same image: no `docker.io/`, no `:latest`, no tag beside a digest.

    Raises: `ImageError` for what is no name.
    """
    short = name.removeprefix("docker://")
    for hub in DOCKER_HUB:
        short = short.removeprefix(hub)
    short = short.removeprefix("library/")
    if not NAME.fullmatch(short) or short.endswith((SIF, ".json")):
        raise ImageError(f"{name!r} is no image name; one is like debian:12 or team/tools, in small letters")
    if "@" in short:
        short, _, digest = short.partition("@")
        return re.sub(r":[\w.-]+$", "", short) + "@" + digest
    return short.removesuffix(":latest")


def file_name(name: str) -> str:
    """What an image's folder is called. Raises: `ImageError` for what is no name."""
    written = canonical(name).replace("/", "+").replace(":", "=")
    if len(written) <= LONGEST:
        return written
    return f"{written[:100]}~{hashlib.sha256(written.encode()).hexdigest()[:32]}"


def images_folder(settings: Settings) -> Path:
    """Where images are kept."""
    return Path(settings.images_dir or settings.data_dir / "images").absolute()


def image_path(name: str, settings: Settings) -> Path:
    """Where the image of this name is, or would be: a folder, or a file where only that is there.

    An absolute path is itself, and `NAME.sif` the file. Whether it is fit is `check_image`'s to say.
    Raises: `ImageError` for what is no name.
    """
    if name.startswith("/"):
        return Path(name)
    folder = images_folder(settings)
    if name.endswith(SIF):
        return folder / (file_name(name.removesuffix(SIF)) + SIF)
    path = folder / file_name(name)
    packed = path.with_name(path.name + SIF)
    return packed if packed.exists() and not path.exists() else path


def names_of(instance: Mapping[str, Any], templates: Sequence[str]) -> tuple[str, ...]:
    """The images of a SWE instance, best first: its `image`, its `docker_image`, else what `templates` make of its id.

    A multimodal instance takes the templates with `{1776}`, another those with `{s}`, either all where it has none.
    Raises: `BadInstance` that names the field.
    """
    for field in ("image", "docker_image"):
        if (given := instance.get(field)) is not None:
            if not isinstance(given, str) or not given:
                raise BadInstance(f"{field} must be an image's name", field=field)
            return (given,)
    identity = instance.get("instance_id")
    if not isinstance(identity, str) or not identity:
        raise BadInstance("names no image, and has no instance_id to make one from", field="instance_id")
    wanted = "{1776}" if _is_multimodal(instance) else "{s}"
    fitting = [template for template in templates if wanted in template] or list(templates)
    parts = {"{s}": identity.replace("__", "_s_").lower(), "{1776}": identity.replace("__", "_1776_").lower()}
    return tuple(dict.fromkeys(_filled(template, parts) for template in fitting))


def image_of(instance: Mapping[str, Any], settings: Settings) -> Path:
    """Where the image of a SWE instance is, or would be: under the first of its names, whichever of them had it.

    Raises: `BadInstance`.
    """
    try:
        return image_path(names_of(instance, settings.image_names)[0], settings)
    except ImageError as error:
        field = next((field for field in ("image", "docker_image") if instance.get(field)), "instance_id")
        raise BadInstance(str(error), field=field) from error


def _filled(template: str, parts: Mapping[str, str]) -> str:
    for place, text in parts.items():
        template = template.replace(place, text)
    return template


def _is_multimodal(instance: Mapping[str, Any]) -> bool:
    return bool(instance.get("image_assets")) or "multimodal" in str(instance.get("data_source", "")).lower()
