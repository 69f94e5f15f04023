from concurrent.futures import ThreadPoolExecutor

import pytest
import redis
from redis_fixtures import complete, request, submit, to_eval, to_rollout

from prorl_celery.jobs.store import JobStore
from prorl_celery.jobs.turns import Turn, ids_array, logprobs_array
from prorl_celery.store import scripts


def test_results_come_in_order_of_finishing_and_pages_meet(store: JobStore) -> None:
    for number in range(7):
        complete(store, f"j{number}")
    seen, cursor = [], None
    while True:
        page = store.results(after=cursor, limit=3)
        if not page.results:
            break
        assert not page.truncated
        seen += [result.job_id for result in page.results]
        cursor = page.next
    assert seen == [f"j{number}" for number in range(7)]
    complete(store, "late")
    assert [result.job_id for result in store.results(after=cursor).results] == ["late"]


def test_an_empty_stream_gives_a_cursor_that_can_be_used(store: JobStore) -> None:
    page = store.results()
    complete(store, "a")
    again = store.results(after=page.next)
    assert [result.job_id for result in again.results] == ["a"]
    assert not again.truncated


def test_filters_by_tag_and_batch(store: JobStore) -> None:
    for number in range(6):
        complete(store, f"j{number}", tags={"odd": str(number % 2)})
    store.create([request("b0")], batch_id="step1")
    store.cancel("b0")
    assert [r.job_id for r in store.results(tag=("odd", "1"), limit=2).results] == ["j1", "j3"]
    assert [r.job_id for r in store.results(batch_id="step1").results] == ["b0"]
    nothing = store.results(tag=("odd", "2"))
    assert nothing.results == []
    assert store.results(after=nothing.next).results == []


def test_a_page_ends_at_its_bytes_but_holds_one_result(store: JobStore) -> None:
    for number in range(3):
        rollout = to_rollout(store, f"j{number}")
        many = 1000
        turn = Turn(
            index=0,
            delta_ids=ids_array(range(10)),
            sampled_ids=ids_array(range(many)),
            logprobs=logprobs_array([-0.5] * many),
            versions=ids_array([1] * many),
        )
        store.append_turn(rollout, turn)
        store.finish(rollout, state="timed_out", finish_reason="timeout", worked_s=0)
    first = store.results(max_bytes=1)
    assert [r.job_id for r in first.results] == ["j0"]
    second = store.results(after=first.next, max_bytes=70_000)
    assert [r.job_id for r in second.results] == ["j1", "j2"]


def test_what_compresses_well_weighs_what_it_is(store: JobStore) -> None:
    for job_id in ("a", "b", "c"):
        store.finish(
            to_eval(store, job_id),
            state="completed",
            finish_reason="stop",
            reward=1.0,
            artifacts={"log": "x" * 1_000_000},
            worked_s=0,
        )
    assert [one.job_id for one in store.results(max_bytes=2_100_000).results] == ["a", "b"]


def test_a_filter_that_leaves_nearly_all_out_costs_few_commands(
    redis_store: JobStore, redis_client: redis.Redis
) -> None:
    for number in range(200):
        redis_client.xadd("prorl:results", {"job": f"j{number}"})
    complete(redis_store, "wanted", tags={"run": "x"})
    before = redis_client.info("commandstats")["cmdstat_xrange"]["calls"] if _ranged(redis_client) else 0
    page = redis_store.results(limit=1, tag=("run", "x"))
    assert [one.job_id for one in page.results] == ["wanted"]
    assert redis_client.info("commandstats")["cmdstat_xrange"]["calls"] - before <= 2


def _ranged(client: redis.Redis) -> bool:
    return "cmdstat_xrange" in client.info("commandstats")


@pytest.mark.parametrize("cursor", ["", "x", "1", "1-2-3", "9" * 30 + "-0", "+"])
def test_a_cursor_not_of_ours_is_refused(store: JobStore, cursor: str) -> None:
    with pytest.raises(ValueError, match="is not a cursor"):
        store.results(after=cursor)


def test_a_stream_over_its_length_is_cut_and_old_cursors_say_so(
    redis_client: redis.Redis, redis_settings: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scripts, "RESULTS_KEPT", 100)
    store = JobStore(redis_client, redis_settings)  # type: ignore[arg-type]
    for chunk in range(2):
        store.create([request(f"j{chunk}-{number}") for number in range(600)])
        for number in range(600):
            store.cancel(f"j{chunk}-{number}")
    assert 100 <= redis_client.xlen("prorl:results") <= 1100
    assert store.results(after="0-1", limit=1).truncated
    fresh = store.results(limit=1000)
    assert not fresh.truncated
    assert fresh.results[-1].job_id == "j1-599"
    assert not store.results(after=fresh.next).truncated


def test_waiting_for_results_ends_when_one_comes(redis_store: JobStore) -> None:
    assert not redis_store.wait_results(None, timeout=0.05)
    rollout = to_rollout(redis_store)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(redis_store.wait_results, None, 30.0)
        redis_store.finish(rollout, state="failed", finish_reason="error", worked_s=0)
        assert waiting.result(timeout=40)
    after = redis_store.results().next
    assert not redis_store.wait_results(after, timeout=0.05)
    assert submit(redis_store, "b").fence == 0
    blocking = redis_store._blocking
    blocking.close()
    blocking.connection_pool.disconnect()
