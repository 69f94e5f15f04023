"""The doctor's examinations: each looks at one thing, says what it saw, and what would help.

machine      the machine, Redis and the extras
sandboxes    what sandboxes of any kind need
containers   Apptainer or Singularity, and what it can do here
limits       what holds a sandbox to its memory, CPU and processes
finding      what an examination gives
"""

from __future__ import annotations

from prorl_celery.cli.examination.containers import examine_containers
from prorl_celery.cli.examination.finding import Finding
from prorl_celery.cli.examination.limits import examine_limits
from prorl_celery.cli.examination.machine import examine_extras, examine_needs
from prorl_celery.cli.examination.sandboxes import examine_sandboxes
from prorl_celery.settings import Settings

__all__ = ["Finding", "examine"]


def examine(settings: Settings) -> list[Finding]:
    """All findings. Takes a few seconds; changes nothing."""
    return [
        *examine_needs(settings),
        *examine_sandboxes(settings),
        *examine_limits(settings),
        *examine_containers(settings),
        *examine_extras(settings),
    ]
