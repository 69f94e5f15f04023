"""Tool calls whose process went away before what they came to was written down: they are not made twice, and what is
known of them reads as it would have.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from set_cancel import SetCancel

from prorl_celery.errors import Cancelled
from prorl_celery.sandbox.base import Recovered, RecoveredCell, SandboxSpec
from prorl_celery.sandbox.session import LiveSandbox
from prorl_celery.sandbox.waiting import NeverCancelled
from prorl_celery.testing.keeper import KeeperProcess
from prorl_celery.tools.base import REPLACED, REPLACED_EARLY, replaced_note
from prorl_celery.tools.bash import render as render_command
from prorl_celery.tools.editor import FORGOTTEN
from prorl_celery.tools.ipython import render as render_cell
from prorl_celery.tools.toolbox import Toolbox

TOOLS = ("bash", "str_replace_editor", "think")
ALL_TOOLS = (*TOOLS, "ipython")
FILE = "/workspace/file.txt"


class Holder:
    """A process's hold on the sandbox: its toolbox, and the signal by which it lets go in the midst of a call."""

    def __init__(self, keeper: KeeperProcess, sandbox: LiveSandbox, fence: int, tools: tuple[str, ...] = TOOLS) -> None:
        self.cancel = SetCancel()
        self.sandbox = keeper.client.attach(
            sandbox.handle, cancel=self.cancel, fence=fence, takes_over=fence > 1, timeout=10.0
        )
        self.toolbox = Toolbox(
            tools, sandbox=self.sandbox, settings=keeper.settings, cancel=self.cancel, taken_over=fence > 1
        )

    def call(self, mark: str, name: str, **arguments: Any) -> str:
        return self.toolbox.call(name, arguments, mark=mark).content

    def recover(self, mark: str, name: str, **arguments: Any) -> str:
        return self.toolbox.recover(name, arguments, mark=mark).content

    def edit(self, mark: str, command: str, **arguments: Any) -> str:
        return self.call(mark, "str_replace_editor", command=command, path=FILE, **arguments)

    def edited(self, mark: str, command: str, **arguments: Any) -> str:
        return self.recover(mark, "str_replace_editor", command=command, path=FILE, **arguments)

    def leave(self) -> None:
        self.sandbox.close()
        self.cancel.close()


@pytest.fixture
def holders(tool_keeper: KeeperProcess) -> Iterator[Callable[[], Holder]]:
    """Makes holders of one sandbox, each taking it over from the one before, which is gone by then."""
    made: list[Holder] = []

    def make() -> Holder:
        if made:
            made[-1].leave()
        made.append(Holder(tool_keeper, sandbox, len(made) + 1))
        return made[-1]

    with NeverCancelled() as never:
        sandbox = tool_keeper.client.start(SandboxSpec(job_id="taken", attempt=1), cancel=never, timeout=30.0)
        yield make
        if made:
            made[-1].leave()
        sandbox.stop()


def broken_off(holder: Holder, mark: str, command: str, begun: Callable[[], bool]) -> None:
    """A command that its process is gone from when it has begun."""

    def call() -> None:
        with pytest.raises(Cancelled):
            holder.call(mark, "bash", command=command)

    thread = threading.Thread(target=call)
    thread.start()
    pause = threading.Event()
    while not begun():
        assert thread.is_alive()
        pause.wait(0.01)
    holder.cancel.set()
    thread.join(10)
    assert not thread.is_alive()


def test_a_command_under_way_is_waited_for_and_reads_as_ever(
    holders: Callable[[], Holder], tool_keeper: KeeperProcess
) -> None:
    first = holders()
    other = tool_keeper.client.attach(first.sandbox.handle, cancel=first.cancel, timeout=10.0)

    def begun() -> bool:
        return (other.files.listing("/workspace") or []) == ["count"]

    command = "echo x >> count; echo early; while [ ! -e go ]; do sleep 0.02; done; echo late; cd /tmp; false"
    broken_off(first, "0.0.0", command, begun)
    other.close()
    second = holders()
    second.sandbox.files.write("/workspace/go", b"")
    seen = second.recover("0.0.0", "bash", command=command)
    assert seen == "early\nlate\n[exit code 1; working directory /tmp]"
    assert second.recover("0.0.0", "bash", command=command) == seen
    assert second.call("0.0.1", "bash", command="cat /workspace/count") == "x\n[exit code 0; working directory /tmp]"


def test_a_command_that_had_ended_is_not_run_again(holders: Callable[[], Holder]) -> None:
    command = "echo x >> /workspace/count; echo done"
    said = holders().call("0.0.0", "bash", command=command)
    second = holders()
    assert second.recover("0.0.0", "bash", command=command) == said
    assert second.call("0.0.1", "bash", command="cat /workspace/count").startswith("x\n[")


def test_a_command_that_was_not_begun_is_run(holders: Callable[[], Holder]) -> None:
    holders().call("0.0.0", "bash", command="echo the one before")
    second = holders()
    assert second.recover("0.0.1", "bash", command="echo mine").startswith("mine\n")
    second.sandbox.mark("0.0.2")  # its process went right behind this
    assert holders().recover("0.0.2", "bash", command="echo sent").startswith("sent\n")


def test_the_time_out_of_a_command_under_way_is_its_own(
    holders: Callable[[], Holder], tool_keeper: KeeperProcess
) -> None:
    first = holders()
    other = tool_keeper.client.attach(first.sandbox.handle, cancel=first.cancel, timeout=10.0)
    broken_off(first, "0.0.0", "touch begun; sleep 100", lambda: (other.files.listing("/workspace") or []) != [])
    other.close()
    second = holders()
    seen = second.recover("0.0.0", "bash", command="touch begun; sleep 100", timeout=0.2)
    assert seen.endswith("[timed out after 0.2 s and was stopped; working directory /workspace]")
    assert seen == second.call("0.0.1", "bash", command="touch begun; sleep 100", timeout=0.2)


Edit = tuple[str, dict[str, Any]]
EDITS: dict[str, list[Edit]] = {
    "create": [("create", {"file_text": "one\ntwo\n"})],
    "replace": [("create", {"file_text": "one\ntwo\n"}), ("str_replace", {"old_str": "two", "new_str": "twin"})],
    "insert": [("create", {"file_text": "one\ntwo\n"}), ("insert", {"insert_line": 1, "new_str": "and"})],
    "insert at the end": [("create", {"file_text": "one"}), ("insert", {"insert_line": 1, "new_str": "two"})],
}
UNDO: list[Edit] = [
    ("create", {"file_text": "1\n"}), ("str_replace", {"old_str": "1", "new_str": "2"}), ("undo_edit", {}),
]  # fmt: skip


def all_but_the_last(holder: Holder, edits: list[Edit]) -> Edit:
    for number, (command, arguments) in enumerate(edits[:-1]):
        holder.edit(f"0.0.{number}", command, **arguments)
    return edits[-1]


@pytest.mark.parametrize("edits", [*EDITS.values(), UNDO], ids=[*EDITS, "undo"])
def test_a_change_of_a_file_that_was_made_is_not_made_again_and_told_as_ever(
    holders: Callable[[], Holder], edits: list[Edit]
) -> None:
    first = holders()
    command, arguments = all_but_the_last(first, edits)
    said = first.edit("0.1.0", command, **arguments)
    holds = first.sandbox.files.read(FILE)
    second = holders()
    assert second.edited("0.1.0", command, **arguments) == said
    assert second.sandbox.files.read(FILE) == holds


@pytest.mark.parametrize("marked", [True, False])
@pytest.mark.parametrize("edits", EDITS.values(), ids=EDITS)
def test_a_change_of_a_file_that_was_not_made_is_made(
    holders: Callable[[], Holder], edits: list[Edit], marked: bool
) -> None:
    first = holders()
    command, arguments = all_but_the_last(first, edits)
    if marked:
        first.sandbox.mark("0.1.0")  # its process went right behind this
    second = holders()
    told = second.edited("0.1.0", command, **arguments)
    assert told.split(maxsplit=1)[0] in {"Created", "Changed"}
    third = holders()
    assert third.edited("0.1.0", command, **arguments) == told


def test_a_replacement_that_cannot_be_found_again_is_told_without_its_surroundings(
    holders: Callable[[], Holder],
) -> None:
    first = holders()
    first.edit("0.0.0", "create", file_text="one two")
    first.edit("0.0.1", "str_replace", old_str=" two")
    assert holders().edited("0.0.1", "str_replace", old_str=" two") == f"Changed {FILE}."


def test_a_view_is_made_again(holders: Callable[[], Holder]) -> None:
    first = holders()
    first.edit("0.0.0", "create", file_text="one\n")
    said = first.edit("0.0.1", "view")
    assert holders().edited("0.0.1", "view") == said


def test_what_another_process_changed_cannot_be_taken_back_and_the_model_is_told(
    holders: Callable[[], Holder],
) -> None:
    first = holders()
    assert FORGOTTEN not in first.edit("0.0.0", "undo_edit")
    first.edit("0.0.1", "create", file_text="one\n")
    first.edit("0.0.2", "str_replace", old_str="one", new_str="two")
    second = holders()
    assert second.edit("0.0.3", "undo_edit") == f"There is no change of {FILE} to take back.{FORGOTTEN}"
    second.edit("0.0.4", "str_replace", old_str="two", new_str="three")
    assert second.edit("0.0.5", "undo_edit") == f"Took back the last change of {FILE}."


def test_a_call_that_cannot_be_made_is_told_whatever_became_of_others(holders: Callable[[], Holder]) -> None:
    holders().call("0.0.0", "bash", command="echo x")
    second = holders()
    assert "was not understood" in second.recover("0.0.0", "bash")
    assert "no tool" in second.recover("0.0.0", "rm")
    assert second.recover("0.0.0", "think", thought="hm") == ""


def test_a_cell_that_had_ended_is_not_run_again_and_one_that_was_not_begun_is(tool_keeper: KeeperProcess) -> None:
    with NeverCancelled() as never:
        spec = SandboxSpec(job_id="cells", attempt=1, kernel=True)
        sandbox = tool_keeper.client.start(spec, cancel=never, timeout=30.0)
        try:
            first = Holder(tool_keeper, sandbox, 1, ALL_TOOLS)
            first.call("0.0.0", "ipython", code="count = 0")
            code = "count += 1; print(f'{count=}')"
            said = first.call("0.0.1", "ipython", code=code)
            first.leave()
            second = Holder(tool_keeper, sandbox, 2, ALL_TOOLS)
            assert second.recover("0.0.1", "ipython", code=code) == said == "count=1"
            assert second.recover("0.0.2", "ipython", code=code) == "count=2"
            second.leave()
        finally:
            sandbox.stop()


def command(**changes: Any) -> Recovered:
    fields: dict[str, Any] = {"output": "out", "exit_code": 0, "cwd": "/tmp", "duration_s": 1.0, "begun": True}
    return Recovered(**{**fields, "ended": True, "complete": True, **changes})


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (command(), "out\n[exit code 0; working directory /tmp]"),
        (command(complete=False), f"out\n{REPLACED}\n[exit code 0; working directory /tmp]"),
        (
            command(complete=False, exit_code=None, ended=False, output=""),
            f"{REPLACED}\n[ended, how is not known; working directory /tmp]",
        ),
        (
            command(complete=False, exit_code=None, ended=False, timed_out=True),
            f"out\n{REPLACED}\n[timed out after 9 s and was stopped; working directory /tmp]",
        ),
        (command(begun=None, output=""), f"{REPLACED_EARLY}\n[exit code 0; working directory /tmp]"),
    ],
)
def test_what_may_be_missing_of_a_command_has_a_line_of_its_own_before_the_last(found: Recovered, says: str) -> None:
    assert render_command(found, 9.0, note=replaced_note(found.begun, complete=found.complete)) == says


def cell(**changes: Any) -> RecoveredCell:
    fields: dict[str, Any] = {"output": "out\n", "ok": True, "duration_s": 1.0, "begun": True, "ended": True}
    return RecoveredCell(**{**fields, "complete": True, **changes})


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (cell(), "out"),
        (cell(complete=False), f"out\n{REPLACED}"),
        (cell(complete=False, timed_out=True), f"out\n{REPLACED}\n[timed out after 9 s and was interrupted]"),
        (cell(begun=None, output=""), REPLACED_EARLY),
    ],
)
def test_what_may_be_missing_of_a_cell_has_a_line_behind_its_output(found: RecoveredCell, says: str) -> None:
    assert render_cell(found, 9.0, note=replaced_note(found.begun, complete=found.complete)) == says
