"""Benchmarks at sizes that say nothing about speed: the tests see that each family runs and names its figures."""

from __future__ import annotations

import pytest

from prorl_celery.bench.sizes import Sizes


@pytest.fixture
def tiny() -> Sizes:
    return Sizes(
        rounds=1,
        noops=12,
        counted=(12,),
        stage_s=(0.1, 0.4, 0.2),
        stage_slots=(1, 4, 2),
        waits=16,
        toys=4,
        steady=6,
        alone=1,
        model_s=0.05,
        cancels=2,
        crowd=4,
        crowd_turns=8,
        crowd_model_s=0.2,
        commands=10,
        subprocess_commands=2,
        container_commands=1,
        swerex_commands=2,
        tmux_commands=1,
        slow_output_s=0.0,
        starts=2,
        at_once=3,
        bursts=1,
        cells=5,
        gateway_cells=2,
        first_cells=1,
        balanced=300,
        acquires=64,
        calls=3,
        kinds_s=0.01,
        many_cases=40,
        asked=3,
    )
