"""The files of `prorl handler new`: a handler that works, an instance, a model's words and a test."""

from __future__ import annotations

import builtins
import importlib.util
import keyword
import re
import sys
from importlib.metadata import entry_points
from importlib.resources import files
from pathlib import Path
from string import Template

from prorl_celery.errors import SettingsError
from prorl_celery.handlers.registry import GROUP
from prorl_celery.node.places import directory

_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
TEMPLATES = {
    "handler.py.txt": "{name}.py",
    "instance.json.txt": "{name}.json",
    "oracle.jsonl.txt": "{name}.oracle.jsonl",
    "test.py.txt": "test_{name}.py",
}
"""By template, the file that is made of it."""


def write_handler(name: str, folder: Path) -> list[Path]:
    """Write the files; their paths, in the order of `TEMPLATES`.

    Raises: `SettingsError`; of a bad name, or of a file that is there already, before anything is written.
    """
    check_name(name)
    fields = {"name": name, "cls": class_name(name)}
    texts = {
        directory(folder) / target.format(name=name): Template(_template(source)).substitute(fields)
        for source, target in TEMPLATES.items()
    }
    for path in texts:
        if path.exists() or path.is_symlink():
            raise SettingsError(f"{path} is there already; nothing was written")
    for path, text in texts.items():
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            raise SettingsError(f"cannot write {path}: {error.strerror}") from error
    return list(texts)


def class_name(name: str) -> str:
    """`sql_questions` -> `SqlQuestionsHandler`."""
    return "".join(part.capitalize() for part in name.split("_")) + "Handler"


def check_name(name: str) -> None:
    """Raises `SettingsError` that says why a handler cannot have this name."""
    if not _NAME.fullmatch(name):
        raise SettingsError(
            f"{name!r} is no name for a handler: it names a file and a class; small letters, digits and _, "
            "at most 40, a letter first"
        )
    if keyword.iskeyword(name) or keyword.issoftkeyword(name) or hasattr(builtins, name):
        raise SettingsError(f"{name!r} means something in Python; choose another name")
    if name.startswith("test_") or name == "conftest":
        raise SettingsError(f"{name!r} would be taken for a test by pytest; choose another name")
    if name in {point.name for point in entry_points(group=GROUP)}:
        raise SettingsError(f"there is a handler {name!r} already; choose another name")
    if name in sys.stdlib_module_names or importlib.util.find_spec(name) is not None:
        raise SettingsError(f"{name!r} is the name of an installed module, which {name}.py would hide from its tests")


def _template(name: str) -> str:
    return files("prorl_celery.cli").joinpath("new", name).read_text(encoding="utf-8")
