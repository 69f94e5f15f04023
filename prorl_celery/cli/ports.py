"""Ports of this machine: one that is free, or a socket that has one already."""

from __future__ import annotations

import errno
import socket

from prorl_celery.errors import SettingsError


def bound(host: str, port: int) -> socket.socket:
    """A socket bound to that address, which listens only once somebody has it listen; port 0 is any that is free.

    Raises `SettingsError`.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host, port))
    except OSError as error:
        found.close()
        hint = "; another service has it: choose another --port" if error.errno == errno.EADDRINUSE else ""
        raise SettingsError(f"cannot listen on {host}:{port}: {error.strerror}{hint}") from error
    return found


def free_port(host: str, port: int) -> int:
    """`port` where nobody listens on it; for 0, one that is free now. Raises `SettingsError`."""
    with bound(host, port) as probe:
        return int(probe.getsockname()[1])
