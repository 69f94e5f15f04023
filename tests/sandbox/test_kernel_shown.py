"""What a kernel keeps of its last cell for those who come later: of much that was shown the start and the end."""

from __future__ import annotations

from typing import Any

import pytest

from prorl_celery.sandbox.kernel.shown import LastCell, small

LIMIT = 1000
REQUEST = {"msg_id": "r", "msg_type": "execute_request"}


def told(*texts: str) -> dict[str, Any]:
    """What is kept of a cell that showed these texts, one message each."""
    last = LastCell(LIMIT)
    last.hear("status", REQUEST, {"execution_state": "busy"})
    for text in texts:
        last.hear("stream", REQUEST, small("stream", {"text": text}, LIMIT))
    return last.told()


@pytest.mark.parametrize("before", [(), ("a few words\n",), ("a few words\n", "b" * LIMIT)])
def test_the_start_is_kept_also_when_it_is_of_a_message_that_is_too_long(before: tuple[str, ...]) -> None:
    """As when a loaded machine lets all that a cell printed come together."""
    kept = told(*before, "start" + "x" * 9000 + "\n", *["line\n" * 20] * 10, "end\n")
    shown = "".join(content["text"] for _, content in kept["first"])
    assert shown.startswith("".join(before) + "start")
    assert kept["end"][-1][1]["text"] == "end\n"


@pytest.mark.parametrize("length", [1, 10, 999, 2001, 5000])
def test_what_is_kept_is_bounded_and_every_byte_is_there_or_counted(length: int) -> None:
    texts = ["ä" * length for _ in range(300)]
    kept = told(*texts)
    entries = [content for _, content in kept["first"] + kept["end"]]
    bytes_kept = sum(len((content["text"] + content.get("tail", "")).encode()) for content in entries)
    assert bytes_kept <= 2 * 8 * LIMIT
    cut = kept["cut"] + sum(content.get("cut", 0) for content in entries)
    assert bytes_kept + cut == sum(len(text.encode()) for text in texts)
