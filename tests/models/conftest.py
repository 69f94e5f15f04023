"""The real model's tests want it prepared: `VLLM_TEST_DIR` names the directory that `prorl models prepare` filled."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from prorl_celery.node.vllm.install import Prepared, is_prepared, places
from prorl_celery.node.vllm.server import VllmServer

VARIABLE = "VLLM_TEST_DIR"


@pytest.fixture(scope="session")
def prepared() -> Prepared:
    directory = os.environ.get(VARIABLE)
    if not directory:
        pytest.skip(f"{VARIABLE} is not set: `prorl models prepare smollm2 --data-dir DIR` makes such a directory")
    if not is_prepared("smollm2", Path(directory)):
        pytest.fail(f"{VARIABLE}={directory} holds no prepared model")
    return places("smollm2", Path(directory))


@pytest.fixture(scope="session")
def vllm(prepared: Prepared, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    with VllmServer(prepared, log=tmp_path_factory.mktemp("vllm") / "log", ready_seconds=300.0) as server:
        yield server
