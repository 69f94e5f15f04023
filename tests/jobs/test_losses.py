"""Which losses are charged, and to whom: a job that kills its process must not burn its neighbours' attempts."""

from __future__ import annotations

import pytest
import redis
from redis_fixtures import claim, request, submit

from prorl_celery.jobs.claims import Claim
from prorl_celery.jobs.messages import Message
from prorl_celery.jobs.models import JobError
from prorl_celery.jobs.store import JobStore
from prorl_celery.jobs.turns import Turn
from prorl_celery.scheduling.nodes import NodeRegistry
from prorl_celery.settings import Settings

P = "n1 b1 rollout-0 00000001"
Q = "n1 b1 rollout-0 00000002"


@pytest.fixture(autouse=True)
def node(either_client: redis.Redis) -> None:
    NodeRegistry(either_client, Settings()).beat({"node": "n1", "boot": "b1"})


def rollout(store: JobStore, job_id: str, process: str = P, **fields: object) -> Claim:
    """A job in rollout, in a sandbox of n1, in this process."""
    return claim(store, in_rollout_queue(store, submit(store, job_id, **fields)), process=process)


def rollout_of(store: JobStore, message: Message) -> Claim:
    return claim(store, in_rollout_queue(store, message), process=P)


def in_rollout_queue(store: JobStore, message: Message) -> Message:
    init = claim(store, message, process="n1 b1 init-0 00000009")
    return store.commit(init, {}, next_stage="rollout", queue="rollout.n1.b1", worked_s=0, node="n1", sandboxes=["box"])


def lapse(client: redis.Redis, *claims: Claim) -> None:
    client.zadd("prorl:leases", {f"{one.fence}|{one.job_id}": 1 for one in claims})


def died(store: JobStore, process: str = P) -> dict[str, Message]:
    """The process is dead; what the next sweep says, by job."""
    store.lapse(process)
    return {message.job_id: message for message in store.sweep().messages}


def test_a_job_that_ran_alone_and_must_start_over_is_charged(store: JobStore, either_client: redis.Redis) -> None:
    claim(store, submit(store, "a"), process=P)
    message = died(store)["a"]
    assert (message.stage, message.queue) == ("init", "init")
    assert claim(store, message).attempt == 2
    rollout(store, "b")
    NodeRegistry(either_client, Settings()).remove("n1", "b1")
    message = died(store)["b"]
    assert (message.stage, message.queue) == ("init", "init")
    assert claim(store, message).attempt == 2


def test_a_rollout_that_ran_alone_goes_on_while_its_sandboxes_are_there(store: JobStore) -> None:
    store.append_turn(rollout(store, "a"), Turn(index=0))
    message = died(store)["a"]
    assert (message.stage, message.queue) == ("rollout", "rollout.n1.b1")
    got = claim(store, message)
    assert (got.attempt, got.losses, got.going_on) == (1, 1, True)
    assert len(store.turns("a")) == 1


def test_jobs_lost_together_are_not_charged_and_go_on(store: JobStore) -> None:
    rollout(store, "a")
    rollout(store, "b")
    for message in died(store).values():
        assert (message.stage, message.queue) == ("rollout", "rollout.n1.b1")
        got = claim(store, message)
        assert (got.attempt, got.losses, got.going_on, got.suspect) == (1, 1, True, False)


def test_jobs_of_another_process_of_the_node_are_no_company(store: JobStore) -> None:
    claim(store, submit(store, "a"), process=P)
    claim(store, submit(store, "b"), process=Q)
    assert store.lapse(P) == 1
    (message,) = store.sweep().messages
    assert claim(store, message).attempt == 2
    assert store.status("b").state == "running"


def test_a_neighbour_whose_lease_has_not_lapsed_yet_is_company_and_so_is_one_that_was_swept_before(
    store: JobStore, either_client: redis.Redis
) -> None:
    first, second = (claim(store, submit(store, job), process=P) for job in ("first", "second"))
    for one in (first, second):
        lapse(either_client, one)
        (message,) = store.sweep().messages
        assert claim(store, message, process=Q).attempt == 1


def test_a_process_that_was_alone_when_a_lease_lapsed_and_then_took_more_was_not_alone_when_it_died(
    store: JobStore, either_client: redis.Redis
) -> None:
    lapse(either_client, claim(store, submit(store, "early"), process=P))
    store.sweep()
    for job in ("a", "b"):
        claim(store, submit(store, job), process=P)
    assert {claim(store, message).attempt for message in died(store).values()} == {1}


def test_how_many_ran_in_a_process_is_remembered_for_ten_minutes(store: JobStore, either_client: redis.Redis) -> None:
    rollout(store, "a")
    rollout(store, "b")
    store.lapse(P)
    assert either_client.get(f"prorl:lost:{P}") == b"2"
    assert 590_000 < either_client.pttl(f"prorl:lost:{P}") <= 600_000


def test_after_two_losses_without_progress_a_job_runs_alone_and_is_charged(store: JobStore) -> None:
    rollout(store, "poison", max_attempts=2)
    rollout(store, "neighbour", Q)
    for losses in (1, 2):
        rollout(store, f"bystander{losses}")
        lost = died(store)
        got = claim(store, lost["poison"], process=P)
        assert (got.attempt, got.losses, got.going_on) == (1, losses, True)
    assert (lost["poison"].stage, lost["poison"].queue) == ("rollout", "solo.n1.b1")
    assert got.suspect
    # Once more without progress, and so from init: there too.
    message = died(store)["poison"]
    assert (message.stage, message.queue) == ("init", "solo")
    message = in_rollout_queue(store, message)
    assert message.queue == "solo.n1.b1"
    last = claim(store, message, process=P)
    assert (last.attempt, last.going_on, last.suspect) == (2, False, True)
    store.lapse(P)
    assert store.sweep().ended == ["poison"]
    error = store.result("poison").error
    assert error is not None
    assert (error.kind, error.retryable) == ("lost_worker", True)
    assert "4 times without progress" in error.message
    assert store.status("neighbour").attempt == 1
    assert [status.job_id for status in store.dead().statuses] == ["poison"]


def test_a_third_loss_is_charged_even_in_company(store: JobStore) -> None:
    rollout(store, "a")
    for number in range(3):
        rollout(store, f"bystander{number}")
        message = died(store)["a"]
        got = claim(store, message, process=P)
    assert (message.stage, message.queue, got.attempt) == ("init", "solo", 2)


def test_a_turn_more_is_progress_and_the_same_turns_again_are_none(store: JobStore) -> None:
    store.append_turn(rollout(store, "a"), Turn(index=0))
    rollout(store, "b")
    got = claim(store, died(store)["a"], process=P)
    assert got.losses == 1
    store.append_turn(got, Turn(index=0))  # a resent one, which the log has
    rollout(store, "c")
    got = claim(store, died(store)["a"], process=P)
    assert got.losses == 2
    store.append_turn(got, Turn(index=1))
    rollout(store, "d")
    got = claim(store, died(store)["a"], process=P)
    assert (got.losses, got.suspect, got.queue) == (1, False, "rollout.n1.b1")


def test_progress_after_starting_over_is_a_turn_beyond_those_of_before(
    store: JobStore, either_client: redis.Redis
) -> None:
    first = rollout(store, "a")
    for index in range(2):
        store.append_turn(first, Turn(index=index))
    message = store.restart(claim(store, died(store)["a"], process=P), worked_s=0)
    assert message is not None
    again = claim(store, in_rollout_queue(store, message), process=P)
    assert again.losses == 1
    for index, losses in ((0, b"1"), (1, b"1"), (2, None)):
        store.append_turn(again, Turn(index=index))
        assert either_client.hget("prorl:job:a", "losses") == losses
    assert either_client.hget("prorl:job:a", "lost_total") == b"1"


def test_a_stages_commit_is_progress_for_a_loss_in_that_stage_alone(store: JobStore) -> None:
    claim(store, submit(store, "a"), process=P)
    claim(store, submit(store, "b"), process=P)
    message = died(store)["a"]
    assert message.queue == "init"
    got = claim(store, in_rollout_queue(store, message), process=P)
    assert got.losses == 0
    rollout(store, "c")
    got = claim(store, died(store)["a"], process=P)
    assert got.losses == 1
    got = claim(store, store.commit(got, {}, next_stage="eval", queue="eval", worked_s=0), process=P)
    assert got.losses == 0


def test_a_lost_eval_is_repeated_alone_from_what_rollout_committed(store: JobStore) -> None:
    for job in ("a", "b"):
        got = rollout(store, job)
        claim(store, store.commit(got, {"answer": job}, next_stage="eval", queue="eval", worked_s=0), process=P)
    for job, message in died(store).items():
        got = claim(store, message, process=Q)
        assert (message.stage, message.queue) == ("eval", "eval")
        assert (got.rollout, got.attempt, got.losses, got.going_on) == ({"answer": job}, 1, 1, False)


def test_a_suspects_eval_is_read_by_a_process_of_one_slot_on_the_node_of_its_sandboxes(store: JobStore) -> None:
    got = rollout(store, "a")
    message = store.commit(
        got, {}, next_stage="eval", queue="eval.n1.b1", worked_s=0, node="n1", sandboxes=["box"], bound=True
    )
    for number in range(2):
        claim(store, message, process=P)
        rollout(store, f"bystander{number}")
        message = died(store)["a"]
    assert (message.stage, message.queue) == ("eval", "solo.n1.b1")
    assert claim(store, message).sandboxes == ("box",)


def test_losses_are_counted_and_what_became_of_them(store: JobStore) -> None:
    rollout(store, "a")
    rollout(store, "b")
    died(store)
    claim(store, submit(store, "c"), process=Q)
    died(store, Q)
    counters = store.counters()
    assert (counters["lost:rollout"], counters["lost:init"], counters["went_on"]) == (2, 1, 2)
    assert counters["retries:lost_worker:init"] == 1
    assert (counters["dead"], counters["stalled"]) == (0, 0)


def test_only_a_process_that_has_jobs_can_be_lost(store: JobStore, either_client: redis.Redis) -> None:
    rollout(store, "a")
    for process in (Q, "n2 b2 rollout-0 00000001", "", "p1"):
        assert store.lapse(process) == 0
    assert store.sweep().messages == []
    assert [key for key in either_client.keys("prorl:lost:*")] == []


def test_what_is_known_to_be_dead_is_not_waited_for_after_a_pause_of_the_sweep(
    store: JobStore, either_client: redis.Redis
) -> None:
    rollout(store, "dead")
    late = rollout(store, "late", Q)
    store.lapse(P)
    lapse(either_client, late)
    either_client.set("prorl:swept", 1)
    assert [message.job_id for message in store.sweep().messages] == ["dead"]


@pytest.mark.parametrize(("renewed_s", "worked_s"), [(40, 60.0), (100, 0.0)])
def test_a_lost_claim_has_worked_until_its_lease_was_last_renewed(
    store: JobStore, either_client: redis.Redis, renewed_s: int, worked_s: float
) -> None:
    got = rollout(store, "a")
    rollout(store, "b")
    seconds, micros = either_client.time()
    now_ms = int(seconds) * 1000 + int(micros) // 1000
    either_client.hset("prorl:job:a", "since", now_ms - 100_000)
    lease_ms = round(Settings().lease_seconds * 1000)
    either_client.zadd("prorl:leases", {f"{got.fence}|a": now_ms - renewed_s * 1000 + lease_ms})
    (message,) = store.sweep().messages
    assert claim(store, message).spent_s == worked_s
    assert store.status("a").timing["rollout"].running == worked_s


def test_a_node_full_of_lost_jobs_is_counted_once_a_sweep(redis_store: JobStore, redis_client: redis.Redis) -> None:
    """Each job alone in its process: the jobs of the node must not be looked through again for each."""
    jobs = 200
    redis_store.create([request(f"j{number}") for number in range(jobs)])
    for number in range(jobs):
        claim(redis_store, Message("init", "init", f"j{number}", 0, 5), process=f"n1 b1 init-{number} 0")
    redis_client.zadd("prorl:leases", dict.fromkeys(redis_client.zrange("prorl:leases", 0, -1), 1))
    redis_client.config_resetstat()
    assert len(redis_store.sweep().messages) == jobs
    calls = redis_client.info("commandstats")["cmdstat_hmget"]["calls"]
    assert calls <= 4 * jobs, calls


def test_a_job_that_takes_its_keeper_along_again_and_again_is_no_exception(store: JobStore) -> None:
    gone = JobError(kind="sandbox", stage="rollout", message="the keeper is gone", retryable=True)
    message: Message | None = submit(store, "a")
    seen = []
    while message is not None:
        held = rollout_of(store, message)
        seen.append((held.attempt, held.losses, held.queue))
        message = store.restart(held, error=gone, keeper_lost=True, worked_s=1)
    beside, alone = "rollout.n1.b1", "solo.n1.b1"
    assert seen == [(1, 0, beside), (1, 1, beside), (1, 2, alone), (2, 3, alone), (3, 4, alone)]
    assert store.status("a").state == "failed"
    assert [one.job_id for one in store.dead().statuses] == ["a"]


def test_an_eval_that_needs_nothing_of_a_lost_keeper_is_repeated_alone(store: JobStore) -> None:
    gone = JobError(kind="sandbox", stage="eval", message="the keeper is gone", retryable=True)
    held = claim(store, store.commit(rollout(store, "a"), {}, next_stage="eval", queue="eval", worked_s=0))
    message = store.restart(held, error=gone, keeper_lost=True, worked_s=1)
    assert message is not None
    assert (message.stage, message.queue, store.status("a").attempt) == ("eval", "eval", 1)
