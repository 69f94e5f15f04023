"""Task kinds: one file each. `Handler` is what a new one subclasses, `load_handlers` finds them all."""

from prorl_celery.handlers.base import EvalContext, Handler, InitContext, RolloutContext, SandboxRequest, require
from prorl_celery.handlers.registry import HandlerRegistry, load_handlers

__all__ = [
    "EvalContext",
    "Handler",
    "HandlerRegistry",
    "InitContext",
    "RolloutContext",
    "SandboxRequest",
    "load_handlers",
    "require",
]
