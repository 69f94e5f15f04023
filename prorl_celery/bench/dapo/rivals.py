"""Other ways to fill a batch, each as simple as it is: rounds, the first server's refill, greedy refill, and an oracle.

All of them are plain Python over one event queue; none of our scripts has a part in them.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator

from prorl_celery.bench.dapo.outcome import Outcome
from prorl_celery.bench.dapo.workload import Prompts

Group = tuple[int, int]
"""A prompt, and how often it was begun before."""

ROUND_GROUPS = 2
"""Groups of one round, over the target: 64 for 32."""


class Slots:
    """Slots on a virtual clock: jobs in the order in which they came, each for as long as its sample takes."""

    def __init__(self, prompts: Prompts, outcome: Outcome, slots: int) -> None:
        self.now = outcome.seconds
        self._prompts = prompts
        self._outcome = outcome
        self._slots = slots
        self._ends: list[tuple[float, Group, int]] = []
        self._began: dict[tuple[Group, int], float] = {}
        self.queue: deque[tuple[Group, int]] = deque()

    def put(self, group: Group) -> None:
        """Queue all samples of a group."""
        self.queue.extend((group, sample) for sample in range(self._prompts.workload.samples))

    def fill(self) -> None:
        """Give free slots to what waits."""
        while self.queue and len(self._began) < self._slots:
            group, sample = self.queue.popleft()
            self._began[(group, sample)] = self.now
            heapq.heappush(self._ends, (self.now + self._prompts.group(*group)[sample].seconds, group, sample))
        self._outcome.busy.append((self.now, len(self._began)))

    @property
    def free(self) -> int:
        return self._slots - len(self._began)

    def next_end(self) -> Group | None:
        """Go on to the end of a sample; its group. None when nothing runs."""
        if not self._ends:
            return None
        self.now, group, sample = heapq.heappop(self._ends)
        del self._began[(group, sample)]
        return group

    def runs(self, group: Group, sample: int) -> bool:
        return (group, sample) in self._began

    def stop(self) -> float:
        """End all that runs; the seconds that were worked on it."""
        return sum(self.now - began for began in self._began.values())


def rounds(prompts: Prompts, steps: int) -> Outcome:
    """Twice as many groups as are wanted, wait for all, filter, and again while there are too few."""
    load, outcome, source = prompts.workload, Outcome(), iter(range(1 << 30))
    for _ in range(steps):
        won = 0
        while won < load.target:
            slots, left = Slots(prompts, outcome, load.slots), {}
            for _ in range(ROUND_GROUPS * load.target):
                group = (next(source), 0)
                left[group] = load.samples
                slots.put(group)
            slots.fill()
            while (group_ended := slots.next_end()) is not None:
                left[group_ended] -= 1
                slots.fill()
            outcome.seconds = slots.now
            good = [group for group in left if prompts.informative(*group)]
            surplus = good[load.target - won :]
            won = min(load.target, won + len(good))
            outcome.uniform_s += sum(_work(prompts, g) for g in left if not prompts.informative(*g))
            outcome.last_waste_s = sum(_work(prompts, group) for group in surplus)
            outcome.wasted_s += outcome.last_waste_s
        outcome.groups.append(won)
    return outcome


def first_server(prompts: Prompts, steps: int) -> Outcome:
    """Refill when the queue is empty and a slot is free, a train batch of prompts at a time; stop at the target; the
    prompts of unfinished groups are rolled out anew, all samples of them, in the next step.
    """
    return _refilled(prompts, steps, at_once=prompts.workload.target, source=iter(range(1 << 30)), begins_anew=True)


def greedy(prompts: Prompts, steps: int) -> Outcome:
    """A prompt whenever there is room for one; what is unfinished at the target is thrown away."""
    return _refilled(prompts, steps, at_once=1, source=iter(range(1 << 30)), begins_anew=False)


def oracle(prompts: Prompts, steps: int) -> Outcome:
    """As greedy, by one who knows which prompts are informative, but not how long they take."""
    known = (prompt for prompt in range(1 << 30) if prompts.informative(prompt))
    return _refilled(prompts, steps, at_once=1, source=known, begins_anew=False)


def _refilled(prompts: Prompts, steps: int, *, at_once: int, source: Iterator[int], begins_anew: bool) -> Outcome:
    load, outcome = prompts.workload, Outcome()
    again: deque[Group] = deque()
    for _ in range(steps):
        slots, left, won = Slots(prompts, outcome, load.slots), dict[Group, int](), 0
        order: list[Group] = []

        def refill(slots: Slots = slots, left: dict[Group, int] = left, order: list[Group] = order) -> None:
            while len(slots.queue) < slots.free and (begins_anew or slots.free - len(slots.queue) >= load.samples):
                for _ in range(at_once):
                    group = again.popleft() if again else (next(source), 0)
                    left[group] = load.samples
                    order.append(group)
                    slots.put(group)
            slots.fill()

        refill()
        while won < load.target:
            group_ended = slots.next_end()
            assert group_ended is not None
            left[group_ended] -= 1
            if left[group_ended] == 0:
                del left[group_ended]
                if prompts.informative(*group_ended):
                    won += 1
                else:
                    outcome.uniform_s += _work(prompts, group_ended)
            if won < load.target:
                refill()
        finished = sum(_finished(prompts, group, slots) for group in left)
        outcome.last_waste_s = finished + slots.stop()
        outcome.wasted_s += outcome.last_waste_s
        outcome.seconds = slots.now
        outcome.busy.append((slots.now, 0))
        outcome.groups.append(won)
        if begins_anew:
            again.extend((prompt, times + 1) for prompt, times in order if (prompt, times) in left)
    return outcome


def _finished(prompts: Prompts, group: Group, slots: Slots) -> float:
    """Seconds of the group's samples that have ended."""
    waits = {sample for queued, sample in slots.queue if queued == group}
    return sum(
        sample.seconds
        for number, sample in enumerate(prompts.group(*group))
        if number not in waits and not slots.runs(group, number)
    )


def _work(prompts: Prompts, group: Group) -> float:
    return sum(sample.seconds for sample in prompts.group(*group))


WAYS: dict[str, Callable[[Prompts, int], Outcome]] = {
    "rounds": rounds,
    "first server": first_server,
    "greedy": greedy,
    "oracle": oracle,
}
