"""Fixtures of the model client's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from llm_families import FAMILIES
from llm_stub import Signal, Stub, make_tokenizer

from prorl_celery.llm.loop import ModelLoop


@pytest.fixture(scope="session")
def tokenizer_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tokenizer(tmp_path_factory.mktemp("models") / "chatml")


@pytest.fixture(scope="session")
def family_dirs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("families")
    return {name: make_tokenizer(root / str(n), **options) for n, (name, options) in enumerate(FAMILIES.items())}


@pytest.fixture
def cancel() -> Iterator[Signal]:
    signal = Signal()
    yield signal
    signal.close()


@pytest.fixture
def model_loop() -> Iterator[ModelLoop]:
    loop = ModelLoop()
    yield loop
    loop.stop()


@pytest.fixture
def stub() -> Iterator[Stub]:
    server = Stub()
    yield server
    server.close()
