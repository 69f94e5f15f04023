"""The real models' tests want them prepared: `VLLM_TEST_DIR` names the directory that `prorl models prepare` filled."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from set_cancel import SetCancel
from tiny_engine import Engine, Talks, make_weights, two_engines

from prorl_celery.llm.loop import ModelLoop
from prorl_celery.llm.tokenizer import ChatTokenizer
from prorl_celery.node.vllm.install import Prepared, is_prepared, places
from prorl_celery.node.vllm.server import VllmServer

VARIABLE = "VLLM_TEST_DIR"


@pytest.fixture(scope="session")
def prepared() -> Prepared:
    return _prepared("smollm2")


@pytest.fixture(scope="session")
def vllm(prepared: Prepared, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    with VllmServer(prepared, log=tmp_path_factory.mktemp("vllm") / "log", ready_seconds=300.0) as server:
        yield server


@pytest.fixture(scope="session")
def tiny() -> Prepared:
    return _prepared("tiny")


@pytest.fixture(scope="session")
def engines(tiny: Prepared, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Engine, Engine]]:
    """Two servers of the tiny model."""
    with two_engines(tiny, tmp_path_factory.mktemp("engines")) as both:
        yield both


@pytest.fixture
def engine(engines: tuple[Engine, Engine]) -> Engine:
    return engines[0]


@pytest.fixture(scope="session")
def tiny_tokenizer(tiny: Prepared) -> ChatTokenizer:
    return ChatTokenizer(tiny.model)


@pytest.fixture(scope="session")
def terse_weights(tiny: Prepared, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Other weights, which end a turn within a few tokens."""
    return make_weights(tiny, tmp_path_factory.mktemp("weights") / "terse", seed=1, terseness=25)


@pytest.fixture
def talks(model_loop: ModelLoop, cancel: SetCancel) -> Talks:
    return Talks(model_loop, cancel)


@pytest.fixture
def model_loop() -> Iterator[ModelLoop]:
    loop = ModelLoop()
    yield loop
    loop.stop()


@pytest.fixture
def cancel() -> Iterator[SetCancel]:
    signal = SetCancel()
    yield signal
    signal.close()


def _prepared(name: str) -> Prepared:
    directory = os.environ.get(VARIABLE)
    if not directory:
        pytest.skip(f"{VARIABLE} is not set: `prorl models prepare {name} --data-dir DIR` makes such a directory")
    if not is_prepared(name, Path(directory)):
        pytest.fail(f"{VARIABLE}={directory} holds no prepared model {name}")
    return places(name, Path(directory))
