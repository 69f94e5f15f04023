"""An upkeep under a supervisor, run as a program: `python upkeep_program.py BOOT`. It prints what it is asked for."""

import os
import select
import signal
import sys

from prorl_celery.node.children import Call, launch
from prorl_celery.node.requests import Requests
from prorl_celery.node.upkeep import main
from prorl_celery.settings import Settings

requests = Requests()
child = launch(Call(main, (sys.argv[1], Settings.from_env(), requests.line)), name="upkeep")
stopped: list[int] = []
signal.signal(signal.SIGTERM, lambda *_: stopped.append(signal.SIGTERM))
signal.signal(signal.SIGINT, lambda *_: stopped.append(signal.SIGINT))
poll = select.poll()
poll.register(requests.descriptor, select.POLLIN)
last = ""
while not stopped:
    poll.poll(100)
    for request in requests.read():
        if request.pid == child.pid and request.op != last:
            last = request.op
            print(last, flush=True)
os.kill(child.pid, stopped[0])
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child.pid, 0)[1]))
