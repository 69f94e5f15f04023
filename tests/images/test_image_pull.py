"""Images of data sets, pulled by the real program from a registry on loopback."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest
from image_registry import tar_of

from prorl_celery.errors import DiskFull
from prorl_celery.images import pull as pulling
from prorl_celery.images.pull import Registry as Source
from prorl_celery.images.pull import Wanted, pull
from prorl_celery.images.store import Manifest, manifest_of
from prorl_celery.images.tool import CREDENTIALS
from prorl_celery.sandbox import singularity
from prorl_celery.sandbox.image_check import check_image
from prorl_celery.sandbox.launch import sandbox_user
from prorl_celery.settings import Settings

pytestmark = pytest.mark.skipif(
    singularity.command() is None,
    reason="no singularity or apptainer on the PATH (deploy/images/install_apptainer.sh installs it on Debian 12)",
)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulling, "BACK_OFF_SECONDS", 0.01)


def of(registry) -> Source:
    return Source(source=f"docker://{registry.address}", https=False)


def wanted(*names: str) -> list[Wanted]:
    return [Wanted((name,)) for name in names]


def states(outcomes) -> dict[str, str]:
    return {outcome.name: outcome.state for outcome in outcomes}


def test_twenty_images_four_at_once_with_two_that_are_not_there(place, registry, tmp_path):
    def name(number: int) -> str:
        return f"xingyaoww/sweb.eval.x86_64.a_s_b-{number}"

    second = "godcherry/sweb.eval.x86_64.a_s_b-7"
    server = registry(*(name(n) for n in range(20) if n not in (3, 7, 11)), second)
    rows = tmp_path / "rows.jsonl"
    lines = [{"instance": {"instance_id": f"a__b-{n}"}} for n in range(20)] + [{"instance_id": "a__b-0"}]
    rows.write_text("".join(json.dumps(line) + "\n" for line in lines))
    arguments = ("pull", rows, "--jobs", "4", "--source", f"docker://{server.address}", "--no-https")
    told = place.run(*arguments)
    assert told.returncode == 1
    assert "18 pulled, 0 already there, 2 failed" in told.stdout
    assert "2 of 20 images failed" in told.stderr
    for number in (3, 11):
        assert f"{name(number)}: {name(number)}: " in told.stderr
        assert "404" in told.stderr
        log = place.data / "logs/images" / (name(number).replace("/", "+") + ".log")
        assert log.read_text().count("FATAL") == 2  # under both of its names
    files = [name(n).replace("/", "+") for n in range(20) if n not in (3, 11)]
    assert place.listing() == sorted(files + [f"{file}.json" for file in files])
    assert place.left_overs() == []
    for number in range(20):
        if number not in (3, 11):
            image = place.images / name(number).replace("/", "+")
            check_image(image, sandbox_user(Settings()))
            assert (image / "opt/name").read_text() == (second if number == 7 else name(number))
    found = Manifest.read(manifest_of(place.images / name(7).replace("/", "+")))
    assert found is not None
    assert (found.name, found.source) == (name(7), f"docker://{server.address}/{second}")

    server.asked.clear()
    again = place.run(*arguments)
    assert "0 pulled, 18 already there, 2 failed" in again.stdout
    asked = {f"{who}/sweb.eval.x86_64.a_s_b-{n}" for who in ("xingyaoww", "godcherry") for n in (3, 11)}
    assert set(server.asked) == asked


def test_an_interrupted_pull_leaves_what_is_complete_and_goes_on(place, registry):
    names = [f"team/i{number}" for number in range(8)]
    server = registry(*names)
    for name in names[4:]:
        server.hold(name)
    options = [part for name in names for part in ("--image", name)]
    arguments = ("pull", *options, "--jobs", "3", "--source", f"docker://{server.address}", "--no-https")
    process = place.start(*arguments)
    deadline = time.monotonic() + 60
    while sum(server.asked[name] for name in names[4:]) < 3 and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 130
    assert "Traceback" not in said
    assert asking(server.address) == []
    assert place.left_overs() == []
    assert place.listing() == sorted(f"team+i{n}{end}" for n in range(4) for end in ("", ".json"))
    server.release()
    told = place.run(*arguments)
    assert told.returncode == 0
    assert "4 pulled, 4 already there, 0 failed" in told.stdout
    assert all(server.asked[name] == 1 for name in names[:4])


def test_a_killed_pull_takes_its_children_along_and_goes_on(place, registry):
    server = registry("team/a")
    server.hold("team/a")
    arguments = ("pull", "--image", "team/a", "--source", f"docker://{server.address}", "--no-https")
    process = place.start(*arguments)
    deadline = time.monotonic() + 60
    while not server.asked["team/a"] and time.monotonic() < deadline:
        time.sleep(0.05)
    process.kill()
    process.communicate(timeout=60)
    while asking(server.address) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert asking(server.address) == []
    assert place.listing() == []
    server.release()
    assert place.run(*arguments).returncode == 0
    assert place.left_overs() == []


def asking(address: str) -> list[str]:
    """The processes that are given this address: those that pull from it."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if address.encode() in (entry / "cmdline").read_bytes():
                    found.append(entry.name)
            except OSError:
                continue
    return found


def test_what_may_pass_is_tried_again_a_few_times(builder, registry):
    server = registry("team/a", "team/b")
    server.fail("team/a", 5)  # the tool tries again by itself, which is not enough
    server.fail("team/b", 1000)
    outcomes = {outcome.name: outcome for outcome in pull(builder, wanted("team/a", "team/b"), of(server), jobs=2)}
    assert outcomes["team/a"].state == "pulled"
    assert outcomes["team/b"].state == "failed"
    assert "(4 attempts)" in outcomes["team/b"].reason
    assert outcomes["team/b"].log is not None
    assert outcomes["team/b"].log.exists()
    assert not builder.log("team/a").exists()


def test_an_account_is_taken_from_the_tools_own_variables_alone(builder, registry, monkeypatch):
    server = registry("team/a")
    server.account = ("me", "pass word")
    for name in CREDENTIALS:
        monkeypatch.delenv(name, raising=False)
    assert states(pull(builder, wanted("team/a"), of(server), jobs=1)) == {"team/a": "failed"}
    monkeypatch.setenv("APPTAINER_DOCKER_USERNAME", "me")
    monkeypatch.setenv("APPTAINER_DOCKER_PASSWORD", "pass word")
    assert states(pull(builder, wanted("team/a"), of(server), jobs=1)) == {"team/a": "pulled"}


def test_two_pulls_at_once_fetch_an_image_once(place, registry):
    server = registry("team/a")
    server.hold("team/a")
    arguments = ("pull", "--image", "team/a", "--source", f"docker://{server.address}", "--no-https")
    both = [place.start(*arguments) for _ in range(2)]
    deadline = time.monotonic() + 60
    while not server.asked["team/a"] and time.monotonic() < deadline:
        time.sleep(0.05)
    server.release()
    told = [process.communicate(timeout=120)[0] for process in both]
    assert sorted("1 already there" in text for text in told) == [False, True]
    assert server.asked["team/a"] == 1


def test_an_image_in_which_no_sandbox_could_start_fails(builder, registry, small_root, tmp_path):
    tree = tmp_path / "tree"
    subprocess.run(["cp", "-a", small_root, tree], check=True, timeout=60)
    (tree / "usr/bin/bash").unlink()
    server = registry()
    server.add("team/nobash", tar_of(tree))
    (outcome,) = pull(builder, wanted("team/nobash"), of(server), jobs=1)
    assert outcome.state == "failed"
    assert "no bash" in outcome.reason
    assert list(builder.store.images()) == []


def test_a_full_disk_ends_the_run_and_keeps_what_is_complete(builder, registry, monkeypatch):
    server = registry("team/a", "team/b", "team/c")
    build = type(builder.tool).build
    room = threading.Semaphore(1)

    def full(tool, arguments, **options):
        if not room.acquire(blocking=False):
            raise DiskFull("write /x: no space left on device")
        build(tool, arguments, **options)

    monkeypatch.setattr(type(builder.tool), "build", full)
    outcomes = pull(builder, wanted("team/a", "team/b", "team/c"), of(server), jobs=1)
    assert next(outcomes).state == "pulled"
    with pytest.raises(DiskFull, match=r"disk of .* is full"):
        next(outcomes)
    assert [path.name for path in builder.store.images()] == ["team+a"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts a small disk")
def test_a_disk_that_is_really_full_is_told_as_such(place, registry, borrowing_root, tmp_path):
    """In a mount namespace of its own, so that the machine's mounts stay as they are."""
    tree = tmp_path / "tree"
    subprocess.run(["cp", "-a", borrowing_root, tree], check=True, timeout=60)
    (tree / "opt/big").write_bytes(os.urandom(8 << 20))
    server = registry("team/little")
    server.add("team/big", tar_of(tree))
    place.images.mkdir()
    script = 'mount -t tmpfs -o size=6m,mode=755 tmpfs "$1"; shift; "$@"; code=$?; ls; exit $code'
    command = place.argv("pull", "--image", "team/little", "--image", "team/big", "--image", "team/x", "--jobs", "1")
    command += ["--source", f"docker://{server.address}", "--no-https"]
    told = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, "sh", place.images, *command],
        env=place.environ, cwd=place.data, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert told.returncode == 1
    assert f"prorl: the disk of {place.images} is full" in told.stderr
    assert "team/little: pulled" in told.stdout
    assert "team/x" not in server.asked
