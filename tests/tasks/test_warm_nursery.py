"""What a function's module names in `WARM` is imported once, where children are forked, and not in each of them."""

from __future__ import annotations

import os
import sys

from prorl_celery.sandbox.waiting import NeverCancelled
from tasks.nursery import Nursery

WARM = ("xml.dom.pulldom", "no_such_module_anywhere")
"""The first is imported by nothing here; the second by nothing at all."""


def who_has_it(_: object) -> tuple[bool, int]:
    return WARM[0] in sys.modules, os.getppid()


def test_children_have_it_though_the_stage_process_has_not() -> None:
    assert WARM[0] not in sys.modules
    nursery = Nursery()
    try:
        with NeverCancelled() as never:
            told = [nursery.call(who_has_it, None, timeout=30, cancel=never) for _ in range(2)]
    finally:
        nursery.close()
    assert [has for has, _ in told] == [True, True]
    assert len({parent for _, parent in told}) == 1
    assert WARM[0] not in sys.modules
