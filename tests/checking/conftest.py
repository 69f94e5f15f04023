"""Checks in tests look twice without waiting: nobody changes the store meanwhile."""

from __future__ import annotations

import pytest

from prorl_celery.checking import checker, sandboxes


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checker, "SETTLE_SECONDS", 0.001)
    monkeypatch.setattr(sandboxes.Sandboxes, "settle_seconds", 0.0)
