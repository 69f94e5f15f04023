"""How the keeper and its clients talk: one JSON object a packet over a Unix socket, descriptors beside it.

SOCK_SEQPACKET keeps packets apart, so there is no framing to get wrong. Nothing here blocks: both sides wait by poll.
"""

from __future__ import annotations

import array
import json
import os
import socket
from pathlib import Path
from typing import Any

from prorl_celery.settings import Settings

PACKET_BYTES = 128 << 10
"""Longest packet; under Linux's default socket buffer, so that one always fits."""

MAX_DESCRIPTORS = 8


def keeper_directory(settings: Settings) -> Path:
    """The directory of this node's keeper: 0700, on a local disk."""
    return settings.run_dir / settings.node


def keeper_socket(settings: Settings) -> Path:
    """Where this node's keeper listens."""
    return keeper_directory(settings) / "keeper.sock"


def new_socket() -> socket.socket:
    """A non-blocking packet socket."""
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)


def send(channel: socket.socket, message: dict[str, Any], descriptors: tuple[int, ...] = ()) -> None:
    """Send one packet.

    Raises: `BlockingIOError` when the other side does not read, `ValueError` when the packet is too long, `OSError`.
    """
    packet = json.dumps(message, separators=(",", ":")).encode()
    if len(packet) > PACKET_BYTES:
        raise ValueError(f"a packet of {len(packet)} bytes is over the {PACKET_BYTES} allowed")
    ancillary = []
    if descriptors:
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors).tobytes())]
    channel.sendmsg([packet], ancillary, socket.MSG_NOSIGNAL)


def receive(channel: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """The next packet and its descriptors; None at the end of the connection.

    Raises: `BlockingIOError` when there is none yet, `ValueError` when it is not a JSON object, `OSError`.
    """
    space = socket.CMSG_SPACE(MAX_DESCRIPTORS * array.array("i").itemsize)
    packet, ancillary, flags, _ = channel.recvmsg(PACKET_BYTES, space, socket.MSG_CMSG_CLOEXEC)
    descriptors = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
    received = list(descriptors)
    try:
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            raise ValueError("a packet that is too long")
        if not packet:
            close_all(received)
            return None, []
        message = json.loads(packet)
        if not isinstance(message, dict):
            raise ValueError("a packet that is not a JSON object")
    except RecursionError:
        close_all(received)
        raise ValueError("a packet that is nested too deep") from None
    except ValueError:
        close_all(received)
        raise
    return message, received


def close_all(descriptors: list[int]) -> None:
    """Close descriptors that nobody wants."""
    for descriptor in descriptors:
        os.close(descriptor)
