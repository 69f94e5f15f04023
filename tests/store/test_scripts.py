import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import redis
from redis_fixtures import complete, submit, to_rollout

from prorl_celery.errors import StoreUnavailable
from prorl_celery.jobs.store import JobStore
from prorl_celery.settings import Settings
from prorl_celery.store.clients import reaching_redis, script_client
from prorl_celery.store.scripts import FOLDER, LIBRARY, Scripts

SCRIPTS = sorted(path for path in FOLDER.glob("*.lua") if path.stem not in (*LIBRARY, "checking", "settling"))


def test_a_server_that_forgot_the_scripts_is_sent_them_again(redis_store: JobStore, redis_client: redis.Redis) -> None:
    submit(redis_store, "a")
    redis_client.script_flush()
    submit(redis_store, "b")
    assert redis_store.counts()["queued"] == 2


def test_scripts_of_new_code_on_the_disk_do_not_meet_the_old_program(tmp_path: Path) -> None:
    store = tmp_path / "prorl_celery" / "store"
    shutil.copytree(FOLDER.parents[1], tmp_path / "prorl_celery", ignore=shutil.ignore_patterns("__pycache__"))
    program = """
import shutil, sys
from prorl_celery.store.scripts import FOLDER, _script
assert str(FOLDER) == sys.argv[1], FOLDER
shutil.rmtree(FOLDER)
print(len(_script("create")[1]) > 1000)
"""
    command = [sys.executable, "-P", "-c", program, str(store / "lua")]
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.stdout == "True\n", done.stderr


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_every_script_says_what_it_is_given_and_gives(path: Path) -> None:
    head = path.read_text().split("]]")[0]
    assert head.startswith("--[[")
    assert "Returns" in head
    assert "Writes" in head
    body = path.read_text().split("]]", 1)[1]
    used = {int(number) for number in re.findall(r"\barg\((\d+)\)", body)}
    described = {
        int(number) for line in re.findall(r"^arg ([\d, ]+)", head, re.M) for number in re.findall(r"\d+", line)
    }
    assert used <= described


def test_every_key_of_a_jobs_life_has_a_documented_form(redis_store: JobStore, redis_client: redis.Redis) -> None:
    complete(redis_store, "a")
    to_rollout(redis_store, "b")
    submit(redis_store, "c")
    redis_store.sweep()
    redis_store.lead("p")
    assert [key for key in redis_client.keys("*") if not redis_store.keys.known(key.decode())] == []


def test_redis_away_is_store_unavailable(tmp_path: Path) -> None:
    settings = Settings(redis_url=f"unix://{tmp_path}/nothing.sock")
    client = script_client(settings)
    with pytest.raises(StoreUnavailable, match="did not answer"):
        Scripts(client, settings).run("lead", "p", 1000)
    with pytest.raises(StoreUnavailable):
        JobStore(client, settings).counts()


def test_a_full_redis_is_store_unavailable_and_writes_nothing(
    redis_client: redis.Redis, redis_settings: Settings
) -> None:
    redis_client.config_set("maxmemory", "1")
    try:
        with pytest.raises(StoreUnavailable, match="takes no writes"):
            Scripts(redis_client, redis_settings).run("create", "op", 10, "", "", "a", "f", 5, 3, 1, "", "", b"spec")
    finally:
        redis_client.config_set("maxmemory", "0")
    assert redis_client.dbsize() == 0


@pytest.mark.parametrize(
    "answer",
    [
        "NOREPLICAS Not enough good replicas to write.",
        "Error running script (call to f_1): @user_script:9: @user_script: 9: -READONLY You can't write against a "
        "read only replica.",
        "Error running script (call to f_1): @user_script:9: @user_script: 9: -OOM command not allowed.",
        "MISCONF Errors writing to the AOF file: No space left on device",
        "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
        "Command # 1 (GET a) of pipeline caused error: BUSY Redis is busy running a script.",
    ],
)
def test_a_refusal_for_the_servers_own_reasons_is_store_unavailable(answer: str) -> None:
    with pytest.raises(StoreUnavailable), reaching_redis():
        raise redis.ResponseError(answer)


def test_a_refused_command_is_a_bug_and_stays_one() -> None:
    with pytest.raises(redis.ResponseError), reaching_redis():
        raise redis.ResponseError("WRONGTYPE Operation against a key holding the wrong kind of value")
