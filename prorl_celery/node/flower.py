"""Flower on our Celery application: reads, and changes nothing.

It listens on loopback; elsewhere only with `FLOWER_BASIC_AUTH=user:password` in the environment.
"""

from __future__ import annotations

import importlib.util
import ipaddress
import os
from pathlib import Path

from prorl_celery.errors import SettingsError
from prorl_celery.settings import Settings

MAX_TASKS = 10_000
"""Tasks kept in its memory; its own default of 100,000 grows to gigabytes."""
PURGE_OFFLINE_S = 300


def main(settings: Settings, port: int, address: str = "127.0.0.1") -> None:
    """Run Flower until SIGTERM. Raises `SettingsError` when it is not installed or would be open to
    others.
    """
    check(address)
    from prorl_celery.app import make_app

    if not _password_is_set():
        os.environ.setdefault("FLOWER_UNAUTHENTICATED_API", "true")
    os.chdir(Path(__file__).parent)  # Flower runs a flowerconfig.py of the working directory
    make_app(settings.with_(task_events=True)).start(
        [
            "--quiet",
            "flower",
            f"--address={address}",
            f"--port={port}",
            "--read-only=true",
            f"--max_tasks={MAX_TASKS}",
            f"--purge_offline_workers={PURGE_OFFLINE_S}",
        ]
    )


def check(address: str) -> None:
    """Raise `SettingsError` where `main` would."""
    if importlib.util.find_spec("flower") is None:
        raise SettingsError("Flower is not installed: pip install 'prorl-celery[flower]'")
    try:
        loopback = ipaddress.ip_address(address).is_loopback
    except ValueError as error:
        raise SettingsError(f"Flower's address: {error}") from error
    if not _password_is_set() and not loopback:
        raise SettingsError(f"Flower on {address} would be open to all: set FLOWER_BASIC_AUTH=user:password")


def _password_is_set() -> bool:
    """Raises `SettingsError` for an entry without a user or a password: Flower would let an empty one in."""
    entries = os.environ.get("FLOWER_BASIC_AUTH")
    if entries is None:
        return False
    if not all(all(entry.partition(":")[::2]) for entry in entries.split(",")):
        raise SettingsError("FLOWER_BASIC_AUTH is user:password, or several of them separated by commas")
    return True
