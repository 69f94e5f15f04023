"""`HandlerContract`: the checks as a class that pytest runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from prorl_celery.handlers.base import Handler
from prorl_celery.testing.kit import instances, scores, stops
from prorl_celery.testing.kit.bench import Bench
from prorl_celery.testing.kit.case import Case, ContractBroken, Rows, instance_of, oracle_of


class HandlerContract:
    """Subclass it in a test file, say what is to be checked, and run pytest.

    Each test runs the job of `instance` through its three stages, with what the oracle has the model say, and lets
    something happen to it. One runner serves the class: a keeper, a nursery and a scripted backend of its own.
    """

    handler: ClassVar[type[Handler]]
    instance: ClassVar[Mapping[str, Any] | str | Path]
    """An instance, or the JSON file that holds one."""
    oracle: ClassVar[Rows]
    """What a model says that is right and wrong: recitals, or the JSON-lines file that holds them."""
    bad: ClassVar[Sequence[tuple[str, Mapping[str, Any]]]] = ()
    """Changes to the instance that must be refused, each with the field that must be named."""
    hidden: ClassVar[Sequence[str]] = ()
    """Fields of the instance that the model must not get to see."""
    right_reward: ClassVar[float] = 1.0
    wrong_reward: ClassVar[float] = 0.0
    job_fields: ClassVar[Mapping[str, Any]] = {}
    """Further fields of the job, as a caller sends them."""
    settings: ClassVar[Mapping[str, Any]] = {}
    """Fields of `prorl_celery.settings.Settings`: a judge that recites is `{"judge_model": "scripted"}`."""
    stop_seconds: ClassVar[float] = 3.0
    """How long a stage may take to end when it is told to."""

    _open: ClassVar[Bench | None] = None

    @classmethod
    def case(cls) -> Case:
        """What the checks are given. Raises `ContractBroken` where something is not said."""
        lacking = [name for name in ("handler", "instance", "oracle") if not hasattr(cls, name)]
        if lacking:
            raise ContractBroken(f"{cls.__name__} must say its {', '.join(lacking)}")
        return Case(
            handler=cls.handler,
            instance=instance_of(cls.instance),
            oracle=oracle_of(cls.oracle),
            bad=cls.bad,
            hidden=cls.hidden,
            right_reward=cls.right_reward,
            wrong_reward=cls.wrong_reward,
            job_fields=cls.job_fields,
            settings=cls.settings,
            stop_seconds=cls.stop_seconds,
        )

    @classmethod
    def bench(cls) -> Bench:
        """The bench of this class, made when it is first asked for."""
        if cls._open is None:
            cls._open = Bench(cls.case())
        return cls._open

    @classmethod
    def teardown_class(cls) -> None:
        bench, cls._open = cls._open, None
        if bench is not None:
            bench.close()

    def test_accepts_the_instance(self) -> None:
        instances.accepts_the_instance(self.case())

    def test_refuses_bad_instances_by_their_field(self) -> None:
        instances.refuses_bad_instances(self.case())

    def test_stands_strange_instances(self) -> None:
        instances.stands_strange_instances(self.case())

    def test_asks_for_the_same_sandboxes_each_time(self) -> None:
        instances.asks_for_the_same_sandboxes_each_time(self.case())

    def test_scores_the_right_answer(self) -> None:
        scores.scores_the_right_answer(self.bench())

    def test_scores_the_wrong_answer(self) -> None:
        scores.scores_the_wrong_answer(self.bench())

    def test_leaves_nothing(self) -> None:
        scores.leaves_nothing(self.bench())

    def test_returns_json(self) -> None:
        scores.returns_json(self.bench())

    def test_hides_the_answer(self) -> None:
        scores.hides_the_answer(self.bench())

    def test_scores_in_a_process_of_its_own(self) -> None:
        scores.scores_in_a_process_of_its_own(self.bench())

    def test_scores_the_same_twice(self) -> None:
        stops.scores_the_same_twice(self.bench())

    def test_init_stops_when_cancelled(self) -> None:
        stops.stops_when_cancelled(self.bench(), "init")

    def test_rollout_stops_when_cancelled(self) -> None:
        stops.stops_when_cancelled(self.bench(), "rollout")

    def test_eval_stops_when_cancelled(self) -> None:
        stops.stops_when_cancelled(self.bench(), "eval")

    def test_init_stops_when_its_time_is_up(self) -> None:
        stops.stops_when_time_is_up(self.bench(), "init")

    def test_rollout_stops_when_its_time_is_up(self) -> None:
        stops.stops_when_time_is_up(self.bench(), "rollout")

    def test_eval_stops_when_its_time_is_up(self) -> None:
        stops.stops_when_time_is_up(self.bench(), "eval")

    def test_scores_nothing_when_init_loses_its_sandbox(self) -> None:
        stops.scores_nothing_without_its_sandbox(self.bench(), "init")

    def test_scores_nothing_when_rollout_loses_its_sandbox(self) -> None:
        stops.scores_nothing_without_its_sandbox(self.bench(), "rollout")

    def test_scores_nothing_when_eval_loses_its_sandbox(self) -> None:
        stops.scores_nothing_without_its_sandbox(self.bench(), "eval")

    def test_goes_on_after_a_death(self) -> None:
        stops.goes_on_after_a_death(self.bench())
