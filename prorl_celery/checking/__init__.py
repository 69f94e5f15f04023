"""The invariant checker: recounts everything that the store holds of jobs, and says what does not add up.

    findings = check(client, settings)              # [] where all is well
    repair(findings, client, settings)              # what is left after mending

It reads in bounded pages and may look at a live service: each page is one script, which never sees half of a change,
and what it finds counts only when it is seen again a moment later.
"""

from prorl_celery.checking.checker import check, repair
from prorl_celery.checking.finding import KINDS, Finding

__all__ = ["KINDS", "Finding", "check", "repair"]
