"""A small service for the supervisor's tests, run as a program: `python supervised.py NAME DIRECTORY`.

Each unit appends a line with its pid to DIRECTORY/<unit>.starts. DIRECTORY/version is what code this is: it is read
when the program starts, and `broken` does not start.
"""

import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

from prorl_celery.node.children import Call, Command
from prorl_celery.node.pause import pause
from prorl_celery.node.renewal import ADOPT, REHEARSE, Renewal, inherit
from prorl_celery.node.requests import Requests
from prorl_celery.node.supervisor import Supervisor
from prorl_celery.node.units import Unit

place = Path(sys.argv[2])
version = (place / "version").read_text() if (place / "version").exists() else ""
estate = inherit(int(sys.argv[4])) if sys.argv[3:4] == [ADOPT] else None
requests = Requests() if estate is None else Requests.adopt(estate.requests)


def note(name: str, text: str = "") -> None:
    with (place / f"{name}.starts").open("a") as file:
        file.write(f"{os.getpid()} {text}\n")


def lives(name: str, text: str = "") -> None:
    note(name, text)
    signal.pause()


def dies(name: str) -> int:
    note(name)
    return 3


def stubborn(name: str) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    note(name)
    while True:
        signal.pause()


def drains(name: str, text: str) -> None:
    signal.signal(signal.SIGTERM, lambda *_: None)
    note(name, text)
    signal.pause()
    note(f"{name}-told")
    signal.pause()
    note(f"{name}-told-again")


def writes_to_nobody(name: str) -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        os.write(write, b"x")
    except BrokenPipeError:
        lives(name, "BrokenPipeError")


def with_a_daemon(name: str) -> None:
    daemon = subprocess.Popen(
        ["/bin/sh", "-c", f"setsid sleep 1000 & echo $! > {place}/daemon.starts"], start_new_session=True
    )
    daemon.wait()
    lives(name)


def with_a_family(name: str) -> None:
    """A child that dies with us, whose own child, in a session of its own, does not."""
    program = f"setsid sleep 1000 & echo $! >> {place}/grandchild.starts; wait"
    subprocess.Popen(["setpriv", "--pdeathsig", "KILL", "/bin/sh", "-c", program])
    lives(name)


def beats(name: str, *, falls_silent: bool = False) -> None:
    """Beat until told to stop, or only once."""
    stopping = []
    signal.signal(signal.SIGTERM, lambda *_: stopping.append(1))
    requests.line.beat()
    note(name, version)
    while not stopping:
        pause(0.1)
        if not falls_silent:
            requests.line.beat()
    note(f"{name}-told")


def retires(name: str) -> None:
    """The first of this name takes no more jobs, and ends when DIRECTORY/end is there."""
    note(name)
    if len((place / f"{name}.starts").read_text().splitlines()) > 1:
        lives(f"{name}-next")
    requests.line.retire()
    while not (place / "end").exists():
        requests.line.beat()
        pause(0.05)


def retires_again_and_again(name: str) -> None:
    note(name)
    requests.line.retire()
    beats(name)


def asks(name: str) -> None:
    """Ask for a process of its own whenever DIRECTORY/ask is there."""
    note(name)
    while True:
        pause(0.05)
        if (place / "ask").exists():
            (place / "ask").unlink()
            requests.line.want_solo()


def runs_once(name: str) -> int:
    note(name)
    return int((place / "code").read_text()) if (place / "code").exists() else 0


def not_in_the_new_version(name: str) -> int:
    if version == "crashes":
        note(name, version)
        return 1
    beats(name)
    return 0


def unit(name, function, *arguments, **options):
    return Unit(name, lambda: Call(function, (name, *arguments)), **options)


class Boots:
    count = 0


def keeper() -> Call:
    Boots.count += 1
    return Call(lives, ("keeper", str(Boots.count)))


def cat() -> Command:
    return Command(("/bin/sh", "-c", f"echo $$ {version} >> {place}/keeper.starts; exec cat"), holds_stdin=True)


SILENCE_S = {"patient": 4.0}
SERVICES = {
    "patient": lambda: [unit("a", beats)],
    "beating": lambda: [unit("a", beats), unit("b", lambda name: beats(name, falls_silent=True)), unit("c", lives)],
    "retiring": lambda: [unit("a", retires), unit("b", lives)],
    "never at peace": lambda: [unit("a", retires_again_and_again)],
    "asked": lambda: [unit("a", asks), unit("solo", runs_once, asked_by="solo")],
    "renewed": lambda: [
        Unit(
            "keeper",
            cat,
            kept=True,
            stop_phase=1,
        ),
        unit("done", runs_once, once=True),
        unit("a", beats, after=("keeper", "done")),
        unit("b", not_in_the_new_version, after=("keeper",)),
        unit("gone", beats) if version == "" else unit("fresh", beats),
        unit("solo", runs_once, asked_by="solo"),
    ],
    "two": lambda: [
        unit("a", lives),
        Unit(
            "b",
            lambda: Command(("/bin/sh", "-c", f"echo $$ >> {place}/b.starts; exec cat"), holds_stdin=True),
        ),
    ],
    "looping": lambda: [unit("a", dies)],
    "pipes": lambda: [
        unit("a", writes_to_nobody),
        Unit(
            "b",
            lambda: Command(
                ("/bin/sh", "-c", f"cat /proc/$$/status > {place}/b.status; echo $$ >> {place}/b.starts; exec sleep 99")
            ),
        ),
    ],
    "unlogged": lambda: [unit("a", lives, log=place / "file" / "a.log"), unit("b", lives)],
    "stubborn": lambda: [unit("a", stubborn, grace_seconds=30.0), unit("b", lives)],
    "draining": lambda: [unit("a", drains, "", grace_seconds=60.0)],
    "impatient": lambda: [unit("a", stubborn, grace_seconds=0.3)],
    "daemon": lambda: [unit("a", with_a_daemon)],
    "family": lambda: [unit("a", with_a_family), unit("b", lives)],
    "boots": lambda: [
        Unit("keeper", keeper, replaces=("stage",)),
        Unit(
            "stage",
            lambda: Call(drains, ("stage", str(Boots.count))),
            after=("keeper",),
            grace_seconds=2.0,
        ),
    ],
    "vital": lambda: [unit("a", lives), unit("check", dies, once=True, vital=True)],
    "ordered": lambda: [
        unit("late", lives, after=("early",), stop_phase=0),
        unit("early", lives, probe=lambda: (place / "go").exists(), stop_phase=1),
    ],
}

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    if version == "broken":
        sys.exit(3)
    if sys.argv[3:4] == [REHEARSE]:
        sys.exit(0)
    lock = os.open(place / "lock", os.O_RDWR | os.O_CREAT) if estate is None else estate.descriptors["lock"]
    carried = {"times": 0 if estate is None else estate.carried["times"] + 1}
    renewal = Renewal(lambda: carried, {"lock": lock}, place / "supervisor.json", estate=estate)
    units = SERVICES[sys.argv[1]]()
    code = Supervisor(units, requests=requests, silence_seconds=SILENCE_S.get(sys.argv[1], 1.0), renewal=renewal).run()
    os.fstat(lock)
    note("ends", f"{carried['times']}")
    sys.exit(code)
