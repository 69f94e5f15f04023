"""What the commands share: settings with their flags applied, and where the service is."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from prorl_celery.cli.api import Api
from prorl_celery.errors import SettingsError
from prorl_celery.node.renewal import ADOPT, REHEARSE
from prorl_celery.settings import Settings

if TYPE_CHECKING:
    from prorl_celery.client import Client

CLIENT_VARIABLES = ("PRORL_URL", "PRORL_TOKEN")
"""Of the commands that talk to a service; they are no settings of a service."""

Function = TypeVar("Function", bound=Callable[..., Any])


def settings_with(**flags: Any) -> tuple[Settings, dict[str, str]]:
    """The settings from the environment, with the flags that were given, and the source of each value.

    Raises `SettingsError`.
    """
    environ = {name: value for name, value in os.environ.items() if name not in CLIENT_VARIABLES}
    settings, sources = Settings.with_sources(environ)
    given = {name: value for name, value in flags.items() if value is not None}
    return settings.with_(**given), sources | dict.fromkeys(given, "flag")


def settings_of_service(**flags: Any) -> Settings:
    """The settings of the service of this data directory: of its `prorl up` where there is one, else of a
    `prorl worker` with the same settings. Raises `SettingsError`.
    """
    from prorl_celery.node.places import run_dir_for

    settings, sources = settings_with(**flags)
    settings = settings.with_(data_dir=settings.data_dir.absolute())
    own = run_dir_for(settings.data_dir)
    if sources["run_dir"] == "default" and own.is_dir():
        settings = settings.with_(run_dir=own)
        if sources["redis_url"] == "default":
            settings = settings.with_(redis_url=f"unix://{own / 'redis.sock'}?db=0")
    return settings


def log_to_stderr() -> None:
    """Have the supervisor's log on stderr; the root logger is left as it is, for its children to set up."""
    log = logging.getLogger("prorl.supervisor")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("prorl: %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False


def service_file(settings: Settings) -> Path:
    """Where a running `prorl up` notes its url."""
    return settings.data_dir / "service.json"


def service_url(url: str | None) -> str:
    """The service to talk to: as told, else the `prorl up` of this data directory, else the settings'
    address.
    """
    if url:
        return url.rstrip("/")
    settings, _ = settings_with()
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        noted = json.loads(service_file(settings).read_text())
        os.kill(int(noted["pid"]), 0)
        return str(noted["url"])
    from prorl_celery.node.readiness import local_url

    return local_url(settings)


def service_options(function: Function) -> Function:
    """Options `--url` and `--token`, for `connect`."""
    url = click.option(
        "--url",
        envvar="PRORL_URL",
        metavar="URL",
        help="The service; PRORL_URL; default: the one of this directory.",
    )
    token = click.option("--token", envvar="PRORL_TOKEN", metavar="TOKEN", help="An API token; PRORL_TOKEN.")
    return url(token(function))


def renewable(command: Function) -> Function:
    """Add the hidden options by which a supervisor executes its own program anew: `adopt` and `rehearse`."""
    adopt = click.option(ADOPT, type=int, hidden=True)
    rehearse = click.option(REHEARSE, is_flag=True, hidden=True)
    return adopt(rehearse(command))


def connect(url: str | None, token: str | None, *, patience: float = 0.0) -> Api:
    """The API that the options name. Raises `SettingsError`."""
    return Api(service_url(url), token, patience=patience)


def client_of(url: str | None, token: str | None) -> Client:
    """The client of the service that the options name. Raises `SettingsError`."""
    from prorl_celery.client import Client

    try:
        return Client(service_url(url), token)
    except ValueError as error:
        raise SettingsError(str(error)) from error


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
