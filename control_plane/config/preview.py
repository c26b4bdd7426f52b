"""What a search would do: its own driver, with trials that end well and validate as they come."""

from __future__ import annotations

from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple

from control_plane.config.experiment import ExperimentConfig
from control_plane.config.plan import NotForeseeable
from control_plane.searchers.custom import CustomPlan
from control_plane.searchers.halving import HalvingPlan
from control_plane.searchers.method import (
    Close,
    CreateTrial,
    Event,
    Shutdown,
    TrainTo,
    TrialClosed,
    TrialReached,
)
from control_plane.searchers.parts import PartsInMemory
from control_plane.searchers.randomness import Generator
from control_plane.searchers.search import (
    MethodPlan,
    SearchPlan,
    TrialOperation,
    begin,
    expand,
    handle,
)
from control_plane.searchers.tournament import TournamentPlan

CREATE_MAX = 256
TOLD_AFTER_EVENTS = 1_000

Told = Callable[[int], None]
"""Takes how many trials are done, every now and then."""


class Rung(NamedTuple):
    """A length, in the configuration's unit, that trials of a bracket train to."""

    length: int
    reached: int
    """Trials that train to it or beyond."""
    stopped: int
    """Those of them that train no further."""
    expected: int
    """How many are to be expected to train no further; `stopped` where results change nothing."""


class Bracket(NamedTuple):
    """Trials that are compared with each other; the rungs go up."""

    rungs: tuple[Rung, ...]


class Preview(NamedTuple):
    """What a search trains; `is_example` where results change it."""

    brackets: tuple[Bracket, ...]
    batches: int
    """Of all trials together."""
    is_example: bool


def preview(config: ExperimentConfig, told: Told = lambda done: None) -> Preview:
    """The trials of a search by bracket and by the length that each reaches.

    The trial with number i validates at i wherever it stops, and results come in the order in which
    they were asked for; where lengths depend on results, these are an example.

    Raises:
        SearcherNotAvailable: the searcher cannot run yet, or nobody can say what it will do.
    """
    plan = config.search_plan()
    if isinstance(plan.method, CustomPlan):
        raise NotForeseeable
    generator = Generator.seeded(plan.seed)
    done, brackets = 0, list[Bracket]()
    trained = Counter[tuple[int, int | None]]()
    # Brackets know nothing of each other: each goes its way as it would beside the others, where
    # its trials have other numbers in the same order.
    for method in _brackets(plan.method):
        search = _Search(replace(plan, method=method), generator)
        for done_here in search.run():
            told(done + done_here)
        done += len(search.lengths)
        brackets.append(Bracket(tuple(_rungs(method, Counter(search.lengths)))))
        trained.update(zip(search.lengths, search.batch_sizes, strict=True))
    batches = sum(
        trials * config.batches(length, {"global_batch_size": size})
        for (length, size), trials in trained.items()
    )
    return Preview(tuple(brackets), batches, any(map(_decides_by_results, _brackets(plan.method))))


def _brackets(plan: MethodPlan) -> Sequence[MethodPlan]:
    return plan.brackets if isinstance(plan, TournamentPlan) else (plan,)


def _decides_by_results(plan: MethodPlan) -> bool:
    return isinstance(plan, HalvingPlan) and plan.num_rungs > 1


def _rungs(plan: MethodPlan, stopped: Counter[int]) -> Iterator[Rung]:
    expected = _expected(plan) if isinstance(plan, HalvingPlan) else stopped
    lengths = sorted({*stopped, *expected}, reverse=True)
    reached = list(accumulate(stopped[length] for length in lengths))
    for length, count in zip(reversed(lengths), reversed(reached), strict=True):
        yield Rung(length, count, stopped[length], expected[length])


def _expected(plan: HalvingPlan) -> Counter[int]:
    """Trials by the length at which they stop, if one in `divisor` goes on from each rung, and at
    least one: the rule of Determined's own preview.
    """
    *lower, top = plan.lengths
    stopped = Counter[int]()
    left = plan.max_trials
    for length in lower:
        going_on = max(int(left / plan.divisor), 1)
        stopped[length] += left - going_on
        left = going_on
    stopped[top] += left
    return stopped


class _Search:
    """The trials of a search under way: by number their lengths, so far, and batch sizes."""

    def __init__(self, plan: SearchPlan, generator: Generator) -> None:
        self._plan = plan
        self._generator = generator
        self._parts = PartsInMemory()
        # Trials with an event to be answered: the number or, to be closed, its complement.
        self._waiting: deque[int] = deque()
        self._closing = bytearray()
        self._is_over = False
        self.lengths = array("q")
        self.batch_sizes: list[int | None] = []

    def run(self) -> Iterator[int]:
        """Goes on until the search ends, or waits for nothing; yields every now and then how many
        trials are done, one that has a result being half done.
        """
        step = begin(self._plan, self._parts)
        state = replace(step.state, position=self._generator.position)
        step = replace(step, state=state)
        with_results = answered = 0
        while True:
            for operation in step.operations:
                self._take(operation)
            if self._is_over or not (step.more or self._waiting):
                return
            if step.more:
                step = expand(self._plan, step.state, self._generator, CREATE_MAX, self._parts)
                continue
            event = self._event(self._waiting.popleft())
            step = handle(self._plan, step.state, self._generator, event, CREATE_MAX, self._parts)
            # The first results come in the order of the trials.
            with_results = max(with_results, event.trial + 1)
            answered += 1
            if answered % TOLD_AFTER_EVENTS == 0:
                yield (with_results + step.state.tally.closed) // 2

    def _event(self, waiting: int) -> Event:
        if waiting < 0:
            return TrialClosed(~waiting, float(self.lengths[~waiting]))
        return TrialReached(waiting, self.lengths[waiting], float(waiting))

    def _take(self, operation: TrialOperation) -> None:
        match operation:
            case CreateTrial(trial=trial, length=length, closed=closed, hparams=hparams):
                size = hparams.get("global_batch_size")
                self.batch_sizes.append(size if isinstance(size, int) else None)
                self.lengths.append(0)
                self._closing.append(False)
                if length is not None:
                    self._train(trial, length)
                if closed:
                    self._close(trial)
            case TrainTo(trial=trial, length=length):
                self._train(trial, length)
            case Close(trial=trial):
                self._close(trial)
            case Shutdown():
                self._is_over = True

    def _train(self, trial: int, length: int) -> None:
        self.lengths[trial] = length
        self._waiting.append(trial)

    def _close(self, trial: int) -> None:
        if not self._closing[trial]:
            self._closing[trial] = True
            self._waiting.append(~trial)
