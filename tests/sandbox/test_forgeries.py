"""What an agent can forge of the words in which its sandbox answers: it costs no more than its own answer."""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from prorl_celery.errors import StageTimeout
from prorl_celery.sandbox.control import Control
from prorl_celery.sandbox.kernel.channels import Message
from prorl_celery.sandbox.kernel.results import CellOutput
from prorl_celery.sandbox.kernel.zmtp import COMMAND, GREETING, LONG, MORE, SUB, Peer
from prorl_celery.sandbox.notes import FileNotes
from prorl_celery.sandbox.page import Page, make_page
from prorl_celery.sandbox.waiting import NeverCancelled

LONGEST = 1 << 20
READY = bytes((COMMAND, 6)) + b"\x05READY"


@pytest.mark.parametrize("status", ["9" * 5000, "-1", "1e3", ""])
def test_a_marker_of_the_agents_own_breaks_nothing(sandbox, status):
    forged = f"printf '\\2%s:{status}:%s:%s:0:h:/\\3\\3%s\\4' $__prorl_nonce $__p_id $__p_id $__prorl_nonce"
    assert isinstance(sandbox.shell.run(forged, timeout=20).exit_code, int)
    for _ in range(2):
        last = sandbox.shell.run("echo still here", timeout=20)
    assert last.output.endswith("still here\n")


@pytest.mark.parametrize(
    "content",
    [{"text": "a", "cut": float("inf")}, {"text": "a", "cut": 10**4299, "tail": "b"}, {"text": ["a"]},
     {"text": "a", "others": {"image/png": 10**4000}}, {"text": "a", "others": {"image/png": float("inf")}}],
)  # fmt: skip
def test_numbers_that_no_kernel_sends_are_passed_over(content: dict[str, Any]):
    output = CellOutput(1000)
    for kind in ("stream", "execute_result", "error"):
        for _ in range(100):
            output.take(Message(kind, "", foreign=False, content=content, is_reply=False))
    assert isinstance(output.text(), str)


@pytest.fixture
def connected(tmp_path: Path) -> Iterator[Callable[..., Peer]]:
    """A connection to who says this, and goes on with the last for ever."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "s"))
    listener.listen()
    descriptor = os.open(tmp_path / "s", os.O_PATH)
    peers: list[Peer] = []

    def connect(*said: bytes) -> Peer:
        peers.append(Peer(descriptor, SUB, longest=LONGEST))
        other, _ = listener.accept()

        def say() -> None:
            with other, suppress(OSError):
                for each in said:
                    other.sendall(each)
                while True:
                    other.sendall(said[-1])

        threading.Thread(target=say, daemon=True).start()
        return peers[-1]

    yield connect
    for peer in peers:
        peer.close()
    listener.close()
    os.close(descriptor)


@pytest.mark.parametrize(
    "frame",
    [
        bytes((MORE, 0)) * 1000,
        struct.pack(">BQ", MORE | LONG, 100_000) + bytes(100_000),
        struct.pack(">BQ", LONG, 1 << 63),
        struct.pack(">BQ", LONG | COMMAND, 1 << 40),
    ],
    ids=["empty parts", "parts", "one part", "a command"],
)
def test_a_message_without_end_is_given_up_at_its_longest(connected, frame):
    peer = connected(GREETING + READY, frame)
    while not peer.ended:
        assert peer.receive() is None
        assert len(peer._read) + sum(map(len, peer._frames)) < 2 * LONGEST
        assert len(peer._frames) < LONGEST


def test_a_flood_of_what_means_nothing_does_not_outrun_a_deadline(connected):
    peer = connected(GREETING, READY * 1000)
    for _ in range(20):
        assert peer.receive() is None  # each time it returns
    assert not peer.ended


def test_another_protocol_is_not_listened_to(connected):
    peer = connected(b"HTTP/1.1 200 OK\r\n" * 10)
    while not peer.ended:
        assert peer.receive() is None


def test_a_stages_time_out_in_the_middle_of_a_request_stays_one():
    class Over(NeverCancelled):
        def raise_if_set(self) -> None:
            raise StageTimeout("init overran")

    ours, theirs = socket.socketpair()
    with theirs, Over() as over:
        os.eventfd_write(over.fileno(), 1)
        descriptor = make_page(fence=1, output_bytes=1024)
        page = Page(descriptor)
        os.close(descriptor)
        control = Control(ours, over, page, FileNotes(page))
        with pytest.raises(StageTimeout):
            control.ping()
        control.close()
        page.close()
