"""F14 and F16 to F23: Redis is killed, stands still, forgets, fills up, turns callers away; the wire to it fails.

One Redis with an append-only file, and a wire that all of the service goes through. A job under way is neither lost
nor charged by any of it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import redis
from e2e_service import eventually
from fault_jobs import steps_job, wait_job
from fault_redis import AOF, Server, Wire, served, wire_to
from fault_service import WITHIN_S, FaultService, hurt_service

from prorl_celery.client import ApiError, Client
from prorl_celery.jobs.models import TERMINAL
from prorl_celery.testing import ScriptedBackend

STEPS = [f"echo {n} >> steps" for n in range(1, 6)]
ENDED_S = 60.0
"""For all jobs together; a quarter of it is the rule."""
BROKERS = ("init*", "rollout*", "eval*", "solo*", "_kombu.*", "unacked*")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with served(Server(tmp_path_factory.mktemp("redis"), *AOF)) as server:
        yield server


@pytest.fixture(scope="module")
def wire(server: Server) -> Iterator[Wire]:
    with wire_to(server) as wire:
        yield wire


@pytest.fixture(scope="module")
def hurt(
    tmp_path_factory: pytest.TempPathFactory, backend: ScriptedBackend, server: Server, wire: Wire
) -> Iterator[FaultService]:
    """The module's service: it reaches Redis by the wire, the test without."""
    with hurt_service(tmp_path_factory.mktemp("hurt"), PRORL_REDIS_URL=wire.url, PRORL_LEASE="6") as service:
        service.redis_url = server.url
        service.add_backend(backend)
        yield service


def under_way(service: FaultService, name: str) -> list[str]:
    """Jobs of which some are in init, some in rollout with a sandbox or without, some in eval, and some wait."""
    jobs = [
        wait_job(stage, 1.5, job_id=f"{name}-{stage}-{n}") for stage in ("init", "rollout", "eval") for n in range(3)
    ]
    jobs += [steps_job(*STEPS, steps=len(STEPS), job_id=f"{name}-steps-{n}") for n in range(4)]
    ids = service.submit(jobs)
    steps = [one for one in ids if "-steps-" in one]
    service.await_turns(steps[:1], 1)
    return ids


def assert_unharmed(service: FaultService, ids: Sequence[str]) -> None:
    """All completed, none was charged, none was even lost; agents' turns are there once."""

    def seen(field: str) -> dict[str, str]:
        return {one: service.record(one).get(field, "0") for one in ids}

    assert eventually(lambda: set(seen("state").values()) <= TERMINAL, ENDED_S), service.told(ids)
    assert set(seen("state").values()) == {"completed"}, service.told(ids)
    assert set(seen("attempt").values()) == {"1"}, service.told(ids)
    assert set(seen("lost_total").values()) == {"0"}, service.told(ids)
    for one in ids:
        if "-steps-" in one:
            result = service.client.result(one)
            assert (result.reward, len(result.turns)) == (1.0, len(STEPS) + 1), service.told([one])


def submit_in_the_end(service: FaultService, *jobs: dict[str, Any]) -> None:
    """Submit as a trainer does that was told to try again."""

    def accepted() -> bool:
        try:
            return len(service.submit(jobs)) == len(jobs)
        except (ApiError, OSError):
            return False

    assert eventually(accepted, WITHIN_S), service.logs()


@contextmanager
def config(server: Server, **values: str | int) -> Iterator[None]:
    """Settings of the server for the time of the block."""
    with server.client() as client:
        before = {name: client.config_get(name)[name] for name in values}
        for name, value in values.items():
            client.config_set(name, value)
        try:
            yield
        finally:
            for name, value in before.items():
                client.config_set(name, value)


@pytest.mark.parametrize("away_s", [0, *(pytest.param(s, marks=pytest.mark.slow) for s in (7, 60))])
def test_f14_redis_killed_under_load_and_back_with_its_file_has_lost_nothing(
    service: FaultService, server: Server, away_s: int
) -> None:
    ids = under_way(service, f"f14-{away_s}")
    server.kill()
    threading.Event().wait(away_s)
    server.start()
    submit_in_the_end(service, *(wait_job(job_id=f"f14-{away_s}-after-{n}") for n in range(4)))
    assert_unharmed(service, [*ids, *(f"f14-{away_s}-after-{n}" for n in range(4))])


@pytest.mark.slow
def test_f14_redis_killed_again_and_again_while_jobs_come_in(service: FaultService, server: Server) -> None:
    stop, accepted = threading.Event(), []

    def trainer() -> None:
        while not stop.is_set():
            jobs = [wait_job("rollout", 0.2, job_id=f"f14-again-{len(accepted) + n}") for n in range(4)]
            submit_in_the_end(service, *jobs)
            accepted.extend(str(job["job_id"]) for job in jobs)

    thread = threading.Thread(target=trainer)
    thread.start()
    for _ in range(6):
        threading.Event().wait(2.0)
        server.restart()
    stop.set()
    thread.join(2 * WITHIN_S)
    assert len(accepted) >= 12
    assert_unharmed(service, accepted)


def test_f16_a_stall_of_eight_seconds_charges_nobody(service: FaultService, server: Server) -> None:
    ids = under_way(service, "f16")
    with server.frozen():
        threading.Event().wait(8.0)
    assert_unharmed(service, ids)


def test_f17_a_redis_that_forgets_its_scripts_is_told_them_again(service: FaultService) -> None:
    ids = under_way(service, "f17")
    ended = threading.Event()

    def forget() -> None:
        while not ended.wait(0.02):
            service.redis.script_flush()

    thread = threading.Thread(target=forget)
    thread.start()
    try:
        assert_unharmed(service, ids)
    finally:
        ended.set()
        thread.join(WITHIN_S)


def test_f18_a_redis_that_is_nearly_full_refuses_new_jobs_and_ends_the_old(
    service: FaultService, server: Server
) -> None:
    ids = under_way(service, "f18")
    service.redis.setrange("ballast", 64 << 20, b"x")
    with config(server, maxmemory=service.redis.info("memory")["used_memory"] + (10 << 20)):
        threading.Event().wait(2.0)  # the API asks once a second
        with Client(service.url, patience=0.0) as hasty, pytest.raises(ApiError, match="maxmemory") as refused:
            hasty.submit(wait_job(job_id="f18-new"))
        assert (refused.value.status, refused.value.problem["type"]) == (429, "urn:prorl:problem:store-full")
        assert_unharmed(service, ids)
    service.redis.delete("ballast")
    submit_in_the_end(service, wait_job(job_id="f18-relieved"))
    assert_unharmed(service, ["f18-relieved"])


@pytest.mark.slow
def test_f18_a_redis_that_is_full_to_the_brim_stops_no_worker(service: FaultService, server: Server) -> None:
    ids = under_way(service, "f18-brim")
    workers = {stage: set(service.stage_children(stage)) for stage in ("init", "rollout", "eval")}
    with config(server, maxmemory=1):
        threading.Event().wait(4.0)
        service.client.status(ids[0])
    assert_unharmed(service, ids)
    assert {stage: set(service.stage_children(stage)) for stage in workers} == workers


def test_f19_replies_that_are_cut_in_the_middle_are_asked_for_again(service: FaultService, wire: Wire) -> None:
    ids = under_way(service, "f19")
    before = wire.replies_cut
    for _ in range(12):  # for less than a lease: the sweep's replies are not the ones that are cut
        wire.cut_replies(4)
        threading.Event().wait(0.12)
    wire.cut_replies(0)
    wire.reset_all()
    assert_unharmed(service, ids)
    assert wire.replies_cut - before >= 20


@pytest.mark.slow
@pytest.mark.parametrize("silent_s", [6, pytest.param(40, marks=pytest.mark.slow)])
def test_f20_connections_whose_other_end_is_gone_without_a_word_are_given_up(
    service: FaultService, wire: Wire, silent_s: int
) -> None:
    ids = under_way(service, f"f20-{silent_s}")
    with wire.silent():
        threading.Event().wait(silent_s)
    began = time.monotonic()
    submit_in_the_end(service, wait_job(job_id=f"f20-{silent_s}-after"))
    assert_unharmed(service, [*ids, f"f20-{silent_s}-after"])
    print(f"all ended {time.monotonic() - began:.1f} s after the wire was whole")


@pytest.mark.slow
def test_f21_a_far_redis_slows_jobs_by_a_bounded_number_of_round_trips(service: FaultService, wire: Wire) -> None:
    def seconds(name: str, count: int) -> float:
        began = time.monotonic()
        ids = service.submit([wait_job(job_id=f"{name}-{n}") for n in range(count)])
        assert_unharmed(service, ids)
        return time.monotonic() - began

    near = seconds("f21-near", 1)
    wire.delay_s = 0.1
    try:
        threading.Event().wait(1.0)  # what was sent before has arrived
        alone = seconds("f21-alone", 1)
        many = seconds("f21-many", 12)
    finally:
        wire.delay_s = 0.0
    trips = (alone - near) / 0.2
    print(f"one job: {near:.2f} s near, {alone:.2f} s at 200 ms: about {trips:.0f} round trips; 12 jobs: {many:.1f} s")
    assert trips < 60
    assert many < 12 * alone / 2, "jobs do not wait for each other's round trips"


def test_f22_a_redis_that_takes_no_more_clients_is_waited_for(service: FaultService, server: Server) -> None:
    ids = under_way(service, "f22")
    with contextlib.ExitStack() as ending:
        client = ending.enter_context(server.client())
        client.ping()
        ending.enter_context(config(server, maxclients=client.info("clients")["connected_clients"] + 1))
        client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        deadline, crowd = time.monotonic() + 4.0, 0
        while time.monotonic() < deadline:  # take every place that comes free
            other = redis.Redis.from_url(server.url, socket_timeout=5.0)
            with contextlib.suppress(redis.ConnectionError):
                other.connection_pool.get_connection().connect()
                crowd += 1
            ending.callback(other.close)
        assert crowd > 0
    assert_unharmed(service, ids)


def test_f23_a_broker_that_was_emptied_gets_its_messages_again(service: FaultService) -> None:
    ids = [*under_way(service, "f23"), *service.submit([wait_job("init", 0.5, job_id=f"f23-{n}") for n in range(20)])]
    gone = [key for form in BROKERS for key in service.redis.keys(form)]
    assert b"init" in b" ".join(gone)
    service.redis.delete(*gone)
    assert_unharmed(service, ids)


@pytest.mark.slow
def test_a_redis_that_was_made_a_replica_for_a_while_is_waited_for(service: FaultService) -> None:
    ids = under_way(service, "readonly")
    service.redis.execute_command("REPLICAOF", "127.0.0.1", "1")
    try:
        threading.Event().wait(2.5)
    finally:
        service.redis.execute_command("REPLICAOF", "NO", "ONE")
    assert_unharmed(service, ids)


@pytest.mark.slow
def test_a_user_whose_rights_are_taken_for_a_while_is_told_so_and_goes_on(service: FaultService) -> None:
    ids = under_way(service, "noperm")
    service.redis.execute_command("ACL", "SETUSER", "default", "-evalsha", "-eval", "-lpush", "-brpop")
    try:
        with Client(service.url, patience=0.0) as hasty, pytest.raises(ApiError) as refused:
            hasty.submit(wait_job(job_id="noperm-new"))
        assert refused.value.status == 503
        threading.Event().wait(2.5)
    finally:
        service.redis.execute_command("ACL", "SETUSER", "default", "+@all")
    assert_unharmed(service, ids)


@pytest.mark.slow
def test_connections_are_bounded_named_and_counted(service: FaultService) -> None:
    service.states(service.submit([wait_job("rollout", 0.1, job_id=f"count-{n}") for n in range(40)]))
    threading.Event().wait(3.0)  # the next beat, or the one after it
    names = [str(one["name"]) for one in service.redis.client_list()]
    mine = [name.split("/") for name in names if name.startswith("prorl/")]
    assert {"api", "upkeep", "init-0", "rollout-0", "rollout-1", "eval-0"} <= {name[2] for name in mine}
    told = {p["name"]: p["connections"] for node in service.client.nodes() for p in node["processes"]}
    print(Counter(tuple(name[2:]) for name in mine), told)
    for process, count in told.items():
        seen = sum(name[2] == process for name in mine)
        assert 0 < count <= 2 * 8 + 16, (process, count)  # the slots' and the broker's, the beat's, the listener's
        assert abs(seen - count) <= 8, (process, seen, count)  # told a beat ago
