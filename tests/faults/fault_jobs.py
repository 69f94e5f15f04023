"""The jobs that faults are tried on."""

from __future__ import annotations

from typing import Any


def wait_job(stage: str = "rollout", seconds: float = 0.0, **fields: Any) -> dict[str, Any]:
    """A job without a sandbox whose one stage takes so long."""
    times = {f"{name}_s": seconds if name == stage else 0.0 for name in ("init", "rollout", "eval")}
    return {"instance": {"data_source": "wait", **times}, **fields}


def steps_job(*commands: str, steps: int, **fields: Any) -> dict[str, Any]:
    """A job whose agent runs these commands, one a turn; they write the numbers 1 to `steps` into /workspace/steps."""
    wanted = [str(number) for number in range(1, steps + 1)]
    instance = {"data_source": "steps", "commands": commands, "steps": wanted}
    return {"instance": instance, "sampling_params": {"model": "scripted"}, **fields}


def hurt_job(job_id: str, do: str, *, stage: str = "rollout", seconds: float = 600.0, **fields: Any) -> dict[str, Any]:
    """A job that does something bad in a stage, see `fault_handlers`. `job_id` must be new."""
    instance = {"data_source": "hurt", "do": do, "stage": stage, "seconds": seconds, "mark": job_id}
    return {"job_id": job_id, "instance": instance, **fields}


def nap_job(seconds: float, **fields: Any) -> dict[str, Any]:
    """A job with a sandbox whose rollout waits in a shell command."""
    return {"instance": {"data_source": "nap", "seconds": seconds}, **fields}
