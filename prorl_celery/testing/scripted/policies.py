"""What the scripted backend says: policies, each a pure function of the conversation so far.

Given: a conversation, the request's seed, and (at construction) the oracle and the server's seed.
Gives: the text of the assistant's next turn, tool calls included, in the Hermes/Qwen form.

A policy keeps nothing between calls: it works out where it stands by counting turns, so the server can be
restarted in the middle of a thousand rollouts and none of them notices.

    solve          writes the canonical solution to /workspace/solution.py, runs it, finishes; by bash and the editor,
                   by ipython where there are neither; answers "What is 3 + 4?"
    p=P            as solve with probability P, else writes a wrong module that looks all right
    fail           p=0
    loop           calls bash for ever
    malformed[:N]  N malformed calls (3), each wrong in another way, then solve
    think[:N]      as solve, each turn after N words (200) of <think>
    toy[:T[,W]]    T - 1 turns of `bash echo step-i` after W words of text, then a last text (T = 5, W = 0)
    obey           runs the task's own lines that begin with "$ ", one a turn, by bash, then says that it is done;
                   a line's parts between " ;; " are calls of one turn
    answer[:P]     answers "What is 3 + 4?" with probability P (1), else with a wrong number
    recite[:P]     says the turns of the oracle's row (`recital.py`) one by one, with probability P (1), else its
                   wrong_turns; as solve where no row is found
"""

from __future__ import annotations

import hashlib
import json
import operator
import random
import re
from collections.abc import Callable, Mapping
from typing import Any

from prorl_celery.testing.scripted.conversation import Conversation
from prorl_celery.testing.scripted.oracle import Oracle, Problem
from prorl_celery.testing.scripted.recital import SpokenTurn

SOLUTION_PATH = "/workspace/solution.py"
Policy = Callable[[Conversation, "int | None"], str]

_QUESTION = re.compile(r"(-?\d+)\s*([-+*])\s*(-?\d+)")
_WHAT_IS = re.compile(rf"\bWhat is {_QUESTION.pattern}\s*\?")
_OPERATORS: dict[str, Callable[[int, int], int]] = {"+": operator.add, "-": operator.sub, "*": operator.mul}
_WORDS = tuple(
    re.findall(
        r"\w+",
        "first the signature then the examples what about an empty input the order matters so a loop over "
        "the items would do compare with the statement again each case holds and the edge cases too",
    )
)


def call(name: str, **arguments: Any) -> str:
    """A tool call as the template writes it."""
    return _call(name, arguments)


def _call(name: str, arguments: Mapping[str, Any]) -> str:
    body = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{body}\n</tool_call>"


def chance(*parts: object) -> float:
    """A number in [0, 1) decided by `parts`."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


def words(count: int) -> str:
    """`count` words that read like thinking."""
    return " ".join(_WORDS[i % len(_WORDS)] for i in range(count))


class Solve:
    """Looks round, writes the module, runs it, finishes. Right with probability `p`."""

    def __init__(self, oracle: Oracle, seed: int, p: float = 1.0) -> None:
        self._oracle = oracle
        self._seed = seed
        self._p = p

    def __call__(self, conversation: Conversation, seed: int | None) -> str:
        return self.step(conversation, seed, conversation.turn)

    def step(self, conversation: Conversation, seed: int | None, step: int) -> str:
        """The reply for step `step` of the four."""
        tools = conversation.tools
        if step >= 3 or not tools & {"bash", "str_replace_editor", "ipython"}:
            return self._last(conversation, seed)
        if step == 0:
            return _look(tools)
        problem = self._oracle.find(conversation.task)
        if problem is None:
            return _finish(tools, self._without_oracle(conversation, seed))
        if step == 1:
            return _write(tools, problem.key, self._module(problem, seed))
        return _check(tools)

    def _last(self, conversation: Conversation, seed: int | None) -> str:
        if conversation.tools:
            return _finish(conversation.tools, f"The solution is in {SOLUTION_PATH}.")
        problem = self._oracle.find(conversation.task)
        if problem is None:
            return self._without_oracle(conversation, seed)
        return f"```python\n{self._module(problem, seed)}```"

    def _without_oracle(self, conversation: Conversation, seed: int | None) -> str:
        asked = _WHAT_IS.search(conversation.task)
        return "I do not know this problem." if asked is None else _sum(asked, self._seed, self._p, seed)

    def _module(self, problem: Problem, seed: int | None) -> str:
        return problem.module if lucky(self._p, self._seed, problem.key, seed) else problem.wrong_module


def lucky(p: float, server_seed: int, key: str, seed: int | None) -> bool:
    """Whether a sample comes out right: fixed by seeds and problem; by chance without a request's seed."""
    return (random.random() if seed is None else chance(server_seed, key, seed)) < p


def _look(tools: frozenset[str]) -> str:
    text = "I look at the workspace before I write anything."
    if "bash" in tools:
        return f"{text}\n{call('bash', command='pwd && ls -a')}"
    if "str_replace_editor" in tools:
        return f"{text}\n{call('str_replace_editor', command='view', path='/workspace')}"
    return f"{text}\n{call('ipython', code='import os; os.getcwd(), os.listdir()')}"


def _write(tools: frozenset[str], key: str, module: str) -> str:
    text = "Now I write the module."
    if not tools & {"bash", "str_replace_editor"}:
        cell = f"%%writefile {SOLUTION_PATH}\n{module}"
        return f"{text}\n{call('ipython', code=cell)}"
    if "bash" not in tools or ("str_replace_editor" in tools and chance("editor", key) < 0.5):
        return f"{text}\n{call('str_replace_editor', command='create', path=SOLUTION_PATH, file_text=module)}"
    end = "END_OF_SOLUTION"
    newline = "" if module.endswith("\n") else "\n"
    command = f"cat > {SOLUTION_PATH} <<'{end}'\n{module}{newline}{end}"
    return f"{text}\n{call('bash', command=command)}"


def _check(tools: frozenset[str]) -> str:
    if "bash" in tools:
        return f"Does it load?\n{call('bash', command=f'python3 {SOLUTION_PATH} && echo loads')}"
    if "str_replace_editor" in tools:
        return f"I read it once more.\n{call('str_replace_editor', command='view', path=SOLUTION_PATH)}"
    return f"Does it run?\n{call('ipython', code=f'%run {SOLUTION_PATH}')}"


def _finish(tools: frozenset[str], answer: str) -> str:
    return f"Done.\n{call('finish', answer=answer)}" if "finish" in tools else answer


class Loop:
    """Calls bash for ever."""

    def __call__(self, conversation: Conversation, seed: int | None) -> str:
        return f"Not there yet.\n{call('bash', command=f'echo still working, turn {conversation.turn}')}"


class Malformed:
    """`count` malformed calls, then the solution."""

    forms = (
        '<tool_call>\n{"name": "bash", "arguments": {"command": "ls"\n</tool_call>',
        '<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}',
        call("no_such_tool", command="ls"),
        call("bash", comand="ls"),
        '<tool_call>\n{"name": "bash", "arguments": "ls"}\n</tool_call>',
        '<tool_call>\n["bash", "ls"]\n</tool_call>',
    )

    def __init__(self, solve: Solve, count: int = 3) -> None:
        self._solve = solve
        self._count = count

    def __call__(self, conversation: Conversation, seed: int | None) -> str:
        turn = conversation.turn
        if turn < self._count:
            return f"I list the files.\n{self.forms[turn % len(self.forms)]}"
        return self._solve.step(conversation, seed, turn - self._count)


class Think:
    """The solution, each turn after a long thought."""

    def __init__(self, solve: Solve, count: int = 200) -> None:
        self._solve = solve
        self._thought = f"<think>\n{words(count)}\n</think>\n\n"

    def __call__(self, conversation: Conversation, seed: int | None) -> str:
        return self._thought + self._solve(conversation, seed)


class Toy:
    """The job on which peers were measured: one `echo` a turn, then a last text."""

    def __init__(self, turns: int = 5, word_count: int = 0) -> None:
        self._turns = turns
        self._text = f"{words(word_count)}\n" if word_count else ""

    def __call__(self, conversation: Conversation, seed: int | None) -> str:
        step = conversation.turn + 1
        if step >= self._turns:
            return f"{self._text}All {self._turns - 1} steps are done."
        return self._text + call("bash", command=f"echo step-{step}")


class Obey:
    """Runs the commands that the task itself names."""

    def __call__(self, conversation: Conversation, seed: int | None) -> str:
        lines = [line[2:] for line in conversation.task.splitlines() if line.startswith("$ ")]
        if conversation.turn >= len(lines):
            return f"All {len(lines)} commands were run."
        return "\n".join(call("bash", command=part) for part in lines[conversation.turn].split(" ;; "))


class Answer:
    """Answers small sums, right with probability `p`."""

    def __init__(self, seed: int, p: float = 1.0) -> None:
        self._seed = seed
        self._p = p

    def __call__(self, conversation: Conversation, seed: int | None) -> str:
        question = _QUESTION.search(conversation.task)
        if question is None:
            return "I can only do sums of two numbers."
        return _sum(question, self._seed, self._p, seed)


class Recite:
    """Says what the oracle has written down. Right with probability `p`. Raises `ValueError` without the words."""

    def __init__(self, oracle: Oracle, seed: int, p: float = 1.0) -> None:
        if not 0 <= p <= 1:
            raise ValueError("P must be from 0 to 1")
        speechless = next((row.key for row in oracle.recitals if p < 1 and not row.wrong_turns), None)
        if speechless is not None:
            raise ValueError(f"the oracle's row {speechless!r} has no wrong_turns")
        self._oracle = oracle
        self._seed = seed
        self._p = p
        self._solve = Solve(oracle, seed, p)

    def __call__(self, conversation: Conversation, seed: int | None) -> str:
        row = self._oracle.recital(conversation.task)
        if row is None:
            return self._solve(conversation, seed)
        turns = row.turns if lucky(self._p, self._seed, row.key, seed) else row.wrong_turns
        return _spoken(turns[conversation.turn]) if conversation.turn < len(turns) else "I have said all of it."


def _spoken(turn: SpokenTurn) -> str:
    return "\n".join([turn.text] * bool(turn.text) + [_call(c.name, c.arguments) for c in turn.calls])


def _sum(question: re.Match[str], server_seed: int, p: float, seed: int | None) -> str:
    """The answer to the sum that was found, right with probability `p`."""
    left, sign, right = question.groups()
    result = _OPERATORS[sign](int(left), int(right))
    if not lucky(p, server_seed, question.group(), seed):
        result += 1 + int(chance(server_seed, seed, "off by") * 9)
    return f"{left} {sign} {right} = \\boxed{{{result}}}\n\n#### {result}"


def make_policy(spec: str, oracle: Oracle, seed: int = 0) -> Policy:
    """The policy that `spec` names. Raises `ValueError` that says what is wrong with it."""
    name, _, arguments = spec.replace("p=", "p:", 1).partition(":") if spec.startswith("p=") else spec.partition(":")
    parts = [part for part in arguments.split(",") if part]
    try:
        match name, [float(part) for part in parts]:
            case "solve", []:
                return Solve(oracle, seed)
            case "p", [p] if 0 <= p <= 1:
                return Solve(oracle, seed, p)
            case "fail", []:
                return Solve(oracle, seed, 0.0)
            case "loop", []:
                return Loop()
            case "malformed", [] | [_] as counts:
                return Malformed(Solve(oracle, seed), *map(int, counts))
            case "think", [] | [_] as counts:
                return Think(Solve(oracle, seed), *map(int, counts))
            case "toy", [] | [_] | [_, _] as counts:
                return Toy(*map(int, counts))
            case "obey", []:
                return Obey()
            case "answer", [] | [_] as ps:
                return Answer(seed, *ps)
            case "recite", [] | [_] as ps:
                return Recite(oracle, seed, *ps)
    except ValueError as error:
        raise ValueError(f"policy {spec!r}: {error}") from error
    known = "solve, p=P, fail, loop, malformed[:N], think[:N], toy[:T[,W]], obey, answer[:P], recite[:P]"
    raise ValueError(f"no policy {spec!r}; there are {known}")
