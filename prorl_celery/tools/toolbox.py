"""The tools of one rollout, by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from prorl_celery.sandbox.base import CancelSignal, Sandbox
from prorl_celery.settings import Settings
from prorl_celery.tools.base import Observation, Tool, wrong_arguments
from prorl_celery.tools.bash import BashTool
from prorl_celery.tools.editor import EditorTool
from prorl_celery.tools.ipython import IPythonTool
from prorl_celery.tools.simple import FinishTool, ThinkTool

_IN_SANDBOX: dict[str, Callable[[Sandbox, Settings], Tool]] = {
    "bash": lambda sandbox, settings: BashTool(sandbox.shell, settings),
    "ipython": lambda sandbox, settings: IPythonTool(sandbox.kernel, settings),
    "str_replace_editor": lambda sandbox, settings: EditorTool(sandbox.files, settings),
}
_ANYWHERE: dict[str, Callable[[], Tool]] = {"finish": FinishTool, "think": ThinkTool}

TOOL_NAMES = (*_IN_SANDBOX, *_ANYWHERE)
"""Every tool there is."""


class Toolbox:
    """Makes the named tools and calls them.

    Raises: `ValueError` that names unknown tools, and those that need a sandbox where there is none.
    """

    def __init__(
        self, names: Sequence[str], *, sandbox: Sandbox | None, settings: Settings, cancel: CancelSignal
    ) -> None:
        unknown = [name for name in names if name not in TOOL_NAMES]
        if unknown:
            raise ValueError(f"unknown tools: {', '.join(unknown)}; there are {', '.join(TOOL_NAMES)}")
        self._cancel = cancel
        self._tools: dict[str, Tool] = {}
        for name in dict.fromkeys(names):
            if name in _ANYWHERE:
                self._tools[name] = _ANYWHERE[name]()
            elif sandbox is None:
                raise ValueError(f"the tool {name} needs a sandbox, and this task has none")
            else:
                self._tools[name] = _IN_SANDBOX[name](sandbox, settings)

    @property
    def schemas(self) -> list[dict[str, Any]]:
        """OpenAI function schemas, in the order asked for."""
        return [tool.schema for tool in self._tools.values()]

    def call(self, name: str, arguments: dict[str, Any]) -> Observation:
        """Call a tool. A name or arguments that do not fit are told to the model, not raised.

        Raises: `SandboxError`, `ToolError`, and what the cancel signal raises.
        """
        self._cancel.raise_if_set()
        tool = self._tools.get(name)
        if tool is None:
            return Observation(f"There is no tool {name!r}. There are: {', '.join(self._tools)}.")
        problem = wrong_arguments(tool.schema, arguments)
        if problem is not None:
            return Observation(f"The call of {name} was not understood: {problem}.")
        return tool(arguments)
