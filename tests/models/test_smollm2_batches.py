"""A batch on a real model: of one-digit additions SmolLM2 gets some right at times, and those make informative groups.

Slow: `make test-smollm2`, with `VLLM_TEST_DIR`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from e2e_service import Service, running

from prorl_celery.node.vllm.server import VllmServer

pytestmark = pytest.mark.slow

TARGET, SAMPLES = 12, 8


@pytest.fixture(scope="module")
def service(vllm: VllmServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    slots = ("--rollout", "16", "--init", "4", "--eval", "4")
    with running(tmp_path_factory.mktemp("smollm2-batch") / "data", *slots) as service:
        spec = {"url": vllm.url, "model": "smollm2", "tokenizer": str(vllm.spec.prepared.model)}
        service.client.add_backend(**spec, policy_version=0)
        yield service


def additions() -> Iterator[dict[str, Any]]:
    for number in range(100):
        left, right = divmod(37 * number % 100, 10)
        problem = f"What is {left} + {right}? Answer with a number only."
        instance = {"data_source": "math", "problem": problem, "answer": left + right}
        yield {"prompt_id": f"{left}+{right}", "instance": instance}


def test_a_batch_of_one_digit_additions_has_twelve_informative_groups_and_no_uniform_one(service: Service) -> None:
    sampling = {"model": "smollm2", "temperature": 1.0, "max_tokens": 16, "seed": 1}
    request = {
        "batch_id": "additions", "target_groups": TARGET, "samples_per_group": SAMPLES, "max_inflight_jobs": 64,
        "defaults": {"sampling_params": sampling, "agent": {"tools": []}},
    }  # fmt: skip
    groups = list(service.client.batch(request, additions()))
    status = service.client.batches.status("additions")
    print(f"{status.groups.model_dump()} rate {status.informative_rate} waste {status.waste.model_dump()}")
    assert (status.state, status.groups.informative) == ("complete", TARGET), service.logs()
    assert len({group.prompt_id for group in groups}) == len(groups) == TARGET
    for group in groups:
        rewards = [result["reward"] for result in group.results]
        assert len(rewards) == SAMPLES
        assert set(rewards) == {0.0, 1.0}, (group.prompt_id, rewards)
        for result in group.results:
            (segment,) = result["segments"]
            assert sum(segment["loss_mask"]) > 0
            assert {v for v, mine in zip(segment["policy_versions"], segment["loss_mask"], strict=True) if mine} == {0}
