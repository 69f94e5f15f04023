"""The memory that a sandbox's holders share."""

from __future__ import annotations

import mmap
import os
import random
from collections.abc import Callable, Iterator

import pytest

from prorl_celery.errors import FenceLost, SandboxError
from prorl_celery.sandbox import page as pages
from prorl_celery.sandbox.notes import MARK_BYTES, FileNotes, Mark, ShellNotes, ShellState
from prorl_celery.sandbox.page import CONTROL, READ, WRITE, Page, make_page, read_fence, write_fence
from prorl_celery.sandbox.stream import Stream

BEGIN = 100
SIZE = 1101


@pytest.fixture
def descriptor() -> Iterator[int]:
    made = make_page(fence=3, output_bytes=1000)
    yield made
    os.close(made)


@pytest.fixture
def holder(descriptor: int) -> Iterator[Callable[[int], Page]]:
    opened: list[Page] = []

    def hold(slot: int) -> Page:
        opened.append(Page(descriptor, slot=slot))
        opened[-1].hold()
        return opened[-1]

    yield hold
    for page in opened:
        page.close()


def test_an_act_under_an_earlier_fence_is_refused(descriptor, holder):
    first = holder(1)
    first.check()
    write_fence(descriptor, 4)
    with pytest.raises(FenceLost):
        first.begin(READ)
    holder(2).check()
    assert read_fence(descriptor) == 4


def test_nobody_who_has_a_page_can_make_it_shorter(descriptor):
    with pytest.raises(PermissionError):
        os.ftruncate(descriptor, 100)


def test_what_a_dead_holder_was_in_the_midst_of_is_doubtful_until_it_is_settled(descriptor, holder):
    child = os.fork()
    if child == 0:
        page = Page(descriptor, slot=1)
        page.hold()
        page.begin(READ)
        os._exit(0)
    os.waitpid(child, 0)
    second = holder(2)
    assert second.doubts(READ | WRITE | CONTROL) == READ
    assert holder(3).doubts(READ) == READ
    second.settle(READ)
    assert second.doubts(READ | WRITE | CONTROL) == 0


def test_who_lives_in_the_midst_of_an_act_is_not_taken_over_from(holder, monkeypatch):
    monkeypatch.setattr(pages, "PATIENCE_SECONDS", 0.05)
    first = holder(1)
    first.begin(WRITE)
    with pytest.raises(SandboxError, match="cannot be taken over"):
        holder(2)
    first.end()
    assert holder(3).doubts(WRITE) == 0


def test_a_page_that_was_closed_is_of_no_use(holder):
    page = holder(1)
    page.close()
    page.close()
    with pytest.raises(SandboxError, match="closed"):
        page.begin(READ)


def test_a_new_mark_is_one_under_which_nothing_was_done(holder):
    page = holder(1)
    shell, files, mark = ShellNotes(page), FileNotes(page), Mark(page)
    shell.command(b"id", 10, ShellState(0, 1, b"", b"2"), at=1.0)
    files.request(5, "write-1")
    files.request(5, None)
    assert (shell.count, files.count, mark.name) == (1, 1, "")
    mark.change("näme", shell, files)
    assert (shell.count, files.count, mark.name) == (0, 0, "näme")
    mark.change("n" * 1000)
    assert mark.name == "n" * MARK_BYTES
    shell.close()


def test_notes_do_not_lie_upon_one_another(holder):
    page = holder(1)
    shell, files, mark = ShellNotes(page), FileNotes(page), Mark(page)
    state = ShellState(7, 8, b"r" * 1000, b"p" * 1000)
    mark.change("m" * 1000)
    files.request(99, "w" * 1000)
    shell.command(b"c" * 1000, 5, state, at=2.5)
    shell.idle(state, "/" * 5000)
    shell.log(b"said", 3.5)
    assert shell.shell == ShellState(7, 8, b"r" * 32, b"p" * 120)
    assert (shell.command_id, shell.line_bytes, shell.started_at, shell.cwd) == (b"c" * 24, 5, 2.5, "/" * 4096)
    assert (files.unsent, files.under_way, files.write_id) == (99, True, "w" * 120)
    assert mark.name == "m" * MARK_BYTES
    assert shell.said(of_result=False) == (b"said", 0, b"")
    shell.close()


def test_a_stream_keeps_the_start_and_the_end_however_it_came():
    chance = random.Random(1)
    head = (SIZE - BEGIN) // 2
    ring = SIZE - BEGIN - head
    for _ in range(300):
        memory = mmap.mmap(-1, SIZE)
        stream, said = Stream(memory, BEGIN), b""
        total = chance.choice((1, head, head + ring, 2 * head + ring, 9999)) + chance.randint(-1, 2)
        while len(said) < total:
            data = os.urandom(min(total - len(said), chance.choice((1, 40, 600, 3000))))
            stream.add(len(said), data)
            said += data
        wanted = chance.choice((len(said), chance.randint(0, len(said))))
        first, missing, rest = stream.kept(len(said), wanted)
        assert first == said[: min(wanted, head)]
        assert len(first) + missing + len(rest) == wanted
        assert rest == said[len(first) + missing : wanted]
        if wanted == len(said):
            assert missing == max(0, wanted - head - ring)
        assert memory[:BEGIN] == bytes(BEGIN)
        memory.close()
