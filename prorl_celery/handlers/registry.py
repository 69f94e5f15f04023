"""Finds the handlers: those of installed packages (entry points) and those that `PRORL_HANDLERS` names.

An entry of `PRORL_HANDLERS` is `module:Class` or `path/to/file.py:Class`. A later one with the same `data_source`
replaces an earlier one, so that a user can override what ships.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from prorl_celery.errors import BadInstance, SettingsError
from prorl_celery.handlers.base import Handler
from prorl_celery.settings import Settings

GROUP = "prorl.handlers"


class HandlerRegistry(Mapping[str, Handler]):
    """Handlers by `data_source`. A name that ends in `/*` serves all that begin with what stands before the star."""

    def __init__(self, handlers: Mapping[str, Handler]) -> None:
        self._handlers = dict(handlers)

    def __getitem__(self, data_source: str) -> Handler:
        return self._handlers[data_source]

    def __iter__(self) -> Iterator[str]:
        return iter(self._handlers)

    def __len__(self) -> int:
        return len(self._handlers)

    def find(self, data_source: str) -> Handler:
        """The handler of a data source. Raises `BadInstance` that names those there are."""
        handler = self._handlers.get(data_source)
        if handler is None and "/" in data_source:
            handler = self._handlers.get(data_source.split("/", 1)[0] + "/*")
        if handler is None:
            known = ", ".join(sorted(self._handlers)) or "none"
            raise BadInstance(f"no handler for {data_source!r}; there are: {known}", field="data_source")
        return handler


def load_handlers(settings: Settings) -> HandlerRegistry:
    """Load all handlers. Raises `SettingsError` for one that cannot be loaded, naming it."""
    found: dict[str, Handler] = {}
    for point in sorted(entry_points(group=GROUP), key=lambda p: p.name):
        try:
            _add(found, point.load(), f"entry point {point.name}")
        except (ImportError, AttributeError) as error:
            raise SettingsError(f"handler entry point {point.name} = {point.value}: {error}") from error
    for name in settings.handlers:
        _add(found, _load_named(name), name)
    return HandlerRegistry(found)


def load_class(name: str) -> type[Handler]:
    """The handler that `FILE.py`, `FILE.py:Class` or `module:Class` names; a file alone has one handler.

    Raises: `SettingsError`; what the file's own code raises.
    """
    if not name.endswith(".py"):
        return _checked(_load_named(name, "a handler"), name)
    try:
        module = _load_file(Path(name))
    except (ImportError, SyntaxError, OSError) as error:
        raise SettingsError(f"{name}: {error}") from error
    mine = [thing for thing in vars(module).values() if isinstance(thing, type) and issubclass(thing, Handler)]
    found = {thing.__name__: thing for thing in mine if thing.__module__ == module.__name__}
    if len(found) != 1:
        there = f"has several handlers: {', '.join(found)}" if found else "has no subclass of Handler"
        raise SettingsError(f"{name} {there}; name one as {name}:CLASS")
    return _checked(found.popitem()[1], name)


def _add(found: dict[str, Handler], thing: Any, where: str) -> None:
    kind = _checked(thing, where)
    found |= dict.fromkeys((kind.data_source, *kind.aliases), kind())


def _checked(thing: Any, where: str) -> type[Handler]:
    if not (isinstance(thing, type) and issubclass(thing, Handler)):
        raise SettingsError(f"{where}: not a subclass of prorl_celery.handlers.base.Handler")
    data_source = getattr(thing, "data_source", None)
    if not isinstance(data_source, str) or not data_source:
        raise SettingsError(f"{where}: {thing.__name__} has no data_source")
    return thing


def _load_named(name: str, what: str = "PRORL_HANDLERS") -> Any:
    place, _, attribute = name.rpartition(":")
    if not place or not attribute:
        raise SettingsError(f"{what}: {name!r} is not module:Class or file.py:Class")
    try:
        module = _load_file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
        return getattr(module, attribute)
    except (ImportError, AttributeError, SyntaxError, OSError) as error:
        raise SettingsError(f"{what}: {name}: {error}") from error


def _load_file(path: Path) -> Any:
    """Import one file under a name of its own, without putting its folder on the path."""
    path = path.resolve()
    module_name = "prorl_handler_" + path.stem
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    spec.loader.exec_module(module)
    return module
