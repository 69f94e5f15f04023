"""A test kit for handlers: subclass `HandlerContract`, and pytest checks a handler against the contract of
`prorl_celery/handlers/base.py`, in real sandboxes, without a service.

    from prorl_celery.testing.kit import MISSING, HandlerContract

    class TestMine(HandlerContract):
        handler = Mine
        instance = {"data_source": "mine", "question": "Which river flows through Tours?", "answer": "Loire"}
        oracle = "mine.oracle.jsonl"            # what a model says that is right, and what one says that is wrong
        bad = [("answer", {"answer": 3}), ("question", {"question": MISSING})]
        hidden = ("answer",)

A breach fails with a `ContractBroken` that says what was done, what came of it and what to do about it.
"""

from prorl_celery.testing.kit import instances, scores, stops
from prorl_celery.testing.kit.case import MISSING, Case, ContractBroken
from prorl_celery.testing.kit.contract import HandlerContract

__all__ = ["MISSING", "Case", "ContractBroken", "HandlerContract", "instances", "scores", "stops"]
