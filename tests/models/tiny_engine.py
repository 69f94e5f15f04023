"""A vLLM server with the tiny model, as the tests ask it: its own word on ids, scores, counts and weights."""

from __future__ import annotations

import itertools
import secrets
import subprocess
import threading
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from prorl_celery.jobs.models import SamplingParams
from prorl_celery.llm.conversation import Conversation, open_conversation
from prorl_celery.llm.endpoint import Endpoint
from prorl_celery.llm.gate import Gate, Passage
from prorl_celery.llm.loop import ModelLoop
from prorl_celery.llm.request import ConversationRequest
from prorl_celery.node.pause import until
from prorl_celery.node.readiness import ask
from prorl_celery.node.vllm.install import RANDOM_MODEL, Prepared
from prorl_celery.node.vllm.server import VllmServer
from prorl_celery.sandbox.base import CancelSignal

MODEL = "tiny"
START_SECONDS = 500.0
CALL_SECONDS = 180.0
LONG = 3900
"""As many tokens as fit: seconds of sampling, for something to happen in."""
SOME_TOKENS = 40
SAME = 0.01
"""How far two log-probabilities of a token under one model may lie apart: 0.002 was seen in 3,900 tokens, for sampling
and scoring add up bfloat16 in other orders. Another model's differ by more."""
TRIES = 5
QUESTION = [{"role": "user", "content": "What is 2+3? Say <|im_end|> too."}]


class Engine:
    """One server."""

    def __init__(self, server: VllmServer) -> None:
        self.url = server.url
        self.model_dir = server.spec.prepared.model

    def post(self, path: str, **body: Any) -> Any:
        status, reply = ask(self.url + path, body=body, timeout=CALL_SECONDS)
        assert status == 200, (path, status, reply)
        return reply

    def complete(self, prompt: Sequence[int], **fields: Any) -> Any:
        body = {"model": MODEL, "prompt": list(prompt), "temperature": 0, "logprobs": 0, "return_token_ids": True}
        return self.post("/v1/completions", **{**body, **fields})

    def rescored(self, ids: Sequence[int]) -> list[float]:
        """The log-probability of each id but the first, given those before it; from no cache."""
        (choice,) = self.complete(ids, max_tokens=1, prompt_logprobs=0)["choices"]
        return [
            entry[str(token)]["logprob"] for token, entry in zip(ids[1:], choice["prompt_logprobs"][1:], strict=True)
        ]

    def count(self, name: str) -> int:
        """The sum of a metric's values."""
        with urllib.request.urlopen(self.url + "/metrics", timeout=30) as reply:
            lines = reply.read().decode().splitlines()
        return sum(int(float(line.split()[-1])) for line in lines if line.startswith(f"vllm:{name}{{"))

    @property
    def running(self) -> int:
        return self.count("num_requests_running")

    def load(self, weights: Path, version: int) -> None:
        self.post("/collective_rpc", method="reload_weights", kwargs={"weights_path": str(weights)})
        self.post("/update_weight_version", new_version=str(version))

    @contextmanager
    def with_weights(self, weights: Path) -> Iterator[None]:
        """Other weights for the time of the block; no cache of theirs is left."""
        self.load(weights, 1)
        try:
            yield
        finally:
            self.load(self.model_dir, 0)
            self.post("/reset_prefix_cache")

    @contextmanager
    def paused(self, mode: str) -> Iterator[None]:
        """As a trainer pauses it."""
        self.post(f"/pause?mode={mode}")
        try:
            yield
        finally:
            self.post("/resume")


class StepGate:
    """A gate in a test's hand: the version is what it says, and calls wait while it is shut."""

    def __init__(self, version: int) -> None:
        self.version = version
        self.opened = threading.Event()
        self.opened.set()
        self.passage: Passage | None = None
        self.calls = 0
        self._salt = secrets.token_hex(4)

    def salt(self, version: int) -> str:
        return f"v{version}.{self._salt}"

    @contextmanager
    def call(self, endpoint: Endpoint) -> Iterator[Passage]:
        assert self.opened.wait(CALL_SECONDS)
        self.passage = Passage(endpoint, self.version, self.salt(self.version))
        self.calls += 1
        yield self.passage
        self.passage = None


class Talks:
    """Makes conversations of ours with an engine; each has a prefix cache to itself."""

    def __init__(self, model_loop: ModelLoop, cancel: CancelSignal) -> None:
        self._loop = model_loop
        self._cancel = cancel
        self._numbers = itertools.count()

    def __call__(
        self,
        engine: Engine,
        kind: str = "vllm",
        *,
        mode: str = "tokens",
        messages: Sequence[dict[str, Any]] = QUESTION,
        tools: Sequence[dict[str, Any]] = (),
        gate: Gate | None = None,
        deadline: Callable[[], float] = lambda: CALL_SECONDS,
        **sampling: Any,
    ) -> Conversation:
        request = ConversationRequest(
            job_id=f"job-{next(self._numbers)}",
            messages=messages,
            tools=tools,
            sampling=SamplingParams.model_validate(sampling),
            model_loop=self._loop,
            cancel=self._cancel,
            deadline=deadline,
            gate=gate or StepGate(0),
        )
        return open_conversation(endpoint_of(engine, kind), request, mode=mode)


def endpoint_of(engine: Engine, kind: str = "vllm") -> Endpoint:
    return Endpoint(url=engine.url, model=MODEL, kind=kind, tokenizer=str(engine.model_dir))


def make_weights(prepared: Prepared, out: Path, seed: int, terseness: int) -> Path:
    """Other weights of the tiny model."""
    argv = [str(prepared.python), "-P", str(RANDOM_MODEL), str(out), str(seed), str(terseness)]
    environ = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HOME": str(out), "PATH": "/usr/bin:/bin"}
    subprocess.run(argv, check=True, env=environ, capture_output=True, timeout=CALL_SECONDS)
    return out


@contextmanager
def two_engines(prepared: Prepared, logs: Path) -> Iterator[tuple[Engine, Engine]]:
    """Two servers that start side by side."""
    over = threading.Event()
    ready: list[Future[Engine]] = [Future(), Future()]

    def serve(number: int) -> None:
        # One thread starts a server and lives as long as it: a guard ends with the thread that it was started by.
        try:
            log = logs / f"{number}.log"
            with VllmServer(prepared, log=log, ready_seconds=START_SECONDS, trainer_routes=True) as server:
                ready[number].set_result(Engine(server))
                over.wait()
        except BaseException as error:
            if ready[number].done():
                raise
            ready[number].set_exception(error)

    threads = [threading.Thread(target=serve, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    try:
        first, second = (one.result(START_SECONDS + 60.0) for one in ready)
        yield first, second
    finally:
        over.set()
        for thread in threads:
            thread.join(60.0)


def sampling_in_background(talk: Conversation) -> Future[Any]:
    """The conversation's next reply, sampled in a thread of its own."""
    outcome: Future[Any] = Future()

    def sample() -> None:
        try:
            outcome.set_result(talk.sample())
        except Exception as error:  # noqa: BLE001 - it is the test's to look at
            outcome.set_exception(error)

    threading.Thread(target=sample, daemon=True).start()
    return outcome


def under_way(engine: Engine, make: Callable[[int], Conversation]) -> Future[Any]:
    """A reply that is being sampled and has some tokens. `make(seed)`: one that ends early by chance is not it."""
    for seed in range(TRIES):
        before = engine.count("generation_tokens_total")
        reply = sampling_in_background(make(seed))
        wait_for(lambda: reply.done() or engine.count("generation_tokens_total") > before + SOME_TOKENS)  # noqa: B023
        if not reply.done():
            return reply
    raise AssertionError("every reply ended before it could be looked at")


def wait_for(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    assert until(condition, seconds, every=0.02)
