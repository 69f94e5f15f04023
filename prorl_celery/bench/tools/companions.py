"""Servers of others that a benchmark needs for a while: they die with this process, however it ends."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from prorl_celery.bench.report import BenchFailed
from prorl_celery.node.pause import until
from prorl_celery.node.prctl import die_with_parent

READY_SECONDS = 60.0
END_SECONDS = 10.0
"""How long one may take to end what it has started before it is killed."""


@contextmanager
def companion(argv: Sequence[str], env: Mapping[str, str], folder: str, *, ready: Callable[[], bool]) -> Iterator[None]:
    """Runs a program in a folder, from when it is ready until the block ends. Raises `BenchFailed` when it is not."""
    me = os.getpid()
    nowhere = subprocess.DEVNULL
    process = subprocess.Popen(
        argv, env=env, cwd=folder, stdin=nowhere, stdout=nowhere, stderr=nowhere, preexec_fn=lambda: die_with_parent(me)
    )
    try:
        if not until(lambda: process.poll() is not None or ready(), READY_SECONDS, every=0.002):
            raise BenchFailed(f"{argv[0]} was not ready within {READY_SECONDS:g} s")
        if process.returncode is not None:
            raise BenchFailed(f"{' '.join(argv[:4])} ended at once, with {process.returncode}")
        yield
    finally:
        process.terminate()
        try:
            process.wait(timeout=END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(timeout=END_SECONDS)
