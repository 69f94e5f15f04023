"""What a tool is: a name, a schema the model reads, and a call that answers with text.

A rollout outlives the process that runs it. What another process began of a call is not begun again: the tool finds out
what became of it (`SandboxTool.recover`), and where something may be missing the observation says so, by one of the
fixed lines below.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

LONGEST_SECONDS = 3600.0
SHORTEST_SECONDS = 0.1
NO_SECONDS = "'timeout' must be a positive number of seconds."

REPLACED = "[The process that ran this was replaced before it ended; what was printed before that may be missing.]"
"""The line of an observation whose beginning may be lost."""
REPLACED_EARLY = "[The process that ran this was replaced; whether it was begun is not known. It was not run again.]"
"""The line of an observation of what may never have been begun."""
UNKNOWN_END = "ended, how is not known"
"""Stands for the exit code where that is lost."""


@dataclass(frozen=True, slots=True)
class Observation:
    """What a tool call came to, as the model reads it.

    `ends` says that the rollout is over; `answer` is then what the agent handed in, if anything.
    """

    content: str
    ends: bool = False
    answer: str | None = None


class Tool(Protocol):
    """One tool of one rollout. One that touches nothing and takes no time needs no more than this."""

    name: ClassVar[str]
    schema: ClassVar[dict[str, Any]]
    """OpenAI function schema: `{"type": "function", "function": {...}}`."""

    def __call__(self, arguments: dict[str, Any]) -> Observation:
        """Run. The arguments have passed the schema. What the model did wrong is an observation.

        Raises: `SandboxError`, `ToolError`, and what the job's cancel signal raises.
        """
        ...


class SandboxTool(Tool, Protocol):
    """A tool that works in a sandbox."""

    def repeatable(self, arguments: dict[str, Any]) -> bool:
        """Whether this call changes nothing, so that it may be made again where nobody knows what became of it."""
        ...

    def recover(self, arguments: dict[str, Any]) -> Observation | None:
        """What became of this call, which another process may have begun before it was lost. None: it was not begun and
        never will be, so that it can be made. Not asked where `repeatable`.

        Raises: as a call; `SandboxError` where the sandbox cannot be taken over.
        """
        ...


def replaced_note(begun: bool | None, *, complete: bool) -> str | None:
    """The line for what was recovered; None where nothing of it can be missing."""
    if begun is None:
        return REPLACED_EARLY
    return None if complete else REPLACED


def function_schema(
    name: str, description: str, properties: dict[str, Any], required: tuple[str, ...] = ()
) -> dict[str, Any]:
    """An OpenAI function schema."""
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {
                "type": "object",
                "properties": properties,
                "required": list(required),
                "additionalProperties": False,
            },
        },
    }


def seconds_wanted(arguments: dict[str, Any], default: float) -> float | None:
    """The time-out that a call asks for in `timeout`, within what makes sense; None where it is no time at all."""
    wanted = arguments.get("timeout", default)
    if not wanted > 0:
        return None
    # Cut before it is a float: a model may write an integer that no float can hold.
    return float(min(max(wanted, SHORTEST_SECONDS), LONGEST_SECONDS))


_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "array": (list,),
    "boolean": (bool,),
}


def wrong_arguments(schema: dict[str, Any], arguments: dict[str, Any]) -> str | None:
    """What is wrong with a call's arguments, for the model to read; None when nothing is."""
    parameters = schema["function"]["parameters"]
    properties = parameters["properties"]
    problems = [f"{name!r} is missing" for name in parameters["required"] if name not in arguments]
    for name, value in arguments.items():
        if name not in properties:
            problems.append(f"{name!r} is not an argument of this tool")
        else:
            problems += _wrong_value(name, value, properties[name])
    return "; ".join(problems) or None


def _wrong_value(name: str, value: Any, wanted: dict[str, Any]) -> list[str]:
    kind = wanted["type"]
    if not isinstance(value, _TYPES[kind]) or (isinstance(value, bool) and kind != "boolean"):
        return [f"{name!r} must be of type {kind}"]
    if "enum" in wanted and value not in wanted["enum"]:
        return [f"{name!r} must be one of {', '.join(wanted['enum'])}"]
    items: list[Any] = value if isinstance(value, list) else []
    return [problem for item in items for problem in _wrong_value(f"{name} item", item, wanted["items"])][:1]
