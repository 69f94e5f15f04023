"""The toolbox, bash, think and finish."""

from __future__ import annotations

import pytest

from prorl_celery.errors import Cancelled
from prorl_celery.sandbox.waiting import NeverCancelled
from prorl_celery.settings import Settings
from prorl_celery.tools.toolbox import TOOL_NAMES, Toolbox


def test_bash_ends_with_exit_code_and_folder(call):
    assert call("bash", command="echo hi; cd /tmp; false") == "hi\n[exit code 1; working directory /tmp]"
    assert call("bash", command="printf x") == "x\n[exit code 0; working directory /tmp]"
    assert call("bash", command="true") == "[exit code 0; working directory /tmp]"


def test_bash_tells_a_time_out_with_what_was_printed(call):
    seen = call("bash", command="echo started; sleep 100", timeout=0.3)
    assert seen.startswith("started\n")
    assert seen.endswith("[timed out after 0.3 s and was stopped; working directory /workspace]")


def test_bash_tells_that_the_shell_was_replaced(call):
    assert call("bash", command="exit 7") == (
        "exit\n[exit code 7; the shell ended and a new one was started; working directory /workspace]"
    )


@pytest.mark.parametrize("timeout", [0, -5, float("nan")])
def test_bash_refuses_a_time_out_that_is_none(call, timeout):
    assert "positive" in call("bash", command="true", timeout=timeout)


def test_bash_takes_a_time_out_that_no_float_holds(call):
    assert call("bash", command="echo x", timeout=10**400).startswith("x\n")


def test_finish_ends_with_the_answer(toolbox):
    observation = toolbox.call("finish", {"answer": "42"})
    assert (observation.ends, observation.answer) == (True, "42")
    assert toolbox.call("finish", {}).answer is None


def test_think_acknowledges_and_goes_on(toolbox):
    observation = toolbox.call("think", {"thought": "hm"})
    assert (observation.content, observation.ends) == ("", False)


@pytest.mark.parametrize(
    ("name", "arguments", "says"),
    [
        ("rm", {}, "There is no tool 'rm'"),
        ("bash", {}, "'command' is missing"),
        ("bash", {"command": 5}, "'command' must be of type string"),
        ("bash", {"command": "true", "timeout": "soon"}, "'timeout' must be of type number"),
        ("bash", {"command": "true", "timeout": True}, "'timeout' must be of type number"),
        ("bash", {"command": "true", "cmd": "x"}, "'cmd' is not an argument"),
        ("str_replace_editor", {"command": "delete", "path": "/x"}, "must be one of view, create"),
        ("str_replace_editor", {"command": "view", "path": "/x", "view_range": ["a"]}, "must be of type integer"),
        ("str_replace_editor", {"command": "view", "path": "/x", "view_range": 5}, "must be of type array"),
    ],
)
def test_a_wrong_call_is_told_to_the_model(toolbox, name, arguments, says):
    observation = toolbox.call(name, arguments)
    assert says in observation.content
    assert not observation.ends


def test_unknown_tools_are_refused_by_name_at_the_start(toolbox):
    with NeverCancelled() as never, pytest.raises(ValueError, match="rm, browser; there are bash"):
        Toolbox(["bash", "rm", "browser"], sandbox=None, settings=Settings(), cancel=never)


def test_without_a_sandbox_only_the_tools_that_need_none_are_there():
    with NeverCancelled() as never:
        assert len(Toolbox(["finish", "think"], sandbox=None, settings=Settings(), cancel=never).schemas) == 2
        with pytest.raises(ValueError, match="bash needs a sandbox"):
            Toolbox(["bash"], sandbox=None, settings=Settings(), cancel=never)


def test_schemas_are_openai_functions_in_the_order_asked_for(toolbox):
    assert [schema["function"]["name"] for schema in toolbox.schemas] == list(TOOL_NAMES)
    for schema in toolbox.schemas:
        assert schema["type"] == "function"
        parameters = schema["function"]["parameters"]
        assert set(parameters["required"]) <= set(parameters["properties"])
        assert all(value["description"] for value in parameters["properties"].values())


def test_a_cancelled_job_calls_no_tool(tool_sandbox):
    class Set(NeverCancelled):
        def raise_if_set(self) -> None:
            raise Cancelled("by test")

    sandbox, settings = tool_sandbox
    with Set() as cancel, pytest.raises(Cancelled):
        Toolbox(["bash"], sandbox=sandbox, settings=settings, cancel=cancel).call("bash", {"command": "true"})
