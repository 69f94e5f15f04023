"""What a reply to a problem of `reasoning-gym` is worth: the package's own scorer says, in a child with limits.

The scorer gets the problem as it was before it was JSON, where that makes a difference to it, and no way to run what a
reply says (`gym_text`). Where it is content with less than a problem asks for, we are not (`_stricter`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from copy import deepcopy
from fractions import Fraction
from typing import Any, Protocol

from prorl_celery.errors import BadInstance, EvalError
from prorl_celery.grading.bounds import Say, bounded

SOLVED = 1.0
"""The score of a problem that is solved. Not less: one wrong cell of a hundred scores 0.99 at `game_of_life`."""
GOOD = 0.9
"""What an instance's own answer scores at least, or the instance is not what it was."""
LONGEST_ANSWER = 100_000
CPU_SECONDS = 10
MEMORY_BYTES = 1 << 30
WALL_SECONDS = 180.0
"""For the machine to give it that, and to read the task's data, which takes a second for some."""

WARM = ("reasoning_gym", "prorl_celery.grading.gym_text")

OPEN, CLOSE = "<answer>", "</answer>"

TUPLES = frozenset(("arc_agi", "rearc"))
"""Tasks whose scorers compare boards, which are tuples, with what JSON has made lists of."""

UNSOLVED = "Integral("
"""In the own answers of some `intermediate_integration` problems, which sympy could not solve. An integral that is left
as it is is no answer here, though its derivative is what the scorer looks for.
"""

Entry = dict[str, Any]


class InChild(Protocol):
    """`ctx.in_child` of a stage."""

    def __call__(self, function: Callable[[Any], Any], argument: Any, *, timeout: float) -> Any: ...


def tagged_answer(text: str) -> str | None:
    """What stands between the last `<answer>` and `</answer>`, as the package extracts it; None where nothing does."""
    found, at = None, 0
    while (begin := text.find(OPEN, at)) >= 0 and (end := text.find(CLOSE, begin + len(OPEN))) >= 0:
        found, at = text[begin + len(OPEN) : end].strip(), end + len(CLOSE)
    return found


def verdict(task: str, instance: Mapping[str, Any], answer: str | None, in_child: InChild) -> dict[str, Any]:
    """`{"reward": the scorer's, 0.0 to 1.0, "resolved": whether that is 1.0, "answer", "why": where it is not}`.

    Raises: `BadInstance` when the scorer cannot score the instance's own answer either, `EvalError`, and what
    `in_child` raises.
    """
    if answer is None or not answer.strip():
        return {"reward": 0.0, "resolved": False, "answer": None, "why": "the reply says no answer"}
    if len(answer) > LONGEST_ANSWER:
        why = f"the answer has more than {LONGEST_ANSWER} characters"
        return {"reward": 0.0, "resolved": False, "answer": None, "why": why}
    argument = {"task": task, "answer": answer, **{k: instance.get(k) for k in ("question", "metadata", "config")}}
    found = in_child(score, argument | {"oracle": instance.get("answer")}, timeout=WALL_SECONDS)
    if found["lost"]:
        raise EvalError("the process that scores answers was killed")
    if found["bad"] is not None:
        raise BadInstance(f"reasoning_gym/{task} cannot score this instance: {found['bad']}", field="metadata")
    reward = found["reward"]
    verdict: dict[str, Any] = {"reward": reward, "resolved": reward >= SOLVED, "answer": answer}
    if reward < SOLVED:
        verdict["why"] = found["why"] or "another answer than the problem asks for"
    return verdict


def score(argument: Entry) -> Entry:
    """In a child: `{"reward", "why", "bad": why the instance cannot be scored, or None, "lost"}`."""
    from reasoning_gym.factory import DATASETS

    from prorl_celery.grading.gym_text import tame

    task, answer, oracle = argument["task"], argument["answer"], argument["oracle"]
    if task not in DATASETS:
        return {"reward": 0.0, "why": None, "bad": "there is no such task in the package of this node", "lost": False}
    dataset_class, config_class = DATASETS[task]
    try:
        scorer = dataset_class(config=config_class(**(argument["config"] or {}))).score_answer
    except (AssertionError, TypeError, ValueError) as error:
        return {"reward": 0.0, "why": None, "bad": f"its config: {error}", "lost": False}
    tame()
    metadata = argument["metadata"]
    entry = {
        "question": argument["question"],
        "answer": oracle,
        "metadata": _tuples(metadata) if task in TUPLES else metadata,
    }

    def scored(text: str) -> float:
        reward = _stricter(task, text, entry, float(scorer(text, deepcopy(entry))))
        if not math.isfinite(reward):
            raise ValueError(f"a score of {reward}")
        return min(max(reward, 0.0), 1.0)

    def work(say: Say) -> None:
        # Its own answer goes first: what that breaks is no reply's fault.
        if isinstance(oracle, str) and UNSOLVED not in oracle:
            try:
                best = scored(oracle)
            except Exception as error:  # noqa: BLE001 - whatever a scorer raises
                say(f"{type(error).__name__}: {error}"[:500])
                return
            if best < GOOD:
                say(f"its own answer scores {best:g}")
                return
        say(None)
        try:
            say(scored(answer))
        except (MemoryError, RecursionError):
            raise
        except Exception as error:  # noqa: BLE001
            say(f"the scorer could not read the answer ({type(error).__name__}: {error})"[:500])

    ended = bounded(work, cpu_seconds=CPU_SECONDS, memory_bytes=MEMORY_BYTES)
    bad = ended.said[0] if ended.said else ended.how
    if bad is not None or ended.lost:
        return {"reward": 0.0, "why": None, "bad": bad, "lost": ended.lost}
    came = ended.said[1] if len(ended.said) > 1 else f"the answer could not be scored: {ended.how}"
    reward, why = (came, None) if isinstance(came, float) else (0.0, came)
    return {"reward": reward, "why": why, "bad": None, "lost": False}


def _tuples(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_tuples(one) for one in value)
    if isinstance(value, dict):
        return {name: _tuples(one) for name, one in value.items()}
    return value


def _stricter(task: str, answer: str, entry: Entry, reward: float) -> float:
    """The scorer's reward, less where it gives a full one to what is wrong.

    - `puzzle24` asks for the four numbers that it gives, and its scorer takes any four that make 24.
    - `game_of_life_halting` compares `bool` of two texts: any answer is right to it.
    - `complex_arithmetic` finds no difference between `nan` and anything.
    - `gsm_symbolic` reads a number without its sign.
    - `coin_flip` takes `0` for 0.234, as the beginning of it, and all that is below 0.0001 for equal.
    """
    if task == "puzzle24" and reward >= SOLVED:
        used = sorted(int(number) for number in re.findall(r"\d+", answer))
        return reward if used == sorted(entry["metadata"]["numbers"]) else 0.01
    if task == "complex_arithmetic" and "nan" in answer.casefold():
        return 0.0
    if task == "gsm_symbolic" and answer.lstrip(" $").startswith(("-", "\u2212")):
        return reward if entry["answer"].lstrip().startswith("-") else 0.0
    if task == "game_of_life_halting":
        return float(answer.strip().casefold() == entry["answer"].casefold())
    if task == "coin_flip" and reward > 0.0:
        said, right = (float(Fraction(text.replace(",", ""))) for text in (answer, entry["answer"]))
        return float(abs(said - right) <= min(1e-4, 0.01 * right))
    return reward
