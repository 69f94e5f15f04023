"""The run of a soak and the account of it: the figures by their fixed names."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prorl_celery.bench.processes import rss_bytes, tree
from prorl_celery.bench.report import percentile
from prorl_celery.bench.service import BenchService
from prorl_celery.bench.soak.audit import executions_wasted, keys_left, turns_redone
from prorl_celery.bench.soak.kills import Killer
from prorl_celery.bench.soak.plan import Plan
from prorl_celery.bench.soak.recovery import Watcher
from prorl_celery.bench.soak.trainer import Trainer
from prorl_celery.checking import check
from prorl_celery.errors import SandboxError
from prorl_celery.jobs.store import JobStore
from prorl_celery.node.pause import pause, until
from prorl_celery.settings import Settings
from prorl_celery.store.keys import Keys

QUIET_S = 60.0
TELL_EVERY_S = 10.0
MUST_BE_ZERO = ("duplicated", "leaked_sandboxes", "keys_left", "checker_findings", "wrong_rewards", "turns_redone")


@dataclass(slots=True)
class Account:
    """The figures of a soak by name, and in words what is wrong or was seen."""

    figures: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        """Whether every job ended exactly once, and what must be zero is."""
        told = self.figures
        return told["ended_once"] == told["submitted"] == told["jobs"] and not any(told[name] for name in MUST_BE_ZERO)


class Peak:
    """The most memory that one process of a service had, sampled each second."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._due = 0.0
        self.bytes = 0
        self.name = ""

    def look(self) -> None:
        if (now := time.monotonic()) < self._due:
            return
        self._due = now + 1.0
        for process in tree(self._root):
            try:
                used = rss_bytes(process.pid)
            except (FileNotFoundError, ProcessLookupError):
                continue
            if used > self.bytes:
                self.bytes, self.name = used, process.name


class Run:
    """One soak under way, and then over."""

    def __init__(
        self,
        plan: Plan,
        service: BenchService,
        settings: Settings,
        client: Any,
        trainer: Trainer,
        killer: Killer,
        watcher: Watcher,
        journals: list[Path],
    ) -> None:
        self._plan = plan
        self._service = service
        self._settings = settings
        self._client = client
        self._store = JobStore(client, settings)
        self._trainer = trainer
        self._killer = killer
        self._watcher = watcher
        self._journals = journals
        self._peak = Peak(service.pid)
        self._took = 0.0

    def hurt(self, tell: Callable[[str], None]) -> None:
        """Kill until nearly all jobs have ended, then wait for the rest."""
        plan, trainer, killer = self._plan, self._trainer, self._killer
        began = time.monotonic()
        self._watcher.start()
        trainer.start()
        next_kill, next_word = began + killer.next_in(), began
        while not trainer.over.is_set() and (now := time.monotonic()) < began + plan.limit_s:
            killer.revive()
            if now >= next_kill and trainer.ended < plan.jobs * plan.calm_share:
                self._watcher.follow(killer.strike())
                next_kill = time.monotonic() + killer.next_in()
            if now >= next_word:
                tell(f"{trainer.ended} of {plan.jobs} jobs have ended; killed: {dict(killer.kills)}")
                next_word = now + TELL_EVERY_S
            self._peak.look()
            pause(0.1)
        self._took = time.monotonic() - began
        killer.revive(all_of_them=True)
        trainer.join(QUIET_S)
        self._watcher.stop()

    def account(self) -> Account:
        """Count. Lets all results expire. Raises `StoreUnavailable`, `ApiError`."""
        account = Account()
        self._count_ends(account)
        self._count_recoveries(account)
        self._count_what_is_left(account)
        return account

    def _count_ends(self, account: Account) -> None:
        trainer = self._trainer
        account.figures |= {
            "jobs": self._plan.jobs,
            "submitted": trainer.submitted,
            "ended_once": sum(count == 1 for count in trainer.told.values()),
            "completed": trainer.states["completed"],
            "failed": dict(trainer.failures),
            "duplicated": sum(count - 1 for count in trainer.told.values()),
            "wrong_rewards": len(trainer.wrong),
            "seconds": round(self._took, 1),
            "kills": dict(self._killer.kills),
        }
        account.notes += trainer.reasons[:10]
        account.notes += [f"the client gave up: {error}" for error in trainer.errors]
        account.notes += [
            f"{job_id} completed, but not with the reward that it is worth" for job_id in trainer.wrong[:10]
        ]

    def _count_recoveries(self, account: Account) -> None:
        hits = self._watcher.hits
        seconds = [hit.seconds for hit in hits if hit.seconds is not None]
        redone, with_keeper = turns_redone(self._journals, hits, self._killer.keeper_losses)
        wasted, claims = executions_wasted(self._store, self._trainer.told)
        account.figures |= {
            "executions": claims,
            "executions_wasted": wasted,
            "turns_redone": len(redone),
            "turns_redone_without_keeper": with_keeper,
            "jobs_hit": len(hits),
            "never_recovered": len(hits) - len(seconds),
            "recovery_s_median": round(statistics.median(seconds), 3) if seconds else None,
            "recovery_s_p99": round(percentile(seconds, 99), 3) if seconds else None,
            "recovery_s_max": round(max(seconds), 3) if seconds else None,
            "counts": self._store.counters(),
        }
        slow = sorted((hit for hit in hits if hit.seconds is not None), key=lambda hit: -(hit.seconds or 0.0))[:5]
        for hit in slow:
            told = f"slow: {hit.job_id}, hit by the death of {hit.victim}: {hit.seconds:.1f} s: "
            account.notes.append(told + self._history(hit.job_id))
        account.notes += [f"redone: {job_id}: {self._history(job_id)}" for job_id in sorted(set(redone))[:10]]

    def _history(self, job_id: str) -> str:
        return ", ".join(f"{event.at[14:23]} {event.what}" for event in self._store.events(job_id))

    def _count_what_is_left(self, account: Account) -> None:
        keeper, keys = self._service.keeper, Keys(self._settings.key_prefix)
        live: list[Any] = []

        def quiet() -> bool:
            try:
                live[:] = keeper.list()
            except SandboxError:
                return False
            return not live

        until(quiet, QUIET_S, every=0.1)
        findings = check(self._client, self._settings, keeper)
        account.notes += [f"{finding.kind}: {finding.subject}: {finding.message}" for finding in findings[:20]]
        leaked = int(self._service.client.service_status()["leaked_sandboxes"]) + len(live)
        account.figures |= {
            "leaked_sandboxes": leaked,
            "peak_rss_mb": round(self._peak.bytes / (1 << 20), 1),
            "peak_rss_process": self._peak.name,
            "keys_left": keys_left(self._client, keys, self._store),
            "checker_findings": len(findings),
        }
