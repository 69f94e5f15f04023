"""Free answers: a model judges whether a reply says what the reference says.

What is judged is the policy's own text, and the policy is trained on the verdict, so it will learn to talk to the judge
where that can be done. Hence:

- The reply is cut, and stands between two lines that it cannot contain: they are made from a hash of the whole text.
- What looks like a model's structure in it (`<|im_end|>`, `</s>`, `[INST]`, `<think>`) is broken by a blank that does
  not show, whatever form the backend speaks: a server that renders messages itself would take it for what it is.
- The template is filled in one pass; what a reply says of `$reference` stays text.
- A verdict is one line, the last, and the only one in the judge's reply that could be one. A judge that quotes a
  verdict from the reply has given none. It is asked again, at another seed; no verdict is no reward, never a pass.

The prompt is `judge.txt` beside this file, or the file of `PRORL_JUDGE_PROMPT`: text with `$question`, `$reference`,
`$answer` and `$fence`, and `$rubric` if it likes; `$$` is a dollar.
"""

from __future__ import annotations

import hashlib
import re
import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from prorl_celery.errors import BadInstance, Unjudged

TRIES = 3
WARM = 0.7
"""The temperature from the second try on: at 0 another seed would change nothing."""
REPLY_CHARACTERS = 8000
"""Of a longer reply the judge is shown beginning and end."""
PROMPT_BYTES = 64 << 10
NEEDED = frozenset({"question", "reference", "answer", "fence"})
KNOWN = NEEDED | {"rubric"}

_STRUCTURE = re.compile(
    r"<(?=[|/!\uff5c])|(?<=[|\uff5c])>|<(?=[A-Za-z_]{1,40}\s{0,4}/?>)|<(?=<)|\[(?=/?(?:[A-Z_]{3,40}|gMASK)\])"
)
_INVISIBLE = "\u200b"
_CONTROL = {number: None for number in range(32) if chr(number) not in "\n\t"} | {0x7F: None}
_VERDICT = re.compile(r"verdict\s*:", re.IGNORECASE)
_LAST_LINE = re.compile(r"[*_`# ]*VERDICT:[*_` ]*(CORRECT|INCORRECT)[*_`. ]*", re.IGNORECASE)

Verdict = Literal["correct", "incorrect"]
Ask = Callable[[list[dict[str, str]], float, int], str]
"""Asks the judge: messages, temperature, seed -> its reply."""


@dataclass(frozen=True, slots=True)
class Judged:
    """What the judge said in the end, and after how many tries."""

    verdict: Verdict
    text: str
    tries: int

    def as_eval(self) -> dict[str, Any]:
        """What eval returns."""
        right = self.verdict == "correct"
        return {
            "reward": float(right),
            "resolved": right,
            "why": None if right else "the judge finds it wrong",
            "judge": {"verdict": self.verdict, "text": self.text[-4000:], "tries": self.tries},
        }


class Prompt:
    """The judge's prompt. Raises `Unjudged` that names the setting for a file that cannot be one."""

    def __init__(self, path: str = "") -> None:
        where = f"PRORL_JUDGE_PROMPT: {path}" if path else "the judge's prompt"
        try:
            data = Path(path).read_bytes() if path else files(__package__).joinpath("judge.txt").read_bytes()
            if len(data) > PROMPT_BYTES:
                raise Unjudged(f"{where} is larger than {PROMPT_BYTES} bytes")
            self._template = string.Template(data.decode())
        except (OSError, UnicodeDecodeError) as error:
            raise Unjudged(f"{where} cannot be read: {error}") from error
        if not self._template.is_valid():
            raise Unjudged(f"{where} has a $ that begins no name; $$ is a dollar")
        names = set(self._template.get_identifiers())
        if missing := NEEDED - names:
            raise Unjudged(f"{where} lacks ${min(missing)}")
        if unknown := names - KNOWN:
            raise Unjudged(f"{where} has ${min(unknown)}, which nothing is put for")

    def messages(self, instance: Mapping[str, Any], question: str, reply: str) -> list[dict[str, str]]:
        """What the judge is asked about this reply to the instance's question."""
        fence = "=====" + hashlib.sha256(f"{question}\0{reply}".encode("utf-8", "replace")).hexdigest()[:24] + "====="
        rubric = instance.get("rubric")
        text = self._template.substitute(
            question=question,
            reference=instance["answer"],
            rubric=f"\nWhat matters:\n{rubric}\n" if rubric else "",
            fence=fence,
            answer=as_evidence(reply),
        )
        return [{"role": "user", "content": text}]


def check(instance: Mapping[str, Any]) -> None:
    """Raises `BadInstance` with `field` where a judge could not judge by this instance."""
    for field in ("answer", "rubric"):
        value = instance.get(field)
        if field == "rubric" and value is None:
            continue
        if not isinstance(value, str) or not value.strip():
            raise BadInstance(f"{field!r} must be a text that is not empty", field=field)


def judge(prompt: Prompt, instance: Mapping[str, Any], question: str, reply: str, ask: Ask) -> Judged:
    """The judge's verdict. Raises `Unjudged` where it gives none in `TRIES` tries, and what `ask` raises."""
    messages = prompt.messages(instance, question, reply)
    said = ""
    for number in range(TRIES):
        said = ask(messages, WARM if number else 0.0, number)
        verdict = verdict_of(said)
        if verdict is not None:
            return Judged(verdict, said, number + 1)
    raise Unjudged(f"the judge gave no verdict in {TRIES} tries; at last it said: {said[-300:]!r}")


def verdict_of(said: str) -> Verdict | None:
    """The verdict of a judge's reply: its last line, where nothing before it looks like one; else None."""
    lines = said.rstrip().rsplit("\n", 1)
    match = _LAST_LINE.fullmatch(lines[-1].strip()[:80])
    if match is None or len(_VERDICT.findall(said)) != 1:
        return None
    return "correct" if match[1].upper() == "CORRECT" else "incorrect"


def as_evidence(reply: str) -> str:
    """The reply as the judge is shown it: bounded, and text throughout."""
    left_out = len(reply) - REPLY_CHARACTERS
    if left_out > 0:
        half = REPLY_CHARACTERS // 2
        reply = f"{reply[:half]}\n[{left_out} characters are left out here]\n{reply[-half:]}"
    text = reply.encode("utf-8", "replace").decode().translate(_CONTROL)
    return _STRUCTURE.sub(lambda mark: f"{mark[0]}{_INVISIBLE}" if mark[0] != ">" else f"{_INVISIBLE}>", text)
