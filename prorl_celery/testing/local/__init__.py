"""One job at a time in this process, without Redis: the stages' own code over a store in memory.

`LocalRunner` runs it. The stages, the agent's loop, the tools and the sandboxes (a real keeper, started for them) are
those of the service; the store, the backends' list and the policy's state are stand-ins for one job.
"""

from prorl_celery.testing.local.runner import LocalRunner, Outcome

__all__ = ["LocalRunner", "Outcome"]
