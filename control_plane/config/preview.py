"""What a search would do: its own driver, with trials that end well and validate as they come."""

from __future__ import annotations

from collections import Counter, deque
from typing import NamedTuple

from control_plane.searchers.method import Close, Shutdown, TrainTo, TrialClosed, TrialReached
from control_plane.searchers.randomness import Generator
from control_plane.searchers.search import (
    CreateTrial,
    SearchPlan,
    SearchStep,
    TrialOperation,
    begin,
    expand,
    handle,
)

CREATE_MAX = 256


class Kind(NamedTuple):
    """So many trials that are trained to the same length, in the configuration's unit."""

    trials: int
    length: int


def preview(plan: SearchPlan) -> list[Kind]:
    """The trials by the length that each reaches, the longest first.

    The trial with number i validates at i wherever it stops, so that the search can tell them
    apart; where lengths depend on results, these are an example.
    """
    generator = Generator.seeded(plan.seed)
    search = _Search(plan, generator)
    step = begin(plan)
    while True:
        search.take(step)
        if search.is_over:
            break
        if step.more:
            step = expand(plan, step.state, generator, CREATE_MAX)
        elif search.waiting:
            step = search.answered(step)
        else:
            break
    lengths = Counter(search.reached.values())
    return [Kind(lengths[length], length) for length in sorted(lengths, reverse=True)]


class _Search:
    """The trials of a search under way: what each was asked for and has reached."""

    def __init__(self, plan: SearchPlan, generator: Generator) -> None:
        self._plan = plan
        self._generator = generator
        self._closing: set[int] = set()
        self.waiting: deque[TrialReached | TrialClosed] = deque()
        self.reached: dict[int, int] = {}
        self.is_over = False

    def take(self, step: SearchStep) -> None:
        """Trains what the step asks for; the events of that wait to be answered."""
        for operation in step.operations:
            self._take_one(operation)

    def answered(self, step: SearchStep) -> SearchStep:
        """What the search does after the oldest event that waits."""
        event = self.waiting.popleft()
        return handle(self._plan, step.state, self._generator, event, CREATE_MAX)

    def _take_one(self, operation: TrialOperation) -> None:
        match operation:
            case CreateTrial(trial=trial, length=length, closed=closed):
                self.reached[trial] = 0
                if length is not None:
                    self._train(trial, length)
                if closed:
                    self._close(trial)
            case TrainTo(trial=trial, length=length):
                self._train(trial, length)
            case Close(trial=trial):
                self._close(trial)
            case Shutdown():
                self.is_over = True

    def _train(self, trial: int, length: int) -> None:
        self.reached[trial] = length
        self.waiting.append(TrialReached(trial, length, float(trial)))

    def _close(self, trial: int) -> None:
        if trial not in self._closing:
            self._closing.add(trial)
            self.waiting.append(TrialClosed(trial, float(self.reached[trial])))
