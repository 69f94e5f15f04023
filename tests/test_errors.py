"""The tree of errors."""

from __future__ import annotations

from prorl_celery import errors
from prorl_celery.errors import StageError


def test_no_error_of_a_stage_is_caught_with_those_of_files() -> None:
    stage_errors = [
        found for found in vars(errors).values() if isinstance(found, type) and issubclass(found, StageError)
    ]
    assert len(stage_errors) > 10
    assert [found for found in stage_errors if issubclass(found, OSError)] == []
