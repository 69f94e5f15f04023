"""Checks of what a handler makes of a job to which nothing happens."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from prorl_celery.jobs.models import Stage
from prorl_celery.sandbox.waiting import NeverCancelled
from prorl_celery.testing.kit.apart import score_apart
from prorl_celery.testing.kit.bench import Bench, Run
from prorl_celery.testing.kit.case import ContractBroken

LEAST_TEXT = 3
"""Hidden text that is shorter stands in a prompt by chance."""
APART_SECONDS = 120.0
PAGE_BYTES = 1 << 20


def scores_the_right_answer(bench: Bench) -> None:
    """The oracle's turns get `right_reward`."""
    _check_reward(bench.plain(), bench.case.right_reward, "turns")


def scores_the_wrong_answer(bench: Bench) -> None:
    """The oracle's wrong turns get `wrong_reward`: a score, and no error."""
    _check_reward(bench.plain(wrong=True), bench.case.wrong_reward, "wrong_turns")


def leaves_nothing(bench: Bench) -> None:
    """No sandbox, process or thread is left behind either job."""
    for run in (bench.plain(), bench.plain(wrong=True)):
        check_nothing_left(run, "when the job had ended")


def returns_json(bench: Bench) -> None:
    """What the stages return comes through JSON as it is: else a later stage gets something else."""
    run = bench.scored()
    for visit in run.visits:
        came = json.loads(json.dumps(visit.value))
        if came != visit.value or _types(came) != _types(visit.value):
            raise ContractBroken(
                f"what {visit.stage} returned changes on its way to the next stage: {visit.value!r} becomes {came!r}; "
                "return lists for tuples, and text for the names of a dict"
            )


def hides_the_answer(bench: Bench) -> None:
    """No hidden text stands in the prompt, nor in the files of the sandboxes that rollout begins with."""
    case = bench.case
    needles = {name: list(_texts(case.instance.get(name))) for name in case.hidden}
    found: list[str] = []

    def search(ctx: Any) -> None:
        for name in ctx.sandboxes:
            for field, texts in needles.items():
                found.extend(
                    f"{path} of the sandbox {name!r} has {field!r}" for path in _files_with(ctx.sandboxes[name], texts)
                )

    run = bench.run(happenings={"rollout": search})
    prompt: list[str] = []
    for message in run.result.messages:
        if message.get("role") == "assistant":
            break
        prompt.append(json.dumps(message.get("content"), ensure_ascii=False))
    for field, texts in needles.items():
        for text in texts:
            if any(text in said or json.dumps(text, ensure_ascii=False)[1:-1] in said for said in prompt):
                found.append(f"the prompt has {field!r}: {text[:200]!r}")
    if found:
        raise ContractBroken("what is hidden can be seen by the model: " + "; ".join(found))


def scores_in_a_process_of_its_own(bench: Bench) -> None:
    """Eval gives the same in a process that has run no other stage: what it needs is in `ctx`."""
    here = bench.scored()
    before = bench.run(until="eval")
    told: dict[str, Any] = {
        "store": before.store.snapshot(),
        "handler": [bench.case.handler.__module__, bench.case.handler.__qualname__],
        "settings": bench.runner.process.settings.to_env(),
    }
    told["backends"] = [backend.model_dump() for backend in bench.runner.process.local_backends.all()]
    nursery = bench.runner.process.nursery
    there = nursery.call(score_apart, told, timeout=APART_SECONDS, cancel=NeverCancelled())
    if (there["reward"], there["resolved"]) != (here.result.reward, here.result.resolved):
        raise ContractBroken(
            f"eval in a process of its own gives reward {there['reward']} ({there['error']}), and "
            f"{here.result.reward} in the process that ran rollout; the stages run in different processes: return what "
            "eval needs from init or rollout, and keep nothing on the handler, its class or its module"
        )


def check_nothing_left(run: Run, when: str) -> None:
    """Raises `ContractBroken` where something is left."""
    if run.left:
        raise ContractBroken(f"{when}, there was left: {', '.join(run.left)}; end what you start, in `finally`")


def _check_reward(run: Run, wanted: float, which: str) -> None:
    if run.result.reward != wanted:
        scored = f" Eval returned {json.dumps(run.result.eval)}." if run.result.eval else ""
        raise ContractBroken(f"with the oracle's {which} the reward must be {wanted}, but {run.story}.{scored}")


def _types(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _types(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return (type(value).__name__, [_types(inner) for inner in value])
    return bool if isinstance(value, bool) else "value"


def _texts(value: Any) -> Any:
    """The texts in a JSON value that are long enough to tell."""
    if isinstance(value, str):
        if len(value.strip()) >= LEAST_TEXT:
            yield value.strip()
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _texts(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner)


def _files_with(sandbox: Any, texts: list[str]) -> list[str]:
    """Files of the workspace that have one of the texts, by the sandbox's own `grep`."""
    found: list[str] = []
    for number, text in enumerate(texts):
        sandbox.files.write("/tmp/.kit-needle", max(text.splitlines(), key=len).encode())
        told = sandbox.shell.run(
            "find . /tmp -xdev -type f ! -name .kit-needle -size -64M -print0 2>/dev/null"
            " | xargs -0r grep -lFf /tmp/.kit-needle 2>/dev/null; rm -f /tmp/.kit-needle",
            timeout=30.0,
        )
        found += [f"{line} (text {number})" for line in told.output.splitlines() if line.strip()]
    return found


STAGES: tuple[Stage, ...] = ("init", "rollout", "eval")
