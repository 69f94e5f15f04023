"""Maps for data sets that many use: from a row as it is published to an instance of a built-in handler.

What a policy must not see anyhow (gold solutions, gold patches) is left out: it would only be carried along.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prorl_celery.data.columns import Instance, ToInstance, from_json, value_at
from prorl_celery.data.math_columns import math_instance
from prorl_celery.errors import BadInstance


def dapo_math(row: Mapping[str, Any]) -> Instance:
    """`BytedTsinghua-SIA/DAPO-Math-17k`, and other rows as verl reads them: the id is in `extra_info.index`."""
    instance = math_instance(row)
    try:
        return {"instance_id": f"dapo/{value_at(row, 'extra_info.index')}", **instance}
    except LookupError:
        return instance


def human_eval(row: Mapping[str, Any]) -> Instance:
    """`openai/openai_humaneval`: task_id, prompt, entry_point, test."""
    return {"data_source": "code", "instance_id": _text(row, "task_id"), **row}


def mbpp(row: Mapping[str, Any]) -> Instance:
    """`google-research-datasets/mbpp`, full (`text`) or sanitized (`prompt`): the task and its assertions."""
    kept = {name: row[name] for name in ("test_list", "test_setup_code", "test_imports") if row.get(name)}
    prompt = "prompt" if "prompt" in row else "text"
    return {"data_source": "code", **_identified("mbpp", row, "task_id"), "prompt": _text(row, prompt), **kept}


def programs(row: Mapping[str, Any]) -> Instance:
    """`codeparrot/apps` and `BAAI/TACO`: a question, `input_output`, perhaps `starter_code`."""
    kept = {name: value for name, value in row.items() if name not in {"solutions", "problem_id", "id"}}
    _text(row, "question")
    return {"data_source": "code", **_identified("apps", row, "problem_id", "id"), **kept}


def swe_bench(row: Mapping[str, Any]) -> Instance:
    """`SWE-bench/SWE-bench`, its Lite and Verified, and sets of their form; lists that are JSON text become lists."""
    kept: Instance = {name: value for name, value in row.items() if name not in {"patch", "hints_text"}}
    lists: Instance = {name: from_json(kept[name], name) for name in ("FAIL_TO_PASS", "PASS_TO_PASS") if name in kept}
    return {**kept, **lists, "data_source": "swe", "instance_id": _text(row, "instance_id")}


KNOWN: Mapping[str, ToInstance] = {
    "gsm8k": math_instance,
    "math": math_instance,
    "dapo-math": dapo_math,
    "human-eval": human_eval,
    "mbpp": mbpp,
    "apps": programs,
    "taco": programs,
    "swe-bench": swe_bench,
}


def _text(row: Mapping[str, Any], name: str) -> str:
    value = row.get(name)
    if not isinstance(value, str) or not value:
        raise BadInstance(f"the row has no text as {name!r}", field=name)
    return value


def _identified(prefix: str, row: Mapping[str, Any], *names: str) -> dict[str, str]:
    """An `instance_id` where the row has a number or a name."""
    for name in names:
        if isinstance(row.get(name), str | int):
            return {"instance_id": f"{prefix}/{row[name]}"}
    return {}
