"""F14, F16, F17, F24, F31 and F32 while a batch fills; what works on it is killed; row 21.

Whatever happens: exactly as many groups as were asked for, every result once, nothing of a batch's surplus left.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator

import pytest
from e2e_service import children, eventually
from fault_batches import FILLED_S, Filling, mixed_prompts, prompt
from fault_redis import AOF, Server, served
from fault_service import WITHIN_S, FaultService, hurt_service, second_node, send, stopped

from prorl_celery.app import Publisher, make_app
from prorl_celery.jobs.messages import Message
from prorl_celery.sandbox.client import KeeperClient
from prorl_celery.testing import ScriptedBackend

SLOTS = 16
TOLD_S = 10.0
"""What a batch has no more use for stops within two seconds; on a machine that does much else, within these."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with served(Server(tmp_path_factory.mktemp("redis"), *AOF, "--enable-debug-command", "local")) as server:
        yield server


@pytest.fixture(scope="module")
def hurt(tmp_path_factory: pytest.TempPathFactory, backend: ScriptedBackend, server: Server) -> Iterator[FaultService]:
    """The module's service: twice the rollout slots of others, and a Redis that may be killed."""
    folder = tmp_path_factory.mktemp("hurt")
    with hurt_service(
        folder, "--rollout", str(SLOTS), PRORL_REDIS_URL=server.url, PRORL_LEASE="6", PRORL_SPARE_SANDBOXES="0"
    ) as service:
        service.redis_url = server.url
        service.add_backend(backend)
        yield service


def open_gate(service: FaultService, name: str) -> None:
    (service.marks / f"{name}.open").touch()


def since(service: FaultService, batch: Filling) -> float:
    """Seconds since a batch ended, by the clock that it noted that with."""
    seconds, micros = service.redis.time()
    return float(seconds + micros / 1e6 - int(service.redis.hget(f"prorl:dapo:{batch.id}", "ended")) / 1000)


def test_f31_at_the_target_all_stop_and_none_begins_later(service: FaultService, backend: ScriptedBackend) -> None:
    backend.reset()
    backend.fail("slow", probability=1.0, seconds=300.0)
    nap = {"data_source": "nap", "seconds": 600}
    call = {"data_source": "steps", "commands": ["echo 1 >> steps"], "steps": ["1"]}
    long = [{"prompt_id": f"long-{n}", "instance": (nap, call)[n % 2]} for n in range(40)]
    deciders = [prompt(f"quick-{n}", 0.0, 1.0) for n in range(4)] + [prompt("last", 0.0, 1.0, gate="f31")]
    batch = Filling(
        service, "f31", 5, 2, [*deciders, *long], max_inflight_jobs=60,
        defaults={"sampling_params": {"model": "scripted"}},
    )  # fmt: skip
    keeper = KeeperClient(service.settings)
    busy = lambda: service.client.service_status()["stages"]["rollout"]["busy"]  # noqa: E731
    batch.await_won(4)
    assert eventually(lambda: busy() == SLOTS and backend.stats()["live"] >= 4, WITHIN_S), batch.told()
    started = batch.jobs()
    assert len(started) >= 60
    assert batch.status().jobs.live <= 60
    assert len(keeper.list()) >= SLOTS - 2
    calls = backend.stats()["live"]

    open_gate(service, "f31")
    assert eventually(lambda: batch.status().state == "complete", WITHIN_S), batch.told()
    aborted = gone = ended = None
    while None in (aborted, gone, ended) and since(service, batch) < WITHIN_S:
        if aborted is None and backend.stats()["live"] == 0:
            aborted = since(service, batch)
        if gone is None and not keeper.list():
            gone = since(service, batch)
        if ended is None and not service.redis.exists("prorl:revoked"):
            ended = since(service, batch)
    assert aborted is not None, batch.told()
    assert gone is not None, (keeper.list(), batch.told())
    assert ended is not None, batch.told()
    print(
        f"of {len(started)} jobs, {SLOTS} of them running, {calls} in a model call: the last call was aborted after "
        f"{aborted:.2f} s, the last sandbox was gone after {gone:.2f} s, the last job had ended after {ended:.2f} s"
    )
    assert max(aborted, gone, ended) < TOLD_S
    assert backend.stats()["aborts"] >= calls
    batch.assert_full()
    assert batch.states() == {"completed": 10, "cancelled": len(started) - 10}
    assert batch.jobs() == started

    asked = backend.stats()["calls"]
    before = {job: service.record(job) for job in started}
    backend.reset()
    with second_node(service, "late-batch"):
        other = Filling(service, "f31-late", 2, 2, [prompt(f"p{n}", 0.0, 1.0) for n in range(4)])
        other.assert_full()
    assert {job: service.record(job) for job in started} == before
    assert backend.stats()["calls"] == 0, f"after {asked} calls"
    assert keeper.list() == []


def test_f32_of_a_revocation_and_a_commit_that_meet_exactly_one_wins(service: FaultService) -> None:
    prompts = [prompt(f"p{n}", 0.0, 1.0, seconds=0.02 * (n % 7), eval_seconds=0.03) for n in range(60)]
    states = []
    for number in range(3):
        batch = Filling(service, f"f32-revoked-{number}", 6, 2, prompts, max_inflight_jobs=60)
        batch.assert_full()
        states.append(batch.states())
    print(f"jobs of batches that reached their target: {[dict(one) for one in states]}")
    assert all(set(one) <= {"completed", "cancelled"} for one in states)
    assert sum(one["cancelled"] for one in states) > 0
    assert all(one["completed"] >= 12 for one in states)


def test_f32_of_a_cancel_of_the_batch_and_its_last_sample_exactly_one_wins(service: FaultService) -> None:
    batches, delay = [], 0.1
    for number in range(24):
        batch = Filling(service, f"f32-{number}", 1, 2, [prompt("p", 0.0, 1.0, seconds=0.02)])
        batches.append(batch)
        threading.Event().wait(delay)
        service.client.batches.cancel(batch.id)
        # Whoever won, the other comes nearer.
        delay *= 0.75 if batch.status().state == "complete" else 1.4
    ended = {"complete": 0, "cancelled": 0}
    for batch in batches:
        status = batch.await_end()
        ended[status.state] += 1
        assert len(batch.groups()) == status.groups.informative == (status.state == "complete")
        assert set(batch.states()) <= {"completed", "cancelled"}
        if status.state == "complete":
            assert batch.states() == {"completed": 2}
    print(f"of 24 races: {ended}")
    assert all(ended.values()), "both came to pass"


def test_f24_messages_that_are_delivered_twice_start_and_count_nothing_twice(service: FaultService) -> None:
    publisher = Publisher(make_app(service.settings))
    with stopped(*service.stage_children("init")):
        batch = Filling(service, "f24-batch", 3, 4, mixed_prompts(12, 4, one_in=2), max_inflight_jobs=48)
        publisher.publish_all(Message("init", "init", job, 0, 5) for job in batch.jobs() for _ in range(3))
    batch.assert_full()
    for job in batch.jobs():
        for stage in ("init", "rollout", "eval"):
            note = service.marks / f"{job}.{stage}"
            assert not note.exists() or len(note.read_text().splitlines()) == 1, note.name


def test_workers_and_the_api_killed_while_a_batch_fills_cost_it_nothing(service: FaultService) -> None:
    prompts = mixed_prompts(120, 4, one_in=3, seconds=0.3)
    batch = Filling(service, "killed", 14, 4, prompts, max_inflight_jobs=48)
    for won, names in ((1, ["eval"]), (3, ["rollout"]), (5, ["init"]), (7, ["api"]), (9, ["eval", "rollout", "api"])):
        batch.await_won(won)
        for name in names:
            if name == "api":
                send(service.child("api"), signal.SIGKILL)
            else:
                service.kill_stage(name)
    batch.assert_full()
    assert set(batch.states()) <= {"completed", "cancelled"}
    lost = sum(int(service.record(job).get("lost_total", 0)) for job in batch.jobs())
    print(f"{lost} claims of {len(batch.jobs())} jobs were lost; waste: {batch.status().waste.model_dump()}")
    assert lost > 0, "they were killed at work"


@pytest.mark.slow
def test_f14_redis_killed_while_a_batch_fills_and_back_with_its_file_costs_no_group(
    service: FaultService, server: Server
) -> None:
    batch = Filling(service, "f14-batch", 12, 4, mixed_prompts(90, 4, one_in=3, seconds=0.3), max_inflight_jobs=48)
    for won in (1, 4, 7):
        batch.await_won(won)
        server.kill()
        threading.Event().wait(0.5)
        server.start()
    batch.assert_full()


@pytest.mark.slow
def test_f16_a_stall_of_eight_seconds_counts_no_sample_twice(service: FaultService, server: Server) -> None:
    batch = Filling(service, "f16-batch", 10, 4, mixed_prompts(80, 4, one_in=3, seconds=0.2), max_inflight_jobs=48)
    batch.await_won(2)
    began = time.monotonic()
    with server.client() as direct:
        direct.execute_command("DEBUG", "SLEEP", "8")
    assert time.monotonic() - began > 7.5
    batch.assert_full()


def test_f17_a_redis_that_forgets_its_scripts_fills_the_batch(service: FaultService) -> None:
    batch = Filling(service, "f17-batch", 6, 4, mixed_prompts(60, 4, one_in=3), max_inflight_jobs=48)
    over = threading.Event()

    def forget() -> None:
        while not over.wait(0.02):
            service.redis.script_flush()

    thread = threading.Thread(target=forget)
    thread.start()
    try:
        batch.assert_full()
    finally:
        over.set()
        thread.join(WITHIN_S)


def test_row_21_nine_of_ten_groups_are_uniform_and_the_batch_is_filled(service: FaultService) -> None:
    room = 32
    batch = Filling(service, "row-21", 3, 4, mixed_prompts(100, 4, one_in=10, seconds=0.02), max_inflight_jobs=room)
    most = 0

    def over() -> bool:
        nonlocal most
        most = max(most, batch.in_flight(), batch.status().jobs.live)
        return batch.status().state == "complete"

    assert eventually(over, FILLED_S), batch.told()
    batch.assert_full()
    status = batch.status()
    print(f"at most {most} jobs in flight; groups {status.groups.model_dump()}; waste {status.waste.model_dump()}")
    assert room / 2 <= most <= room
    assert status.groups.uninformative >= 24
    assert status.groups.uniform_0 + status.groups.uniform_1 == status.groups.uninformative
    assert status.waste.uniform.seconds > 0.02 * 4 * 24
    # What runs ahead is the only thing that is thrown away besides.
    assert status.jobs.started <= (status.groups.informative + status.groups.uninformative) * 4 + room


def test_a_batch_whose_groups_are_all_uniform_is_exhausted(service: FaultService) -> None:
    batch = Filling(service, "uniform", 2, 3, mixed_prompts(12, 3, one_in=100), more_prompts=False)
    status = batch.await_end()
    assert (status.state, status.groups.informative, status.groups.uninformative) == ("exhausted", 0, 12)
    assert (status.groups.uniform_0, status.groups.uniform_1) == (6, 6)
    assert batch.groups() == []
    assert batch.states() == {"completed": 36}


def test_two_batches_that_share_the_workers_are_both_filled(service: FaultService) -> None:
    prompts = mixed_prompts(60, 4, one_in=3)
    one = Filling(service, "shared-1", 4, 4, prompts, max_inflight_jobs=32)
    two = Filling(service, "shared-2", 4, 4, prompts, max_inflight_jobs=32, informative=None)
    three = Filling(service, "shared-3", 3, 4, prompts, max_inflight_jobs=32, defaults={"priority": 8})
    for batch in (one, three):
        batch.assert_full()
    assert two.await_end().state == "complete"
    assert len(two.groups()) == 4
    for batch in (one, two, three):
        assert all(job.startswith(f"{batch.id}:") for job in batch.jobs())


def test_of_ten_thousand_prompts_those_that_are_wanted_become_jobs(service: FaultService) -> None:
    before = service.redis.dbsize()
    prompts = mixed_prompts(10_000, 4, one_in=2, gate="many")
    batch = Filling(service, "many", 3, 4, prompts, max_inflight_jobs=32)
    assert batch.status().groups.pending == 10_000 - 8
    open_gate(service, "many")
    batch.assert_full()
    status = batch.status()
    assert status.prompts == 10_000
    assert status.jobs.started == len(batch.jobs()) <= 32 + 4 * (3 + status.groups.uninformative)
    assert status.groups.pending == 10_000 - status.jobs.started // 4
    added = service.redis.dbsize() - before
    assert added <= 10 + 8 * status.jobs.started, "a prompt that was not started is no key"
    for key in service.redis.keys("prorl:dapo*:many"):
        assert service.redis.ttl(key) > 0, key


def test_samples_that_fail_are_drawn_anew_and_no_failure_is_a_score(service: FaultService) -> None:
    """One in twenty fails: by its handler, or since its sandbox was killed."""
    samples, prompts = 4, []
    for n in range(20):
        name = f"p{n}"
        prompts.append(prompt(name, 1.0, 0.5, 1.0, 0.5, fails=[str(n % 4)] if n % 5 == 0 else []))
    batch = Filling(service, "failing", 20, samples, prompts, max_inflight_jobs=80, defaults={"max_attempts": 1})
    groups = batch.assert_full()
    status = batch.status()
    assert status.jobs.redrawn == 4
    assert batch.states() == {"completed": 80, "failed": 4}
    assert status.groups.failed == 0
    for group in groups:
        assert [result["reward"] for result in group.results] == [1.0, 0.5, 1.0, 0.5]
        assert (group.min_reward, group.max_reward) == (0.5, 1.0), "no failure was a zero"
    redrawn = [r["job_id"] for group in groups for r in group.results if r["job_id"].endswith(":r1")]
    assert len(redrawn) == 4
    for job in batch.jobs():
        if service.record(job)["state"] == "failed":
            assert service.client.result(job).reward is None


def test_samples_whose_sandboxes_are_killed_are_drawn_anew(service: FaultService) -> None:
    # However late a death is noticed: nothing else ends what is killed.
    nap = {"data_source": "nap", "seconds": 0.2, "for_good": ["1"]}
    prompts = [{"prompt_id": f"p{n}", "instance": nap} for n in range(3)]
    batch = Filling(
        service, "killed-sandboxes", 3, 4, prompts, informative=None, defaults={"max_attempts": 1}
    )  # fmt: skip
    keeper, killed = KeeperClient(service.settings), set()

    def kill_one_of_each() -> bool:
        for sandbox in keeper.list():
            job = sandbox["job_id"]
            naps = sandbox["pid"] and any(name == "sleep" for _, name in children(sandbox["pid"]))
            if job.endswith(":1") and naps:
                send(sandbox["pid"], signal.SIGKILL)
                killed.add(job)
        return len(killed) == 3

    assert eventually(kill_one_of_each, WITHIN_S), batch.told()
    status = batch.await_end()
    assert (status.state, status.jobs.redrawn, status.groups.failed) == ("complete", 3, 0), service.told(batch.jobs())
    assert {job for job in batch.jobs() if service.record(job)["state"] == "failed"} == killed
    assert {r["reward"] for group in batch.groups() for r in group.results} == {1.0}
    assert all(group.scored == 4 for group in batch.groups())


@pytest.mark.parametrize("policy", ["retry", "drop_group", "keep_group"])
def test_a_prompt_that_always_fails_holds_up_no_batch(service: FaultService, policy: str) -> None:
    broken = [prompt(f"broken-{n}", 0.0, 1.0, fails=["*"]) for n in range(3)]
    good = [prompt(f"good-{n}", 0.0, 1.0) for n in range(2)]
    batch = Filling(
        service, f"broken-{policy}", 3, 2, [*broken, *good], failed_samples=policy, more_prompts=False,
        defaults={"max_attempts": 1},
    )  # fmt: skip
    status = batch.await_end()
    assert (status.state, status.groups.informative, status.groups.failed) == ("exhausted", 2, 3)
    drawn = {job for job in batch.jobs() if service.record(job)["state"] == "failed"}
    assert len(drawn) <= 3 * 2 * (3 if policy == "retry" else 1)
    assert {group.prompt_id for group in batch.groups()} == {"good-0", "good-1"}


@pytest.mark.slow
def test_what_a_batch_leaves_is_carried_over_a_rolling_restart(service: FaultService) -> None:
    held = [prompt(f"held-{n}", 0.0, 1.0, 0.5, gate="carried") for n in range(4)]
    quick = [prompt(f"quick-{n}", 0.0, 1.0, 0.5, seconds=0.3) for n in range(4)]
    one = Filling(service, "carried-1", 2, 3, [*held[:2], *quick, *held[2:]], on_target="carry_over",
                  max_inflight_jobs=30)  # fmt: skip
    one.await_won(2)
    before = {stage: set(service.stage_children(stage)) for stage in ("init", "rollout", "eval")}
    service.process.send_signal(signal.SIGUSR1)
    two = Filling(service, "carried-2", 4, 3, [prompt("new", 0.0, 1.0, 0.5)], adopt="carried-1", max_inflight_jobs=30)
    carried = two.status().groups.carried
    assert carried >= 2
    assert eventually(
        lambda: all(not pids & set(service.stage_children(stage)) for stage, pids in before.items()), FILLED_S
    ), service.logs()
    open_gate(service, "carried")
    assert eventually(lambda: two.status().state == "complete", FILLED_S), two.told()
    one.await_end()
    two.await_end()
    groups = two.groups()
    assert len(groups) == 4
    assert {group.group_id for group in groups}.isdisjoint(group.group_id for group in one.groups())
    adopted = [group for group in groups if group.batch_id == "carried-1"]
    print(f"{carried} groups were carried over, {len(adopted)} of them counted")
    assert len(adopted) >= 2
    for group in groups:
        assert sorted(r["reward"] for r in group.results) == [0.0, 0.5, 1.0]
    assert len(one.groups()) == 2
