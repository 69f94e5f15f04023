"""The benchmark of the model side: how backends are given to jobs, and what that costs."""

from prorl_celery.bench.tokens.run import tokens

__all__ = ["tokens"]
