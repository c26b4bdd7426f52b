"""What a search would do: its own method, told of trials that end well and validate as they come.

The method alone decides; its driver would draw hyperparameters, which only batch sizes need.
"""

from __future__ import annotations

from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, repeat
from typing import Any, NamedTuple
from uuid import UUID

from control_plane.config.consistency import BATCH_SIZE
from control_plane.config.experiment import ExperimentConfig
from control_plane.config.plan import NotForeseeable
from control_plane.searchers.bayesian import BayesianPlan
from control_plane.searchers.custom import CustomPlan
from control_plane.searchers.grid import GridPlan
from control_plane.searchers.halving import HalvingPlan
from control_plane.searchers.method import (
    Close,
    Create,
    CreateTrial,
    Event,
    Operation,
    Stop,
    TrainTo,
    TrialClosed,
    TrialMeasured,
    TrialReached,
)
from control_plane.searchers.parts import PartsInMemory
from control_plane.searchers.population import PopulationPlan
from control_plane.searchers.random import RandomPlan
from control_plane.searchers.randomness import Generator
from control_plane.searchers.search import MethodPlan, SearchPlan, begin, expand, method_of
from control_plane.searchers.space import Const
from control_plane.searchers.tournament import TournamentPlan

CLOSE_MAX = 256
TOLD_AFTER_EVENTS = 1_000

Told = Callable[[int], None]
"""Takes how many trials are done, every now and then."""


class Rung(NamedTuple):
    """A length, in the configuration's unit or of its time metric, that trials of a bracket train
    to.
    """

    length: int
    reached: int
    """Trials that train to it or beyond."""
    stopped: int
    """Those of them that train no further."""
    expected: int | None
    """How many are to be expected to train no further; `stopped` where results change nothing, None
    where nothing is known before them.
    """


class Bracket(NamedTuple):
    """Trials that are compared with each other; the rungs go up."""

    rungs: tuple[Rung, ...]


class Preview(NamedTuple):
    """What a search trains; `is_example` where results change it."""

    brackets: tuple[Bracket, ...]
    batches: int | None
    """Of all trials together; None where a time metric measures them."""
    is_example: bool


def preview(config: ExperimentConfig, told: Told = lambda done: None) -> Preview:
    """The trials of a search by bracket and by the length that each reaches.

    The trial with number i validates at i wherever it stops, and results come in the order in which
    they were asked for; where lengths depend on results, these are an example.

    Raises:
        NotForeseeable: nobody can say what the search will do.
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
        bracket = replace(plan, method=method)
        search = _Search(bracket)
        for done_here in search.run():
            told(done + done_here)
        done += len(search.lengths)
        brackets.append(Bracket(tuple(_rungs(method, Counter(search.lengths)))))
        sizes = _batch_sizes(bracket, generator, len(search.lengths))
        trained.update(zip(search.lengths, sizes, strict=False))
    batches = None
    if not config.time_metric:
        batches = sum(
            trials * config.batches(length, {"global_batch_size": size})
            for (length, size), trials in trained.items()
        )
    return Preview(tuple(brackets), batches, any(map(_decides_by_results, _brackets(plan.method))))


def _brackets(plan: MethodPlan) -> Sequence[MethodPlan]:
    if isinstance(plan, BayesianPlan):
        # Who chooses the hyperparameters changes nothing of what is trained.
        concurrent = plan.max_concurrent_trials
        return (RandomPlan(plan.max_length, plan.max_trials, concurrent, plan.rules),)
    return plan.brackets if isinstance(plan, TournamentPlan) else (plan,)


def _decides_by_results(plan: MethodPlan) -> bool:
    if isinstance(plan, PopulationPlan):
        return plan.truncated > 0 and plan.num_rounds > 1
    return isinstance(plan, HalvingPlan) and plan.num_rungs > 1


def _rungs(plan: MethodPlan, stopped: Counter[int]) -> Iterator[Rung]:
    expected = _expected(plan) if isinstance(plan, HalvingPlan) else stopped
    lengths = sorted({*stopped, *expected}, reverse=True)
    reached = list(accumulate(stopped[length] for length in lengths))
    for length, count in zip(reversed(lengths), reversed(reached), strict=True):
        guess = None if isinstance(plan, PopulationPlan) else expected[length]
        yield Rung(length, count, stopped[length], guess)


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


def _batch_sizes(plan: SearchPlan, generator: Generator, trials: int) -> Iterable[int | None]:
    """What the trials of a search draw, in the order of their numbers; endless where all draw the
    same.
    """
    size = plan.space.members.get(BATCH_SIZE)
    if size is None or isinstance(size, Const):
        return repeat(_whole(size.value if size else None))
    method = plan.method
    if not isinstance(method, GridPlan):
        method = RandomPlan(method.max_length, trials, 0, method.rules)
    at_once = replace(plan, method=replace(method, max_concurrent_trials=0))
    state = replace(begin(at_once).state, position=generator.position)
    created = expand(at_once, state, generator, trials).operations
    return [_whole(one.hparams[BATCH_SIZE]) for one in created if isinstance(one, CreateTrial)]


def _whole(size: object) -> int | None:
    return size if isinstance(size, int) else None


class _Search:
    """The trials of a search under way: by number their lengths, so far."""

    def __init__(self, plan: SearchPlan) -> None:
        self._method = method_of(plan, PartsInMemory())
        method = plan.method
        # Where time measures trials they report when they have come to a rung.
        self._times = method.lengths if isinstance(method, HalvingPlan) and method.by_time else ()
        self._keeps_trials = isinstance(method, PopulationPlan)
        # Trials with an event to be answered: the number or, to be closed, its complement.
        self._waiting: deque[int] = deque()
        self._closing = bytearray()
        self._with_results = self._closed = 0
        self.lengths = array("q")

    def run(self) -> Iterator[int]:
        """Goes on until the search waits for nothing; yields every now and then how many trials are
        done, one that has a result being half done.
        """
        method, waiting = self._method, self._waiting
        step = method.initial()
        answered = 0
        while True:
            created = len(self.lengths)
            for operation in step.operations:
                self._take(operation)
            state = self._noted(step.state, created)
            if state.is_closing:
                step = method.close_more(state, len(self.lengths), CLOSE_MAX)
                continue
            if not waiting:
                return
            event = self._event(waiting.popleft())
            step = method.on_event(state, event)
            if isinstance(event, TrialMeasured) and Stop(event.trial) not in step.operations:
                self._train(event.trial, next(one for one in self._times if one > event.time))
            answered += 1
            if answered % TOLD_AFTER_EVENTS == 0:
                yield (self._with_results + self._closed) // 2

    def _noted(self, state: Any, first: int) -> Any:
        """The method's state once it knows of the trials from `first` on, where it wants to."""
        if not self._keeps_trials:
            return state
        for trial in range(first, len(self.lengths)):
            request_id = str(UUID(int=trial))
            created = CreateTrial(trial, request_id, 0, {}, length=None, closed=False)
            state = self._method.on_created(state, created)
        return state

    def _event(self, waiting: int) -> Event:
        if waiting < 0:
            self._closed += 1
            return TrialClosed(~waiting, float(self.lengths[~waiting]))
        if waiting == self._with_results:
            # The first results come in the order of the trials.
            self._with_results += 1
        length, metric = self.lengths[waiting], float(waiting)
        if self._times:
            return TrialMeasured(waiting, length, metric)
        return TrialReached(waiting, length, metric)

    def _take(self, operation: Operation) -> None:
        match operation:
            case Create(count=count, length=length, closed=closed):
                first = len(self.lengths)
                self.lengths.extend(repeat(0, count))
                self._closing.extend(bytes(count))
                for trial in range(first, first + count):
                    if length is not None:
                        self._train(trial, self._times[0] if self._times else length)
                    if closed:
                        self._close(trial)
            case TrainTo(trial=trial, length=length):
                self._train(trial, length)
            case Close(trial=trial) | Stop(trial=trial):
                self._close(trial)
            case _:
                pass

    def _train(self, trial: int, length: int) -> None:
        self.lengths[trial] = length
        self._waiting.append(trial)

    def _close(self, trial: int) -> None:
        if not self._closing[trial]:
            self._closing[trial] = True
            self._waiting.append(~trial)
