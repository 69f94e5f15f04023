"""Other ways to fill a batch, each as simple as it is: rounds, the first server's refill, greedy refill, and an oracle.

All of them are plain Python over one event queue; none of our scripts has a part in them. Every way's seconds of work
are of three kinds: of groups that counted, of uniform groups that were complete, and waste, which is all else.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from prorl_celery.bench.dapo.outcome import Outcome
from prorl_celery.bench.dapo.workload import Prompts

Group = tuple[int, int]
"""A prompt, and how often it was begun before."""

ROUND_GROUPS = 2
"""Groups of one round, over the target: 64 for 32."""


class Slots:
    """Slots on a virtual clock: jobs in the order in which they came, each for as long as its sample takes."""

    def __init__(self, prompts: Prompts, outcome: Outcome) -> None:
        self.now = outcome.seconds
        self.queue: deque[tuple[Group, int]] = deque()
        self.spent: dict[Group, float] = {}
        """Seconds that were worked on each group, of samples that have ended."""
        self._prompts = prompts
        self._outcome = outcome
        self._ends: list[tuple[float, Group, int]] = []
        self._began: dict[tuple[Group, int], float] = {}

    @property
    def free(self) -> int:
        return self._prompts.workload.slots - len(self._began)

    def put(self, group: Group) -> None:
        """Queue all samples of a group."""
        self.queue.extend((group, sample) for sample in range(self._prompts.workload.samples))

    def fill(self) -> None:
        """Give free slots to what waits."""
        while self.queue and self.free:
            group, sample = self.queue.popleft()
            self._began[(group, sample)] = self.now
            heapq.heappush(self._ends, (self.now + self._prompts.group(*group)[sample].seconds, group, sample))
        self._outcome.busy.append((self.now, len(self._began)))

    def next_end(self) -> Group | None:
        """Go on to the end of a sample; its group. None when nothing runs."""
        if not self._ends:
            return None
        self.now, group, sample = heapq.heappop(self._ends)
        self._note(group, self._began.pop((group, sample)))
        return group

    def stop(self) -> None:
        """End all that runs."""
        for (group, _), began in self._began.items():
            self._note(group, began)
        self._outcome.busy.append((self.now, 0))

    def _note(self, group: Group, began: float) -> None:
        self.spent[group] = self.spent.get(group, 0.0) + self.now - began
        self._outcome.worked_s += self.now - began


def rounds(prompts: Prompts, steps: int) -> Outcome:
    """Twice as many groups as are wanted, wait for all, filter, and again while there are too few."""
    load, outcome, source = prompts.workload, Outcome(), iter(range(1 << 30))
    for _ in range(steps):
        won = 0
        while won < load.target:
            slots = Slots(prompts, outcome)
            groups = [(next(source), 0) for _ in range(ROUND_GROUPS * load.target)]
            for group in groups:
                slots.put(group)
            slots.fill()
            while slots.next_end() is not None:
                slots.fill()
            outcome.seconds = slots.now
            good = [group for group in groups if prompts.informative(*group)]
            kept, surplus = good[: load.target - won], good[load.target - won :]
            won += len(kept)
            _sum_up(outcome, slots, kept, [group for group in groups if group not in good], surplus)
        outcome.groups.append(won)
    return outcome


def first_server(prompts: Prompts, steps: int) -> Outcome:
    """Refill when the queue is empty and a slot is free, a train batch of prompts at a time; stop at the target; the
    prompts of unfinished groups are rolled out anew, all samples of them, in the next step.
    """
    return _refilled(prompts, steps, at_once=prompts.workload.target, source=iter(range(1 << 30)), begins_anew=True)


def greedy(prompts: Prompts, steps: int) -> Outcome:
    """A prompt whenever a slot is free and nothing waits; what is unfinished at the target is thrown away."""
    return _refilled(prompts, steps, at_once=1, source=iter(range(1 << 30)), begins_anew=False)


def oracle(prompts: Prompts, steps: int) -> Outcome:
    """As greedy, by one who knows which prompts are informative, but not how long they take."""
    known = (prompt for prompt in range(1 << 30) if prompts.informative(prompt))
    return _refilled(prompts, steps, at_once=1, source=known, begins_anew=False)


def _refilled(prompts: Prompts, steps: int, *, at_once: int, source: Iterator[int], begins_anew: bool) -> Outcome:
    load, outcome, again = prompts.workload, Outcome(), deque[Group]()
    for _ in range(steps):
        slots, left = Slots(prompts, outcome), dict[Group, int]()
        kept: list[Group] = []
        uniform: list[Group] = []
        while len(kept) < load.target:
            while not slots.queue and slots.free:
                for _ in range(at_once):
                    group = again.popleft() if again else (next(source), 0)
                    left[group] = load.samples
                    slots.put(group)
                slots.fill()
            ended = slots.next_end()
            assert ended is not None
            slots.fill()
            left[ended] -= 1
            if left[ended] == 0:
                del left[ended]
                (kept if prompts.informative(*ended) else uniform).append(ended)
        slots.stop()
        outcome.seconds = slots.now
        outcome.groups.append(len(kept))
        _sum_up(outcome, slots, kept, uniform, list(left))
        if begins_anew:
            again.extend((prompt, times + 1) for prompt, times in left)
    return outcome


def _sum_up(
    outcome: Outcome, slots: Slots, kept: Sequence[Group], uniform: Sequence[Group], lost: Sequence[Group]
) -> None:
    outcome.won += [prompt for prompt, _ in kept]
    outcome.uniform += len(uniform)
    outcome.uniform_s += sum(slots.spent[group] for group in uniform)
    outcome.last_waste_s = sum(slots.spent.get(group, 0.0) for group in lost)
    outcome.wasted_s += outcome.last_waste_s


WAYS: dict[str, Callable[[Prompts, int], Outcome]] = {
    "rounds": rounds,
    "first server": first_server,
    "greedy": greedy,
    "oracle": oracle,
}
