"""F13, F24 to F26 and F28: what the broker may do with messages."""

from __future__ import annotations

from typing import Any

import pytest
from e2e_service import eventually
from fault_jobs import hurt_job, wait_job
from fault_service import WITHIN_S, FaultService, stopped

from prorl_celery.app import EXCHANGE, Publisher, make_app, queue_named
from prorl_celery.checking import check, repair
from prorl_celery.jobs.messages import Message
from prorl_celery.jobs.models import STAGES


@pytest.fixture(scope="module")
def publisher(hurt: FaultService) -> Publisher:
    return Publisher(make_app(hurt.settings))


def noted(service: FaultService, job_id: str) -> dict[str, int]:
    """How often each stage of a `hurt_job` began."""
    files = {stage: service.marks / f"{job_id}.{stage}" for stage in STAGES}
    return {stage: len(file.read_text().splitlines()) if file.exists() else 0 for stage, file in files.items()}


def well_behaved(job_id: str) -> dict[str, Any]:
    return hurt_job(job_id, "nothing", stage="never")


def test_f24_a_message_delivered_twice_at_once_is_worked_off_once(service: FaultService, publisher: Publisher) -> None:
    ids = [f"f24-{n}" for n in range(12)]
    with stopped(*service.stage_children("init")):
        service.submit(map(well_behaved, ids))
        publisher.publish_all(Message("init", "init", job_id, 0, 5) for job_id in ids for _ in range(4))
    assert service.states(ids) == {"completed": 12}, service.told(ids)
    assert [noted(service, i) for i in ids] == [dict.fromkeys(STAGES, 1)] * 12


def test_f25_a_message_delivered_after_the_job_is_done_changes_nothing(
    service: FaultService, publisher: Publisher
) -> None:
    [job_id] = service.submit([well_behaved("f25")])
    assert service.states([job_id]) == {"completed": 1}
    before = service.record(job_id)
    publisher.publish_all(Message(stage, stage, job_id, fence, 5) for stage in STAGES for fence in range(5))
    assert eventually(lambda: not any(service.redis.llen(f"{stage}\x06\x163") for stage in STAGES), WITHIN_S)
    [other] = service.submit([well_behaved("f25-behind")])
    assert service.states([other]) == {"completed": 1}
    assert service.record(job_id) == before
    assert noted(service, job_id) == dict.fromkeys(STAGES, 1)


def test_f26_a_visibility_time_out_that_is_shorter_than_the_job_doubles_messages_and_no_work(
    service: FaultService,
) -> None:
    ids = service.submit([hurt_job(f"f26-{n}", "block", seconds=3.0) for n in range(4)])
    service.await_stage(ids, "rollout")
    app = make_app(service.settings)
    unacked = service.redis.zcard("unacked_index")
    assert unacked >= 4, "messages of running jobs are not acknowledged"
    with app.connection_for_read() as connection:
        # What a participant does for whom the messages of others have been out for too long.
        channel = connection.default_channel
        channel.visibility_timeout = 0
        channel.qos.restore_visible(num=100)
    assert eventually(lambda: service.redis.zcard("unacked_index") < unacked, WITHIN_S)
    assert service.states(ids) == {"completed": 4}, service.told(ids)
    assert [noted(service, i) for i in ids] == [dict.fromkeys(STAGES, 1)] * 4


def test_f28_under_a_burst_what_is_under_way_ends_before_what_is_new_begins(service: FaultService) -> None:
    ids = service.submit([wait_job("init", 0.1, job_id=f"f28-{n}") for n in range(120)])
    assert eventually(lambda: service.client.service_status()["jobs"]["completed"] >= 8, WITHIN_S)
    [urgent] = service.submit([wait_job(job_id="f28-urgent", priority=9)])
    service.client.wait(urgent, timeout=WITHIN_S)
    jobs = service.client.service_status()["stages"]
    assert jobs["init"]["queued"] >= 20, "the urgent one has overtaken the burst"
    assert jobs["rollout"]["queued"] + jobs["eval"]["queued"] <= 8, "later stages keep up"
    assert service.states(ids) == {"completed": 120}
    order = [service.record(i)["finished"] for i in ids]
    assert sum(a > b for a, b in zip(order[:-8], order[8:], strict=True)) <= 4, "first come, first served"


def test_f13_a_message_of_another_version_ends_in_a_typed_failure_or_goes_back(service: FaultService) -> None:
    app = make_app(service.settings)

    def publish(name: str, job_id: str, fence: int, queue: str = "init") -> None:
        app.send_task(
            name, args=[job_id, fence], task_id=f"{job_id}/{fence}", queue=queue_named(queue), priority=3,
            ignore_result=True, exchange=EXCHANGE,
        )  # fmt: skip

    with stopped(*service.stage_children("init")):
        ids = service.submit([well_behaved(f"f13-{n}") for n in range(3)])
        publish("prorl.review", ids[0], 0)  # a stage of a later version
        publish("prorl.rollout", ids[1], 0)  # one that does not fit where the job is
        publish("somebody.else", ids[2], 0)
    assert service.states(ids) == {"completed": 3}, service.told(ids)
    assert [noted(service, i) for i in ids] == [dict.fromkeys(STAGES, 1)] * 3


def test_f13_a_job_in_a_stage_that_no_worker_knows_fails_with_a_typed_error(service: FaultService) -> None:
    with stopped(*service.stage_children("init")):
        [job_id] = service.submit([hurt_job("f13-stage", "nothing", stage="never", max_attempts=1)])
        # What an API of a later version would have written.
        service.redis.hset(f"prorl:job:{job_id}", "stage", "review")
        service.redis.zrem("prorl:index:queued:init", job_id)
        service.redis.zadd("prorl:index:queued:review", {job_id: int(service.record(job_id)["seq"])})
        make_app(service.settings).send_task(
            "prorl.review", args=[job_id, 0], task_id=f"{job_id}/0", queue=queue_named("init"), priority=3,
            ignore_result=True,
        )  # fmt: skip
    status = service.client.wait(job_id, timeout=WITHIN_S)
    assert (status.state, status.error and status.error.kind) == ("failed", "internal"), service.told([job_id])
    assert "review" in str(status.error)
    findings = check(service.redis, service.settings)
    assert [(finding.kind, finding.subject) for finding in findings] == [("broken-record", job_id)]
    assert repair(findings, service.redis, service.settings) == []


def test_a_queue_that_was_lost_with_its_messages_is_filled_again(service: FaultService) -> None:
    with stopped(*service.stage_children("init")):
        ids = service.submit([well_behaved(f"emptied-{n}") for n in range(5)])
        assert service.redis.delete("init\x06\x163") == 1
    assert service.states(ids) == {"completed": 5}, service.told(ids)
