"""Escapes: outliving the sandbox."""

from __future__ import annotations

import secrets

from jails import Jail, marked

from prorl_celery.node.pause import until
from prorl_celery.sandbox.session import LiveSandbox

DAEMON = """
import os, signal, sys
for number in range(1, 65):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
os.chdir("/")
for descriptor in range(256):
    try: os.close(descriptor)
    except OSError: pass
while True:
    if not os.fork():
        os.setsid()
        os.execv("/bin/bash", [sys.argv[1], "-c", "trap '' HUP TERM INT; while :; do sleep 1; done"])
    os.waitpid(-1, 0)
"""


def plant(sandbox: LiveSandbox, mark: str) -> None:
    """Daemons by every way a shell and a program have."""
    sandbox.files.write("/workspace/daemon.py", DAEMON.encode())
    sandbox.shell.run(
        f"python3 /workspace/daemon.py {mark}; (setsid bash -c 'exec -a {mark} sleep 1000' &); "
        f"nohup bash -c 'exec -a {mark} sleep 1000' >/dev/null 2>&1 & disown -a; "
        f"unshare --user --pid --fork bash -c 'exec -a {mark} sleep 1000' & "
        f"setsid unshare --user --map-root-user --net --pid --fork bash -c 'exec -a {mark} sleep 1000' & true",
        timeout=30,
    )
    assert until(lambda: len(marked(mark)) >= 3, 30, every=0.05)


def test_a_daemon_does_not_outlive_its_sandbox(jail: Jail):
    mark = f"mark{secrets.token_hex(6)}"
    sandbox = jail.start()
    plant(sandbox, mark)
    sandbox.stop()
    assert marked(mark) == []


def test_a_daemon_does_not_outlive_a_keeper_that_is_killed(jail: Jail):
    mark = f"mark{secrets.token_hex(6)}"
    with jail.another() as own:
        plant(own.sandbox, mark)
        own.keeper.kill()
        assert until(lambda: marked(mark) == [], 30, every=0.05)
