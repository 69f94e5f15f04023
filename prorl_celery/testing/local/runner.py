"""Runs jobs of one handler in this process: a keeper and a nursery of its own, a thread that works off the stages."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import threading
import warnings
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from prorl_celery.errors import InternalError
from prorl_celery.handlers.base import Handler
from prorl_celery.jobs.models import JobRequest, Result, Stage
from prorl_celery.node.places import SHORT
from prorl_celery.sandbox.waiting import NeverCancelled
from prorl_celery.scheduling.backends import Backend
from prorl_celery.settings import Settings
from prorl_celery.testing.backend import scripted_tokenizer_dir
from prorl_celery.testing.keeper import KeeperProcess
from prorl_celery.testing.local.process import BOOT, LocalProcess
from prorl_celery.testing.local.store import LocalStore, Seen
from prorl_celery.testing.scripted.engine import Engine
from prorl_celery.testing.scripted.latency import make_latency
from prorl_celery.testing.scripted.policies import Policy
from prorl_celery.testing.scripted.server import listen
from prorl_celery.testing.scripted.tokens import ScriptedTokenizer
from tasks.nursery import Nursery
from tasks.stages import run_stage

PREFIX = "prorl-try-"
MODEL = "scripted"
CONTEXT_TOKENS = 1_000_000
LISTEN_SECONDS = 10.0
STOP_SECONDS = 20.0
"""How long a job that was cancelled may take to end, the grace of a handler that does not listen included."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a job. `stuck` says why its process could not go on, where that is so."""

    store: LocalStore
    stuck: str | None = None

    @property
    def result(self) -> Result:
        """Raises `NotFinished` where it was not run to its end."""
        return self.store.result(self.store.job.job_id)


class LocalRunner:
    """A context manager; within it, `run` runs a job and `play` says what the model is.

    Make it in the main thread, before the process has other threads: it forks. What it starts ends with its block.
    Raises: `KeeperLost` when no keeper comes up; `SandboxUnavailable` comes with the first job that wants a sandbox.
    """

    def __init__(self, handler: type[Handler], settings: Settings | None = None) -> None:
        self._handler = handler
        self._settings = settings or Settings.from_env()
        self._ending = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as starting:
            run_dir = _run_dir()
            starting.callback(shutil.rmtree, run_dir, ignore_errors=True)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads: pytest may have some
                nursery = Nursery()
            starting.callback(nursery.close)
            settings = self._settings.with_(run_dir=run_dir, spare_sandboxes=0, rollout_slots=1, init_ahead=1)
            keeper = starting.enter_context(KeeperProcess(settings, boot=BOOT))
            self.keeper_pid = keeper.process.pid
            self.process = LocalProcess(self._handler, settings, nursery, keeper.client)
            starting.callback(self.process.stop)
            self.process.start()
            self._ending = starting.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending.close()

    def serve(self, handler: type[Handler]) -> None:
        """Run jobs of this handler from now on."""
        self.process.handler = handler

    def play(self, policy: Policy, *, latency: str = "0") -> None:
        """Have the scripted backend play this policy from now on, on this process's own model loop."""
        engine = Engine(
            ScriptedTokenizer(), policy, make_latency(latency), model_id=MODEL, max_model_len=CONTEXT_TOKENS
        )
        models = self.process.models

        async def begin() -> str:
            runner, url = await listen(engine, "127.0.0.1", 0)
            models.resource(engine, lambda: (runner, runner.cleanup))
            return url

        url = models.call(begin, cancel=NeverCancelled(), timeout=LISTEN_SECONDS)
        self.use(
            Backend(
                url=url,
                model=MODEL,
                api_key=None,
                tokenizer=str(scripted_tokenizer_dir()),
                max_model_len=CONTEXT_TOKENS,
                gives_ids=True,
            )
        )

    def use(self, backend: Backend) -> None:
        """Have this backend serve its model, and no other."""
        self.process.local_backends.serve_only(backend)

    def store_of(self, job: JobRequest, *, seen: Seen = lambda step: None) -> LocalStore:
        """A store with this job. `seen` hears of each step as it is written."""
        return LocalStore(job, limit_bytes=self.process.settings.max_blob_bytes, seen=seen)

    def run(self, job: JobRequest) -> Outcome:
        """Run a job to its end. Raises as `work_off`."""
        return self.work_off(self.store_of(job))

    def work_off(self, store: LocalStore, *, until: Stage | None = None) -> Outcome:
        """Run a store's job to its end, or `until` a stage has its turn, which is not run.

        Raises: `InternalError` for a fault of ours; KeyboardInterrupt once the job has stopped.
        """
        process = self.process
        process.begin(store)
        failed: list[BaseException] = []

        def work() -> None:
            try:
                while (message := store.message()) is not None and message.stage != until:
                    process.next_stage()
                    run_stage(process, message.stage, message.job_id, message.fence)
            except Exception as error:  # noqa: BLE001 - told to who waits
                failed.append(error)
            finally:
                process.gave_up.set()

        process.gave_up.clear()
        slot = threading.Thread(target=work, name="slot", daemon=True)
        slot.start()
        try:
            process.gave_up.wait()
        except KeyboardInterrupt:
            self.cancel(store)
            process.gave_up.wait(STOP_SECONDS)
            raise
        if failed:
            raise InternalError(f"the stages could not be run: {failed[0]}") from failed[0]
        if process.stuck is None:
            slot.join(STOP_SECONDS)
        if store.message() is None:
            store.lose(process.stuck or "the job's stage did not say what became of it; see the log")
            if store.state == "cancelled":
                self._tidy(store)
        return Outcome(store, process.stuck)

    def cancel(self, store: LocalStore) -> None:
        """Cancel the job, as a caller of the API would."""
        store.cancel()
        self.process.beat.cancel(store.job.job_id)

    def _tidy(self, store: LocalStore) -> None:
        """End what a claim has left that was cancelled at its very end, as a node's janitor does."""
        for left in self.process.keeper.list():
            if left["sandbox_id"] in store.sandboxes:
                self.process.keeper.stop(left["sandbox_id"])


def _run_dir() -> Path:
    base = tempfile.gettempdir()
    if len(os.fsencode(base)) > SHORT:
        base = "/tmp"
    for left in Path(base).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError, ValueError):
            if left.stat().st_uid == os.geteuid() and not _lives(int(left.name.split("-")[2])):
                shutil.rmtree(left, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=base))


def _lives(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()
