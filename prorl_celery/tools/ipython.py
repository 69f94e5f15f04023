"""The `ipython` tool: a cell of Python in the sandbox's lasting kernel."""

from __future__ import annotations

from typing import Any, ClassVar

from prorl_celery.sandbox.base import CellResult, Kernel
from prorl_celery.sandbox.kernel.life import describe
from prorl_celery.settings import Settings
from prorl_celery.tools.base import NO_SECONDS, Observation, function_schema, replaced_note, seconds_wanted


class IPythonTool:
    """Runs cells; the observation is what they showed, and a last line in brackets if something befell the kernel."""

    name: ClassVar[str] = "ipython"
    schema: ClassVar[dict[str, Any]] = function_schema(
        "ipython",
        "Run Python code in an IPython session that lasts: variables, imports and the working directory stay from one "
        "call to the next. The answer is what the code printed and the value of its last expression, or the error's "
        "trace. `!command` and magics such as `%%bash` work; the code cannot ask for input.",
        {
            "code": {"type": "string", "description": "The code; may have many lines."},
            "timeout": {"type": "number", "description": "Seconds after which the code is interrupted."},
        },
        required=("code",),
    )

    def __init__(self, kernel: Kernel, settings: Settings) -> None:
        self._kernel = kernel
        self._timeout = settings.tool_timeout_seconds

    def __call__(self, arguments: dict[str, Any]) -> Observation:
        timeout = seconds_wanted(arguments, self._timeout)
        if timeout is None:
            return Observation(NO_SECONDS)
        return Observation(render(self._kernel.run(arguments["code"], timeout=timeout), timeout))

    def repeatable(self, arguments: dict[str, Any]) -> bool:
        """Never: code may do anything."""
        return False

    def recover(self, arguments: dict[str, Any]) -> Observation | None:
        """Waits for the cell's end within its time-out. What is known of it in full reads as ever."""
        timeout = seconds_wanted(arguments, self._timeout)
        if timeout is None:
            return None
        found = self._kernel.recover(timeout=timeout)
        if found.begun is False:
            return None
        return Observation(render(found, timeout, note=replaced_note(found.begun, complete=found.complete)))


def render(result: CellResult, timeout: float, *, note: str | None = None) -> str:
    """A cell's result as the model reads it; `note` is a line of its own behind what was shown."""
    output = result.output
    if output and not output.endswith("\n"):
        output += "\n"
    if note is not None:
        output += f"{note}\n"
    notes = []
    if result.no_kernel is not None:
        notes.append(f"not run: the kernel had ended and no new one could be started: {result.no_kernel}")
    if result.kernel_lost is not None:
        notes.append(f"the kernel had ended before this ({describe(result.kernel_lost)}): it ran in a new one")
    if result.timed_out:
        notes.append(f"timed out after {timeout:g} s and was interrupted")
    if result.kernel_ended is not None and result.timed_out:
        notes.append("the kernel had to be ended and a new one was started: variables and imports are gone")
    elif result.kernel_ended is not None:
        how = describe(result.kernel_ended)
        notes.append(f"the kernel ended ({how}) and a new one was started: variables and imports are gone")
    if notes:
        return f"{output}[{'; '.join(notes)}]"
    return output.removesuffix("\n") or "[no output]"
