"""Scripted backends for the tests of `prorl_celery/testing`: real server processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from prorl_celery.testing import ScriptedBackend


@pytest.fixture
def scripted() -> Iterator[Callable[..., ScriptedBackend]]:
    """Start a scripted backend with these arguments; it ends with the test."""
    with ExitStack() as stack:
        yield lambda *arguments, **options: stack.enter_context(ScriptedBackend(*arguments, **options))


@pytest.fixture(scope="module")
def solver() -> Iterator[ScriptedBackend]:
    """A backend that solves HumanEval, shared by a module's tests."""
    with ScriptedBackend("solve", oracle="human-eval", record=64) as backend:
        yield backend
