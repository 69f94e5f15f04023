"""What a model reads of a command's output: lines in their last state, head and tail, and how much was left out."""

from __future__ import annotations

import random
import resource
import tracemalloc

import pytest

from prorl_celery.sandbox.output import CappedOutput

MB = 1_000_000


def collected(*pieces: bytes, limit: int = 1 << 20) -> CappedOutput:
    output = CappedOutput(limit)
    for piece in pieces:
        output.add(piece)
    return output


def cut_at_random(data: bytes, seed: int) -> list[bytes]:
    chance = random.Random(seed)
    pieces = []
    while data:
        size = chance.choice((1, 2, 3, 10, 4095))
        pieces.append(data[:size])
        data = data[size:]
    return pieces


@pytest.mark.parametrize(
    ("printed", "shown"),
    [
        (b"a\r\nb\r\n", "a\nb\n"),
        (b"a\r\r\nb\n", "a\nb\n"),
        (b"  1%\r 50%\r100%\n", "100%\n"),
        (b"one\n  1%\r 50%", "one\n 50%"),
        (b"one\n  1%\r 50%\r", "one\n 50%"),
        (b"  1%\r 50%\r\ndone\n", " 50%\ndone\n"),
        (b"\r  1%\r 50%\n", " 50%\n"),
        (b"\r\r\r", ""),
        (b"Reading: 10%\r\x1b[KReading: 100%\r\x1b[KDone\n", "Done\n"),
        (b"Reading: 10%\x1b[2K\rDone\n", "Done\n"),
        (b"Reading: 10%\r\x1b[K\nnext\n", "\nnext\n"),
        (b"plain\x1b[K\n", "plain\x1b[K\n"),
        ("50 \N{FULL BLOCK}\r100 \N{FULL BLOCK}\N{FULL BLOCK}\n".encode(), "100 \N{FULL BLOCK}\N{FULL BLOCK}\n"),
        (b"a\0b\xffc\n", "a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}c\n"),
    ],
)
def test_a_line_is_shown_in_its_last_state_however_it_comes(printed, shown):
    assert collected(printed).text() == shown
    for seed in range(20):
        assert collected(*cut_at_random(printed, seed)).text() == shown
    assert collected(*(printed[index : index + 1] for index in range(len(printed)))).text() == shown


def test_a_progress_bar_of_any_length_takes_the_room_of_one_line():
    updates = [b"\r%3d%% of a long download" % (index % 101) for index in range(100_000)]
    output = collected(b"start\n", *updates, b"\nend\n", limit=1000)
    assert output.text() == "start\n  9% of a long download\nend\n"
    assert output.omitted_bytes == 0


def test_a_line_that_is_written_over_after_the_cap_was_reached_goes_as_far_as_it_was_kept():
    output = collected(b"h" * 600, b"m" * 5000, b"\nx" + b"t" * 300, b"\rlast\n", limit=1000)
    assert output.text() == "h" * 500 + f"\n[... {output.omitted_bytes} bytes left out ...]\n" + "m" * 494 + "\nlast\n"


def test_text_within_the_cap_is_whole_and_beyond_it_head_and_tail():
    for limit in (0, 1, 2, 7, 1000, 5000):
        data = bytes(random.Random(limit).choices(b"abcdefgh\n", k=20_000))
        for seed in range(5):
            output = collected(*cut_at_random(data, seed), limit=limit)
            head, tail = limit - limit // 2, limit // 2
            assert output.omitted_bytes == len(data) - limit
            gap = f"\n[... {len(data) - limit} bytes left out ...]\n"
            assert output.text() == data[:head].decode() + gap + data[len(data) - tail :].decode()
            assert collected(*cut_at_random(data[:limit], seed), limit=limit).text() == data[:limit].decode()


@pytest.mark.parametrize("size", [1, 100, 4095, 65536])
@pytest.mark.parametrize("letter", [b"x", b"\r", b"\n", b"\0"])
def test_memory_stays_at_the_cap_whatever_comes(letter, size):
    output = CappedOutput(64 << 10)
    piece = (b"y" + letter * size)[:size]
    output.add(piece)
    tracemalloc.start()
    for _ in range(min(5_000, 2 * MB // size)):
        output.add(piece)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20


def test_the_last_line_can_be_taken_back():
    for pieces in ([b"a\nb\nmark\n"], [b"a\n", b"b\n", b"ma", b"rk\n"]):
        for limit in (5, 1000):
            output = collected(*pieces, limit=limit)
            output.cut_last_line(b"other")
            output.cut_last_line(b"mark")
            assert not output.text().endswith("mark\n")
    output = collected(b"mark\n")
    output.cut_last_line(b"mark")
    assert output.text() == ""


def test_ten_megabytes_are_read_once_and_hardly_copied(sandbox, keeper):
    read, moved = sandbox.shell.bytes_read, sandbox.shell.bytes_moved
    result = sandbox.shell.run("yes 0123456789 | head -c 10000000", timeout=120)
    assert (result.exit_code, result.omitted_bytes) == (0, 10 * MB - keeper.settings.tool_output_bytes)
    assert 10 * MB <= sandbox.shell.bytes_read - read < 10 * MB + 1000
    assert sandbox.shell.bytes_moved - moved < MB


def test_a_hundred_megabytes_keep_head_and_tail_and_leave_memory_as_it_was(sandbox):
    sandbox.shell.run("seq 100000", timeout=60)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = sandbox.shell.run("echo first; yes | head -c 104857600; echo last", timeout=300)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert result.exit_code == 0
    assert result.output.startswith("first\ny\n")
    assert result.output.endswith("y\nlast\n")
    assert f"[... {result.omitted_bytes} bytes left out ...]" in result.output
    assert result.omitted_bytes > 100_000_000
    assert grown < 20 << 10, "KiB"


def test_a_line_of_a_megabyte_comes_through_as_one(sandbox, keeper):
    result = sandbox.shell.run("head -c 1048576 /dev/zero | tr '\\0' y", timeout=60)
    assert result.omitted_bytes == (1 << 20) - keeper.settings.tool_output_bytes
    assert result.output.count("\n") == 2


def test_binary_output_is_read_to_its_end(sandbox):
    result = sandbox.shell.run("head -c 3000000 /dev/urandom; echo; echo end", timeout=60)
    assert (result.exit_code, result.output.endswith("\nend\n")) == (0, True)


def test_a_real_progress_bar_is_one_line(sandbox):
    bar = "import sys\nfor i in range(2001):\n    sys.stderr.write(f'\\r{i / 20:5.1f}%')\nsys.stderr.write('\\n')"
    sandbox.files.write("/workspace/bar.py", bar.encode())
    assert sandbox.shell.run("echo go; python3 bar.py; echo done", timeout=60).output == "go\n100.0%\ndone\n"


def test_a_flood_of_output_does_not_outrun_the_time_out(sandbox):
    for flood in ("yes", "cat /dev/zero", "while :; do echo -n x; done"):
        result = sandbox.shell.run(flood, timeout=0.5)
        assert result.timed_out
        assert result.duration_s < 20
        assert sandbox.shell.run("echo here", timeout=20).output == "here\n"
