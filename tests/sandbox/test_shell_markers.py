"""The line that is sent for a command, and the markers found in what the terminal says."""

from __future__ import annotations

import subprocess

from hypothesis import given, settings
from hypothesis import strategies as st

from prorl_celery.sandbox.markers import MANY_QUOTES, Marker, Markers, command_line, quote_command
from prorl_celery.sandbox.output import CappedOutput

NONCE = "abcdef123456"
MARKER = b"\x02abcdef123456:7:id2:id2:0:himBs:/work:a\x03abcdef123456\x04"
FOUND = Marker(command_id=b"id2", ran=b"id2", status=7, now=0, flags=b"himBs", cwd="/work:a")
commands = st.text(alphabet=st.characters(blacklist_characters="\0", blacklist_categories=("Cs",)))


def scanned(*pieces: bytes) -> tuple[list[Marker], bytes]:
    """The markers found in what comes in pieces, and the output beside them."""
    markers, output = Markers(NONCE), CappedOutput(1 << 20)
    found, carry = [], b""
    for piece in pieces:
        carry += piece
        while carry:
            marker, carry = markers.scan(carry, output)
            if marker is None:
                break
            found.append(marker)
    return found, bytes(output._head) + carry


def bash(script: bytes) -> bytes:
    return subprocess.run(
        ["bash"], input=script, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60, check=True
    ).stdout


def test_quoting_leaves_plain_text_alone_and_escapes_the_rest():
    assert quote_command("ls -la") == b"ls -la"
    assert quote_command("it's\n!\\") == b"it\\047s\\012\\041\\134"


@settings(deadline=None, max_examples=40)
@given(st.lists(commands, min_size=1, max_size=30))
def test_bash_reads_a_quoted_command_as_it_was(texts):
    script = b"".join(b"printf '%%s\\0' $'%b'\n" % quote_command(text) for text in texts)
    assert bash(script) == b"".join(text.encode() + b"\0" for text in texts)


def run_line(command: str) -> bytes:
    """What a command's line does, in a shell that is not set up for it."""
    return bash(b"exec 247</dev/null\n" + command_line(command, b"id", status=0, tidy=False))


def test_a_command_of_many_quotes_is_read_as_it_was_and_in_no_more_than_linear_time():
    for lines in (10, 30_000):
        text = "it's \\0471 %s \\\\c\n" + "print('a', '\\n', 'b')\n" * lines
        assert (text.count("'") > MANY_QUOTES) == (lines > 10)
        assert run_line(f"cat <<'END'\n{text}END").decode() == text


def test_a_command_starts_with_the_exit_code_of_the_one_before():
    line = command_line("echo $?", b"id", status=42, tidy=False)
    assert bash(b"__p_was() { return $1; }; exec 247</dev/null\n" + line) == b"42\n"


def test_a_marker_is_found_however_it_comes_in_pieces():
    said = b"before\n" + MARKER + b"after\n"
    for cut in range(len(said)):
        assert scanned(said[:cut], said[cut:]) == ([FOUND], b"before\nafter\n")
    assert scanned(*(said[index : index + 1] for index in range(len(said)))) == ([FOUND], b"before\nafter\n")


def test_what_is_no_marker_is_output():
    for said in (
        b"\x02", b"\x03", b"\x02abcdef123456", b"\x02abcdef123456:", b"abcdef123456", b"\x03abcdef123456\x04",
        b"\x02\x02abcdef12345\x02", b"\x02abcdef123456:1:2:3", b"\x02" * 100,
    ):  # fmt: skip
        assert scanned(said + MARKER) == ([FOUND], said)
        assert scanned(said + b"\n", MARKER) == ([FOUND], said + b"\n")


def test_a_beginning_without_an_end_is_let_go_when_it_is_longer_than_any_marker():
    opening = b"\x02abcdef123456:"
    flood = b"x".join([opening] * 5000)
    found, said = scanned(*(flood[index : index + 4095] for index in range(0, len(flood), 4095)), MARKER)
    assert (found, said) == ([FOUND], flood)


def test_a_marker_with_parts_missing_and_the_text_of_the_prompt_are_dropped():
    unfinished = b"\x02abcdef123456:1:2\x03abcdef123456\x04"
    text = b"\x02abcdef123456:0:id2:$__p_id:$?:$-:${PWD-}\x03abcdef123456\x04"
    assert scanned(b"a" + unfinished + b"b" + text + b"c" + MARKER) == ([FOUND], b"abc")
