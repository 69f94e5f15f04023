"""The keeper's sandboxes: started, named, timed, ended."""

from __future__ import annotations

import itertools
import logging
import os
import secrets
import time
from collections.abc import Callable

from prorl_celery.errors import SandboxError
from prorl_celery.node.janitor.counter import LeakCounter
from prorl_celery.node.keeper.admission import Admissions
from prorl_celery.node.keeper.entry import Entry, Started
from prorl_celery.node.keeper.instances import InstanceStart
from prorl_celery.node.keeper.kernels import Kernels
from prorl_celery.node.keeper.kinds import Kinds
from prorl_celery.node.keeper.limits import Limits
from prorl_celery.node.keeper.loop import Loop
from prorl_celery.node.keeper.orphans import reap_strangers
from prorl_celery.node.keeper.process import SandboxProcess
from prorl_celery.node.keeper.spares import SPARE, Spares
from prorl_celery.sandbox import local, singularity
from prorl_celery.sandbox.base import SandboxHandle, SandboxSpec
from prorl_celery.sandbox.launch import Launch, check_spec, choose_kind, sandbox_user
from prorl_celery.sandbox.networks import Loopbacks
from prorl_celery.sandbox.page import make_page, write_fence
from prorl_celery.settings import Settings

log = logging.getLogger(__name__)

REAP_SECONDS = 1.0


class Sandboxes:
    """All of this keeper's."""

    def __init__(
        self, settings: Settings, boot: str, loop: Loop, admissions: Admissions, guard_pid: Callable[[], int]
    ) -> None:
        self._settings = settings
        self._boot = boot
        self._loop = loop
        self._admissions = admissions
        self._guard_pid = guard_pid
        self._numbers = itertools.count(1)
        self._entries: dict[str, Entry] = {}
        self.kinds = Kinds(settings, boot, loop)
        self._loopbacks = Loopbacks()
        self.spares = Spares(
            settings.spare_sandboxes, loop, lambda spec, started: self.start(spec, None, started), self.stop
        )
        self.limits = Limits(settings, loop, self.stop)
        self.kernels = Kernels(settings, loop)
        self.starts = 0
        self.stops = 0
        self._leaks = LeakCounter(settings)
        self.leaked = 0
        """Sandboxes that would not end when they were told to, or that a dead keeper left; counted once each."""

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def live(self) -> list[Entry]:
        """Those that belong to somebody, oldest first."""
        return [entry for entry in self._entries.values() if entry.spec.purpose != SPARE]

    @property
    def rollout_live(self) -> int:
        """Sandboxes that count against the admission limit."""
        return sum(entry.spec.purpose == "rollout" for entry in self._entries.values())

    @property
    def stuck(self) -> int:
        """Sandboxes that would not end until now."""
        return sum(entry.stuck for entry in self._entries.values())

    def get(self, sandbox_id: str) -> Entry | None:
        """A live sandbox; None when it is gone or going."""
        entry = self._entries.get(sandbox_id)
        return None if entry is None or entry.ending or entry.process is None else entry

    def entries(self) -> list[Entry]:
        """All of them, spares too."""
        return list(self._entries.values())

    def start(self, spec: SandboxSpec, admission: str | None, started: Started) -> Entry:
        """Begin a start; `started` is called when its terminal is there, or with what went wrong.

        Raises: `SandboxError`, `SandboxUnavailable` when it cannot even begin; then nothing is left.
        """
        kind = choose_kind(spec, self._settings, has_singularity=lambda: singularity.command() is not None)
        check_spec(spec, self._settings, kind)
        spare = self.spares.take(spec) if kind == "bubblewrap" and spec.purpose != SPARE else None
        entry = spare or Entry(f"s{next(self._numbers)}-{secrets.token_hex(3)}", spec, kind, secrets.token_hex(6))
        self._entries[entry.sandbox_id] = entry
        if spec.purpose == "rollout":
            self._admissions.use(admission, entry.sandbox_id)
        self.starts += spec.purpose != SPARE
        if spare is not None:
            self._hand_over(spare, spec, started)
            return spare
        try:
            entry.page = make_page(fence=spec.fence, output_bytes=self._settings.tool_output_bytes)
            self._go_on(entry, started)
        except SandboxError:
            self._gone(entry)
            raise
        except OSError as error:  # no descriptor, no process left: that may pass, and the others' sandboxes live on
            self._gone(entry)
            raise SandboxError(f"the sandbox could not be started: {error}") from error
        entry.lifetime = self._loop.after(spec.lifetime_seconds, lambda: self.stop(entry.sandbox_id))
        return entry

    def stop(
        self,
        sandbox_id: str,
        when_gone: Callable[[], None] = lambda: None,
        when_stuck: Callable[[], None] = lambda: None,
    ) -> None:
        """End a sandbox; `when_gone` is called when it is, `when_stuck` when it would not (it is tried on): at once
        where it is so already.
        """
        entry = self._entries.get(sandbox_id)
        if entry is None:
            when_gone()
            return
        if entry.stuck:
            when_stuck()
            return
        entry.when_gone.append(when_gone)
        entry.when_stuck.append(when_stuck)
        if entry.ending:
            return
        entry.ending = True
        self.stops += entry.spec.purpose != SPARE
        if entry.process is not None:
            entry.process.kill()
        elif entry.work is not None:
            entry.work.kill()
        else:  # it waits for something that others may wait for, too
            self._gone(entry)

    def stop_all(self) -> None:
        """Begin to end every sandbox."""
        self.spares.close()
        self.kernels.close()
        for entry in self.entries():
            self.stop(entry.sandbox_id)

    def close(self) -> None:
        """Remove what sandboxes shared; the last thing a keeper does. What is still there dies with the process."""
        self.kinds.close()
        self.limits.close()

    def _hand_over(self, spare: Entry, spec: SandboxSpec, started: Started) -> None:
        """Make a spare what was asked for: its life begins now."""
        # Its place in the order of those with an owner is that of its taking, as pages of a listing rely on it.
        self._entries[spare.sandbox_id] = self._entries.pop(spare.sandbox_id)
        spare.spec = spec
        if spare.page is not None:
            write_fence(spare.page, spec.fence)
        spare.started_at = time.monotonic()
        if spare.lifetime is not None:
            spare.lifetime.cancel()
        spare.lifetime = self._loop.after(spec.lifetime_seconds, lambda: self.stop(spare.sandbox_id))
        self._loop.after(0.0, lambda: started(spare, None))

    def _go_on(self, entry: Entry, started: Started) -> None:
        """Start it, when its kind is known to work and its kernel's packages are there."""

        def then(step: Callable[[], None]) -> Callable[[SandboxError | None], None]:
            return lambda error: self._resume(entry, started, step, error)

        def begin() -> None:
            if entry.kind == "singularity":
                self._start_instance(entry, started)
            else:
                self._run(entry, self._launch(entry))
                self._loop.after(0.0, lambda: started(entry, None))

        def prepare() -> None:
            bound = self.kinds.are_bound(entry, then(prepare), lambda: self._is_stuck(entry))
            if bound and self.kernels.are_prepared(entry, self.kinds.share, then(begin)):
                begin()

        if self.kinds.is_ready(entry.kind, entry.sandbox_id, then(prepare)):
            prepare()

    def _resume(self, entry: Entry, started: Started, step: Callable[[], None], error: SandboxError | None) -> None:
        """Go on with a start that had to wait, unless it was given up meanwhile."""
        if entry.sandbox_id not in self._entries:
            return
        try:
            if error is None:
                step()
                return
        except (SandboxError, OSError) as failed:
            error = failed if isinstance(failed, SandboxError) else SandboxError(str(failed))
        started(entry, error)
        self._gone(entry)

    def _launch(self, entry: Entry) -> Launch:
        spec = self._loopbacks.give(entry.sandbox_id, entry.spec)
        if entry.kind == "local":
            user = sandbox_user(self._settings)
            return local.local_launch(spec, nonce=entry.nonce, user=user, share=self.kinds.share())
        return self.kinds.bubblewrap().launch(spec, nonce=entry.nonce, binds=entry.binds or ())

    def _reap_strangers(self) -> None:
        known = self.limits.pids | self.kernels.pids | self.kinds.pids
        known |= {e.process.pid for e in self.entries() if e.process is not None}
        known |= {e.work.pid for e in self.entries() if e.work is not None}
        known.add(self._guard_pid())
        reap_strangers(known)

    def _start_instance(self, entry: Entry, started: Started) -> None:
        container = self.kinds.singularity()

        def run(pid: int, pidfd: int, name: str) -> None:
            spec = self._loopbacks.give(entry.sandbox_id, entry.spec)
            self._run(entry, container.launch(spec, name, pid, nonce=entry.nonce), pidfd, pid)

        InstanceStart(
            entry,
            container,
            self._loop,
            enter=lambda: self.limits.enter(entry.sandbox_id, entry.spec),
            run=run,
            started=started,
            gone=self._gone,
            stuck=self._is_stuck,
        )

    def _run(self, entry: Entry, launch: Launch, inner_pidfd: int | None = None, inner: int | None = None) -> None:
        launch = self.kernels.equip(entry, launch, self.kinds.share)
        entry.launch = launch
        entry.handle = SandboxHandle(
            sandbox_id=entry.sandbox_id,
            kind=entry.kind,
            node=self._settings.node,
            boot=self._boot,
            workdir=launch.workdir,
        )
        entry.process = SandboxProcess(
            self.limits.hold(launch),
            self._loop,
            ended=lambda: self._over(entry),
            stuck=lambda: self._is_stuck(entry),
            inner_pidfd=inner_pidfd,
        )
        self.limits.begin(entry.sandbox_id, entry.spec, entry.process, inner)
        self.kernels.inherited(entry.sandbox_id)

    def _over(self, entry: Entry) -> None:
        entry.over = True
        if entry.work is None:
            self._gone(entry)
        else:  # the start of an instance that has ended by now; its end is the entry's
            entry.work.kill()

    def count_leaked(self, count: int) -> None:
        """So many that would not end, or were found when their keeper was dead."""
        self.leaked += count
        self._leaks.add(count)

    def _is_stuck(self, entry: Entry) -> None:
        """It would not end: count it, and let another have its place. Only so many, or they would fill the machine."""
        entry.stuck = True
        self.count_leaked(1)
        log.error("sandbox %s of %s would not end; it is tried on", entry.sandbox_id, entry.spec.job_id)
        if self.stuck <= self._admissions.limit:
            self._admissions.sandbox_gone(entry.sandbox_id)
        for call in entry.when_stuck:
            call()

    def _gone(self, entry: Entry) -> None:
        if self._entries.pop(entry.sandbox_id, None) is None:
            return
        self.spares.gone(entry)
        self._loopbacks.take_back(entry.sandbox_id)
        self.limits.gone(entry.sandbox_id)
        self.kernels.gone(entry.sandbox_id)
        self.kinds.gone(entry.kind, entry.sandbox_id)
        if entry.page is not None:
            os.close(entry.page)
            entry.page = None
        if entry.lifetime is not None:
            entry.lifetime.cancel()
        if entry.launch is not None and entry.kind == "local":
            local.discard(entry.launch)
        self._admissions.sandbox_gone(entry.sandbox_id)
        # Inherited processes end a moment after the sandbox that they were part of.
        self._loop.after(REAP_SECONDS, self._reap_strangers)
        for call in entry.when_gone:
            call()
