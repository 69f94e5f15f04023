"""Checks of what a handler says of an instance before it is run."""

from __future__ import annotations

from typing import Any

from prorl_celery.errors import BadInstance
from prorl_celery.handlers.base import Handler, SandboxRequest
from prorl_celery.testing.kit.case import MISSING, Case, ContractBroken

STRANGE: tuple[Any, ...] = (MISSING, None, "", "x", 0, -1, 1.5, True, [], [None], {}, {"x": 1})
"""What each field of the instance is set to in turn."""


def accepts_the_instance(case: Case) -> None:
    """`validate` takes the instance, and it is one of the handler's."""
    served = (case.handler.data_source, *case.handler.aliases)
    source = case.instance.get("data_source")
    family = any(name.endswith("/*") and str(source).startswith(name[:-1]) for name in served)
    if source not in served and not family:
        raise ContractBroken(f"the instance's data_source is {source!r}; the handler serves {', '.join(served)}")
    _validate(case.handler(), dict(case.instance), "the instance itself")


def refuses_bad_instances(case: Case) -> None:
    """Each of `bad` is refused with a `BadInstance` that names its field."""
    for wanted, changes in case.bad:
        what = f"an instance with {_told(changes)}"
        try:
            case.handler().validate(case.changed(changes))
        except BadInstance as error:
            if error.field != wanted:
                raise ContractBroken(f"{what} is refused for the field {error.field!r}, not for {wanted!r}") from error
        except Exception as error:
            raise ContractBroken(
                f"`validate` raised {_shown(error)} for {what}; raise BadInstance(field=...)"
            ) from error
        else:
            raise ContractBroken(f"`validate` takes {what}; it must raise BadInstance(..., field={wanted!r})")


def stands_strange_instances(case: Case) -> None:
    """Whatever a field is, `validate` takes the instance or raises `BadInstance` with a field."""
    for name in case.instance:
        if name == "data_source":
            continue
        for value in STRANGE:
            what = f"an instance with {_told({name: value})}"
            try:
                case.handler().validate(case.changed({name: value}))
            except BadInstance as error:
                if error.field is None:
                    raise ContractBroken(f"`validate` refused {what} without a field: {error}") from error
            except Exception as error:
                raise ContractBroken(
                    f"`validate` raised {_shown(error)} for {what}; check the type, and raise BadInstance(field=...)"
                ) from error


def asks_for_the_same_sandboxes_each_time(case: Case) -> None:
    """What `sandbox_request` and `sandboxes` say depends on the job alone."""
    first, second = (_asked_for(case.handler(), case) for _ in range(2))
    if first != second:
        raise ContractBroken(f"the handler asks for other sandboxes the second time: {first}, then {second}")


def _asked_for(handler: Handler, case: Case) -> dict[str, SandboxRequest]:
    job = case.job
    main = {"main": handler.sandbox_request(job)} if handler.needs_sandbox(job) else {}
    return {**main, **handler.sandboxes(job)}


def _validate(handler: Handler, instance: dict[str, Any], what: str) -> None:
    try:
        handler.validate(instance)
    except Exception as error:
        raise ContractBroken(f"`validate` refuses {what}: {_shown(error)}") from error


def _told(changes: Any) -> str:
    return ", ".join(f"no {name!r}" if value is MISSING else f"{name!r}: {value!r}" for name, value in changes.items())


def _shown(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
