"""Where in a reply the answer stands. In this order, and the first place in which an answer can be read counts:

1. the last `\\boxed{...}`
2. behind the last "answer:", "answer is" or "answer ="
3. the whole reply, where it is a line
4. its last line
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from prorl_celery.grading.stem.latex import LONGEST_CHARACTERS, last_boxed

TAIL_CHARACTERS = 16_000
"""So much of a reply's end is looked at."""

_STATED = re.compile(r"\banswer\b[*_\"'` ]{0,4}(?:is|:|=)[*_\"'` :]{0,6}(.*)", re.IGNORECASE)
_MARKUP = " \t*_`\"'"


def places(reply: str) -> Iterator[str]:
    """The places, best first; each a line."""
    reply = reply[-TAIL_CHARACTERS:]
    boxed = last_boxed(reply)
    if boxed is not None:
        yield boxed
    lines = [line.strip() for line in reply.splitlines() if line.strip()]
    for number in range(len(lines) - 1, -1, -1):
        stated = list(_STATED.finditer(lines[number][-LONGEST_CHARACTERS:]))
        if stated:
            after = stated[-1][1].strip(_MARKUP)
            # "The final answer is:" has it on the next line.
            yield after or "".join(lines[number + 1 : number + 2])
            break
    if lines:
        yield lines[-1].strip(_MARKUP)[-LONGEST_CHARACTERS:]
