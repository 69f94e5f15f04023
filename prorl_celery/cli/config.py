"""`prorl config`: every setting, its value, its source. `prorl token new`: a token for the API."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import click

from prorl_celery.cli.common import json_option, settings_with
from prorl_celery.cli.output import print_json, print_table
from prorl_celery.settings import Settings, variable_of

MASK = "********"


@click.command()
@json_option
def config(as_json: bool) -> None:
    """Show the settings, secrets masked, and where each comes from."""
    settings, sources = settings_with()
    rows = [(variable_of(f), _shown(settings, f), sources[f.name], f.metadata["help"]) for f in fields(settings)]
    if as_json:
        print_json({name: {"value": value, "source": source, "help": text} for name, value, source, text in rows})
    else:
        print_table(("variable", "value", "source", "meaning"), rows)


def _shown(settings: Settings, field: Any) -> str:
    rendered = settings.to_env()[variable_of(field)]
    if not field.metadata["secret"] or not rendered:
        return rendered
    if field.name == "redis_url" and "@" in rendered:
        scheme, _, rest = rendered.partition("://")
        return f"{scheme}://{MASK}@{rest.rpartition('@')[2]}"
    return rendered if field.name == "redis_url" else MASK


@click.group()
def token() -> None:
    """Make API tokens."""


@token.command("new")
@click.option("--name", default="trainer", show_default=True, help="Whose it is.")
@click.option("--scopes", default="submit,read", show_default=True, help="Of submit, read, admin.")
def new(name: str, scopes: str) -> None:
    """Print a new token, and the entry for PRORL_API_TOKENS that lets it in. The token itself is kept
    nowhere.
    """
    from web.auth import new_token

    asked: Any = [scope.strip() for scope in scopes.split(",")]
    secret, entry = new_token(name, asked)
    click.echo(f"token: {secret}")
    click.echo(f"entry: {entry}")
