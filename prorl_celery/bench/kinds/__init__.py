"""`prorl bench kinds`: what grading costs, kind by kind, and what our sandboxes and calls add to the bare ones."""

from prorl_celery.bench.kinds.run import kinds

__all__ = ["kinds"]
