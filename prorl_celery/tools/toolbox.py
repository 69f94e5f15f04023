"""The tools of one rollout, by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from prorl_celery.sandbox.base import CancelSignal, Sandbox
from prorl_celery.search.base import SearchBackend
from prorl_celery.search.opening import OFF
from prorl_celery.settings import Settings
from prorl_celery.tools.base import Observation, SandboxTool, Tool, wrong_arguments
from prorl_celery.tools.bash import BashTool
from prorl_celery.tools.editor import EditorTool
from prorl_celery.tools.ipython import IPythonTool
from prorl_celery.tools.search import SearchTool
from prorl_celery.tools.simple import FinishTool, ThinkTool

_IN_SANDBOX: dict[str, Callable[[Sandbox, Settings, bool], SandboxTool]] = {
    "bash": lambda sandbox, settings, _: BashTool(sandbox.shell, settings),
    "ipython": lambda sandbox, settings, _: IPythonTool(sandbox.kernel, settings),
    "str_replace_editor": lambda sandbox, settings, taken_over: EditorTool(
        sandbox.files, settings, taken_over=taken_over
    ),
}
_ANYWHERE: dict[str, Callable[[], Tool]] = {"finish": FinishTool, "think": ThinkTool}

TOOL_NAMES = (*_IN_SANDBOX, *_ANYWHERE, SearchTool.name)
"""Every tool there is."""


class Toolbox:
    """Makes the named tools and calls them. `act` is entered with what is being done, while it is done. `taken_over`:
    another process called them in this rollout before.

    Raises: `ValueError` that names unknown tools, and those that need a sandbox, or a search, where there is none.
    """

    def __init__(
        self,
        names: Sequence[str],
        *,
        sandbox: Sandbox | None,
        settings: Settings,
        cancel: CancelSignal,
        act: Callable[[str], AbstractContextManager[None]] = lambda _: nullcontext(),
        taken_over: bool = False,
        search: SearchBackend | None = None,
    ) -> None:
        unknown = [name for name in names if name not in TOOL_NAMES]
        if unknown:
            raise ValueError(f"unknown tools: {', '.join(unknown)}; there are {', '.join(TOOL_NAMES)}")
        self._cancel = cancel
        self._act = act
        self._sandbox = sandbox
        self._tools: dict[str, Tool] = {}
        self._inside: dict[str, SandboxTool] = {}
        for name in dict.fromkeys(names):
            if name in _ANYWHERE:
                self._tools[name] = _ANYWHERE[name]()
            elif name == SearchTool.name:
                if search is None:
                    raise ValueError(OFF)
                self._tools[name] = SearchTool(search, settings, cancel)
            elif sandbox is None:
                raise ValueError(f"the tool {name} needs a sandbox, and this task has none")
            else:
                self._tools[name] = self._inside[name] = _IN_SANDBOX[name](sandbox, settings, taken_over)

    @property
    def schemas(self) -> list[dict[str, Any]]:
        """OpenAI function schemas, in the order asked for."""
        return [tool.schema for tool in self._tools.values()]

    def at_once(self, name: str, arguments: dict[str, Any]) -> bool:
        """Whether the call touches nothing and takes no time, so that nothing is lost if it is made again."""
        tool = self._tools.get(name)
        return tool is None or name in _ANYWHERE or wrong_arguments(tool.schema, arguments) is not None

    def call(self, name: str, arguments: dict[str, Any], *, mark: str = "") -> Observation:
        """Call a tool. A name or arguments that do not fit are told to the model, not raised.

        `mark` names the call among all of the job's. Where it changes something the sandbox is told, for `recover`.
        Raises: `SandboxError`, `ToolError`, and what the cancel signal raises.
        """
        self._cancel.raise_if_set()
        tool = self._tools.get(name)
        if tool is None:
            return Observation(f"There is no tool {name!r}. There are: {', '.join(self._tools)}.")
        problem = wrong_arguments(tool.schema, arguments)
        if problem is not None:
            return Observation(f"The call of {name} was not understood: {problem}.")
        if mark and self._sandbox is not None and name in self._inside and not self._inside[name].repeatable(arguments):
            self._sandbox.mark(mark)
        with self._act(f"tool {name}"):
            return tool(arguments)

    def recover(self, name: str, arguments: dict[str, Any], *, mark: str) -> Observation:
        """What became of the call of that mark, which another process may have begun before it was lost: what changes
        something is not begun twice. What was not begun, and what changes nothing, is called.

        Raises: as `call`; `CannotGoOn` where the sandbox cannot be taken over.
        """
        self._cancel.raise_if_set()
        found = None
        if self._may_have_begun(name, arguments, mark):
            with self._act(f"tool {name}"):
                found = self._inside[name].recover(arguments)
        return self.call(name, arguments, mark=mark) if found is None else found

    def _may_have_begun(self, name: str, arguments: dict[str, Any], mark: str) -> bool:
        """Whether another process may have begun this call of a tool that changes something."""
        tool = self._inside.get(name)
        if tool is None or self._sandbox is None or self.at_once(name, arguments):
            return False
        return self._sandbox.marked == mark and not tool.repeatable(arguments)
