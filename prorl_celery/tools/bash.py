"""The `bash` tool: one command in the sandbox's lasting shell."""

from __future__ import annotations

from typing import Any, ClassVar

from prorl_celery.sandbox.base import CommandResult, Shell
from prorl_celery.settings import Settings
from prorl_celery.tools.base import (
    NO_SECONDS,
    UNKNOWN_END,
    Observation,
    function_schema,
    replaced_note,
    seconds_wanted,
)


class BashTool:
    """Runs commands; the observation's last line is always the exit code and the working directory."""

    name: ClassVar[str] = "bash"
    schema: ClassVar[dict[str, Any]] = function_schema(
        "bash",
        "Run a command in a bash session that lasts: the working directory, variables and background jobs stay from "
        "one call to the next. The command's standard input is empty, so it cannot ask questions. Start what should "
        "go on running with `&`. Long output is cut in the middle; a line that is written over, as by a progress bar, "
        "is shown in its last state. The last line of the answer gives the exit code and the working directory.",
        {
            "command": {"type": "string", "description": "The command, as typed at a prompt; may have many lines."},
            "timeout": {"type": "number", "description": "Seconds after which the command is interrupted."},
        },
        required=("command",),
    )

    def __init__(self, shell: Shell, settings: Settings) -> None:
        self._shell = shell
        self._timeout = settings.tool_timeout_seconds

    def __call__(self, arguments: dict[str, Any]) -> Observation:
        timeout = seconds_wanted(arguments, self._timeout)
        if timeout is None:
            return Observation(NO_SECONDS)
        return Observation(render(self._shell.run(arguments["command"], timeout=timeout), timeout))

    def repeatable(self, arguments: dict[str, Any]) -> bool:
        """Never: a command may do anything."""
        return False

    def recover(self, arguments: dict[str, Any]) -> Observation | None:
        """Waits for the command's end within its time-out. What is known of it in full reads as ever."""
        timeout = seconds_wanted(arguments, self._timeout)
        if timeout is None:
            return None
        found = self._shell.recover(timeout=timeout)
        if found.begun is False:
            return None
        return Observation(render(found, timeout, note=replaced_note(found.begun, complete=found.complete)))


def render(result: CommandResult, timeout: float, *, note: str | None = None) -> str:
    """A command's result as the model reads it; `note` is a line of its own before the last."""
    output = result.output
    if output and not output.endswith("\n"):
        output += "\n"
    if note is not None:
        output += f"{note}\n"
    ended = UNKNOWN_END if result.exit_code is None else f"exit code {result.exit_code}"
    if result.timed_out:
        ended = f"timed out after {timeout:g} s and was stopped"
    restarted = "; the shell ended and a new one was started" if result.shell_restarted else ""
    return f"{output}[{ended}{restarted}; working directory {result.cwd}]"
