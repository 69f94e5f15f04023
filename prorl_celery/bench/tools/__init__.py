"""`prorl bench tools`: what an agent's commands and cells cost through our tools, beside others' ways and the floor."""

from prorl_celery.bench.tools.run import tools

__all__ = ["tools"]
