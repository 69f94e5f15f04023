"""The heap under random histories: whatever happens in whatever order, a count is the number of live jobs assigned."""

from __future__ import annotations

import itertools

import fakeredis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule
from redis_fixtures import to_rollout

from prorl_celery.jobs.claims import Claim
from prorl_celery.jobs.models import JobError
from prorl_celery.jobs.store import JobStore
from prorl_celery.scheduling.backends import Backend, BackendRegistry
from prorl_celery.settings import Settings
from prorl_celery.store.keys import Keys

URLS = [f"http://{name}" for name in "abcde"]
MODELS = ["m", "n"]
RETRY = JobError(kind="backend", stage="rollout", message="m", retryable=True)


class Heap(RuleBasedStateMachine):
    """What the registry says is compared with a model of it: which job holds which backend."""

    jobs: Bundle[Claim] = Bundle("jobs")

    @initialize()
    def empty(self) -> None:
        self.client = fakeredis.FakeRedis(server=fakeredis.FakeServer())
        self.registry = BackendRegistry(self.client, Settings())
        self.store = JobStore(self.client, Settings(node="n1"))
        self.numbers = itertools.count()
        self.known: dict[str, tuple[str, float, str]] = {}
        """url -> model, weight, state."""
        self.held: dict[str, str] = {}
        self.live: set[str] = set()

    @rule(url=st.sampled_from(URLS), model=st.sampled_from(MODELS), weight=st.sampled_from([0.5, 1.0, 3.0]))
    def put(self, url: str, model: str, weight: float) -> None:
        self.registry.put(Backend(url=url, model=model, weight=weight, gives_ids=True))
        self.known[url] = (model, weight, "up")

    @rule(url=st.sampled_from(URLS), state=st.sampled_from(["up", "down"]))
    def change(self, url: str, state: str) -> None:
        changed = self.registry.set_state(url, state)  # type: ignore[arg-type]
        was = self.known.get(url)
        assert changed == (was is not None and not (was[2] == "draining" and state == "down"))
        if changed and was is not None:
            self.known[url] = (was[0], was[1], state)
        elif was is not None:
            self._forget(url)

    @rule(url=st.sampled_from(URLS), now=st.booleans())
    def remove(self, url: str, now: bool) -> None:
        assert self.registry.remove(url, "now" if now else "drain") == (url in self.known)
        if url not in self.known:
            return
        if now or self.known[url][2] == "down" or url not in self.held.values():
            self._forget(url)
        else:
            self.known[url] = (*self.known[url][:2], "draining")

    @rule(target=jobs)
    def start(self) -> Claim:
        job = to_rollout(self.store, f"j{next(self.numbers)}")
        self.live.add(job.job_id)
        return job

    @rule(job=jobs, model=st.sampled_from(MODELS), exclude=st.sets(st.sampled_from(URLS), max_size=2))
    def acquire(self, job: Claim, model: str, exclude: set[str]) -> None:
        had = self.held.pop(job.job_id, None)
        got = self.registry.acquire(job.job_id, job.fence, model=model, mode="tokens", exclude=sorted(exclude))
        fits = {u for u, (m, _, s) in self.known.items() if m == model and s != "down" and u not in exclude}
        if had in fits:
            assert got is not None
            assert got.url == had
        else:
            if had is not None:
                self._left(had)
            fits = {u for u in fits if self.known.get(u, ("", 0, ""))[2] == "up"}
            assert (got.url in fits) if got else not fits
        if got:
            self.held[job.job_id] = got.url

    @rule(target=jobs, job=consumes(jobs), way=st.sampled_from(["finish", "fail", "hand_back"]))
    def end(self, job: Claim, way: str) -> object:
        if way == "finish":
            self.store.finish(job, state="failed", finish_reason="error", worked_s=0)
        elif way == "fail":
            self.store.fail(job, RETRY, worked_s=0)
        else:
            self.store.hand_back(job, waited_s=0)
        self.live.discard(job.job_id)
        url = self.held.pop(job.job_id, None)
        if url is not None:
            self._left(url)
        return multiple()

    @rule()
    def forget_scripts(self) -> None:
        self.client.script_flush()

    @rule()
    def recount(self) -> None:
        assert self.registry.recount() == 0

    @invariant()
    def counts_are_those_of_live_jobs(self) -> None:
        listed = {one.url: one for one in self.registry.list()}
        assert listed.keys() == self.known.keys()
        for url, (model, weight, state) in self.known.items():
            holders = {job for job, at in self.held.items() if at == url}
            assert {job.decode() for job in self.client.smembers(f"prorl:assigned:{url}")} == holders
            assert (listed[url].assigned, listed[url].state, listed[url].model) == (len(holders), state, model)
            score = self.client.zscore(f"prorl:heap:{model}", url)
            assert score == (len(holders) / weight if state == "up" else None)

    @invariant()
    def nothing_is_left_behind(self) -> None:
        for model in MODELS:
            up = {url.encode() for url, (m, _, s) in self.known.items() if (m, s) == (model, "up")}
            assert set(self.client.zrange(f"prorl:heap:{model}", 0, -1)) == up
            credits = self.client.hgetall(f"prorl:joining:{model}")
            assert credits.keys() <= up
            assert all(0 <= float(credit) <= 2 for credit in credits.values())
        keys = Keys("prorl:")
        assert all(keys.known(key.decode()) for key in self.client.keys("*"))

    def teardown(self) -> None:
        if hasattr(self, "client"):
            self.client.close()

    def _left(self, url: str) -> None:
        """A job has left: what drains goes with the last one."""
        if url in self.known and self.known[url][2] == "draining" and url not in self.held.values():
            del self.known[url]

    def _forget(self, url: str) -> None:
        del self.known[url]
        self.held = {job: at for job, at in self.held.items() if at != url}


Heap.TestCase.settings = settings(
    max_examples=15,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
TestHeap = Heap.TestCase
