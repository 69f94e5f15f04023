"""A small service for the supervisor's tests, run as a program: `python supervised.py NAME DIRECTORY`.

Each unit appends a line with its pid to DIRECTORY/<unit>.starts.
"""

import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

from prorl_celery.node.children import Call, Command
from prorl_celery.node.supervisor import Supervisor, Unit

place = Path(sys.argv[2])


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


def unit(name, function, *arguments, **options):
    return Unit(name, lambda: Call(function, (name, *arguments)), **options)


class Boots:
    count = 0


def keeper() -> Call:
    Boots.count += 1
    return Call(lives, ("keeper", str(Boots.count)))


SERVICES = {
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
    sys.exit(Supervisor(SERVICES[sys.argv[1]]()).run())
