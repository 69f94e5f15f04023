"""What a sandbox says of a slice is believed as far as it is signed."""

from __future__ import annotations

from pathlib import Path

import pytest

from prorl_celery.grading.code.inside.answers import BEGAN, OVER, SIGNATURE_BYTES, Answers
from prorl_celery.grading.code.inside.plain import dump, load
from prorl_celery.grading.code.slices import understood

KEY = b"k" * 32


@pytest.fixture
def said(tmp_path: Path) -> bytes:
    path = tmp_path / "answers"
    answers = Answers(str(path))
    answers.sign_with(KEY)
    answers.write(BEGAN, {})
    for number in range(3):
        answers.write(number, {"kind": ""}, b"", b"output %d" % number)
    answers.write(OVER, {"done": 3, "clear": True})
    answers.close()
    return path.read_bytes()


def test_signed_frames_are_read_to_the_end(said: bytes) -> None:
    spoken = understood(said, KEY)
    assert spoken is not None
    assert [(frame.number, frame.parts[1]) for frame in spoken.frames] == [(n, b"output %d" % n) for n in range(3)]
    assert (spoken.over, spoken.clear, spoken.unfit) == (True, True, None)


def test_another_key_says_nothing(said: bytes) -> None:
    assert understood(said, b"x" * 32) is None


@pytest.mark.parametrize("junk", [b"", b"\0" * 20, b"9" * 20, b"99999999999\n", b"-5\n" + b"x" * 9, b"5\n", b"\n" * 9])
def test_junk_says_nothing_and_ends_what_was_said(said: bytes, junk: bytes) -> None:
    assert understood(junk, KEY) is None
    cut = said.index(b"output 1")
    spoken = understood(said[:cut] + junk, KEY)
    assert spoken is not None
    assert [frame.number for frame in spoken.frames] == [0]
    assert not spoken.over


def test_a_changed_byte_ends_what_was_said(said: bytes) -> None:
    for at in range(0, len(said), 7):
        spoken = understood(said[:at] + bytes([said[at] ^ 1]) + said[at + 1 :], KEY)
        assert spoken is None or not spoken.over
        assert spoken is None or all(frame.parts[1] == b"output %d" % frame.number for frame in spoken.frames)


def test_a_frame_is_believed_in_its_own_place_only(said: bytes) -> None:
    """What a solution does that copies the frame of a case that it passed over that of one that it did not."""
    frames, at = [], 0
    while at < len(said):
        line_end = said.index(b"\n", at)
        end = line_end + 1 + SIGNATURE_BYTES + int(said[at:line_end])
        frames.append(said[at:end])
        at = end
    began, first, second, third, over = frames
    for order in ((first, first, third), (first, third, second), (first, third), (first, first, second, third)):
        spoken = understood(b"".join((began, *order, over)), KEY)
        assert spoken is not None
        assert [frame.number for frame in spoken.frames] == [0]
        assert not spoken.over


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, 7, 10**5000, 1.5, float("inf"), "t\ud800", b"\xff", 1 + 2j, ..., range(1, 9, 2)),
        *([1, [2]], (1, (2,)), {1, 2}, frozenset({(1, 2)}), {"a": {1: (2, 3)}, (1, 2): None}, [], {}, set(), ()),
    ],
    ids=lambda value: repr(value)[:20] if not isinstance(value, int) else f"{value:x}"[:20],
)
def test_plain_values_pass_as_they_are(value: object) -> None:
    assert load(dump(value)) == value
    assert type(load(dump(value))) is type(value)


def test_what_is_lazy_passes_as_an_iterator_and_what_is_not_plain_does_not() -> None:
    passed = load(dump(x * x for x in range(3)))
    assert passed != [0, 1, 4]
    assert list(passed) == [0, 1, 4]
    assert repr(load(dump(float("nan")))) == "nan"
    with pytest.raises(TypeError, match="object is no plain value"):
        dump([object()])
    with pytest.raises((ValueError, TypeError, KeyError)):
        load('{"eval": ["1"]}')
