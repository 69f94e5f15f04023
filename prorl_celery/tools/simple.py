"""The tools that touch nothing: `finish` and `think`."""

from __future__ import annotations

from typing import Any, ClassVar

from prorl_celery.tools.base import Observation, function_schema


class FinishTool:
    """Ends the rollout."""

    name: ClassVar[str] = "finish"
    schema: ClassVar[dict[str, Any]] = function_schema(
        "finish",
        "Say that the task is done, or that it cannot be done. Nothing can follow.",
        {"answer": {"type": "string", "description": "The final answer, where the task asks for one."}},
    )

    def __call__(self, arguments: dict[str, Any]) -> Observation:
        return Observation("", ends=True, answer=arguments.get("answer"))


class ThinkTool:
    """Room to think."""

    name: ClassVar[str] = "think"
    schema: ClassVar[dict[str, Any]] = function_schema(
        "think",
        "Write down a thought. It changes nothing and reads nothing; use it to plan or to look back.",
        {"thought": {"type": "string", "description": "The thought."}},
        required=("thought",),
    )

    def __call__(self, arguments: dict[str, Any]) -> Observation:
        return Observation("")
