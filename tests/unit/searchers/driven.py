"""A search under its driver, told what its trials report; it answers what was asked for."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from control_plane.searchers.halving import HalvingPlan
from control_plane.searchers.method import (
    Close,
    CreateTrial,
    Event,
    ExitReason,
    Shutdown,
    TrainTo,
    TrialClosed,
    TrialExited,
    TrialReached,
)
from control_plane.searchers.randomness import Generator
from control_plane.searchers.search import (
    SearchPlan,
    SearchState,
    SearchStep,
    begin,
    expand,
    handle,
    progress,
)
from control_plane.searchers.space import Double, Group
from control_plane.searchers.tournament import TournamentPlan
from tests.unit.searchers.kept import Kept


class Asked(NamedTuple):
    """What a search asked for in answer to one event, the closings that came later included."""

    created: int
    trains: dict[int, int]
    closes: frozenset[int]


@dataclass
class Trial:
    """The length a trial trains to, the one it reached, and whether it is to end after that."""

    length: int
    reached: int = 0
    closed: bool = False


@dataclass
class Driven:
    """A search; `waits` leaves what comes later for `settled`."""

    plan: HalvingPlan | TournamentPlan
    expand_max: int = 100
    waits: bool = False
    trials: dict[int, Trial] = field(default_factory=dict)
    shutdowns: list[Shutdown] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._search = SearchPlan(self.plan, Group({"x": Double(0.0, 1.0, None)}), 7)
        self._generator = Generator.seeded(7)
        self._parts = Kept()
        self._created = 0
        self.state: SearchState
        self.first = self._taken(begin(self._search, self._parts))

    def result(self, trial: int, metric: float) -> Asked:
        """The trial validated at the length it was asked to train to."""
        now = self.trials[trial]
        assert now.reached < now.length, f"trial {trial} was not training"
        now.reached = now.length
        return self.told(TrialReached(trial, now.length, metric))

    def results(self, metrics: Mapping[int, float]) -> Asked:
        """Several results one after another; the answer to the last one."""
        asked = [self.result(trial, metric) for trial, metric in metrics.items()]
        return asked[-1]

    def exited(self, trial: int, reason: ExitReason = ExitReason.ERRORED) -> Asked:
        """The trial ended early."""
        return self.told(TrialExited(trial, reason, 0.0, self.trials.pop(trial).reached))

    def ended(self, trial: int) -> Asked:
        """The trial, closed, ended normally."""
        now = self.trials.pop(trial)
        assert now.closed
        assert now.reached == now.length
        return self.told(TrialClosed(trial, 0.0))

    def told(self, event: Event) -> Asked:
        """The answer to an event."""
        parts, generator = self._parts, self._generator
        step = handle(self._search, self.state, generator, event, self.expand_max, parts)
        return self._taken(step)

    def settled(self) -> Asked:
        """What was left to create and to close."""
        step = SearchStep(self.state, (), more=True)
        while step.more:
            expanded = expand(
                self._search, step.state, self._generator, self.expand_max, self._parts
            )
            operations = step.operations + expanded.operations
            step = SearchStep(expanded.state, operations, expanded.more)
        return self._noted(step)

    @property
    def progress(self) -> float:
        return progress(self._search, self.state)

    def _taken(self, step: SearchStep) -> Asked:
        asked = self._noted(step)
        if not step.more or self.waits:
            return asked
        later = self.settled()
        closes = asked.closes | later.closes
        return Asked(asked.created + later.created, asked.trains | later.trains, closes)

    def _noted(self, step: SearchStep) -> Asked:
        self.state = step.state
        created, trains, closes = 0, dict[int, int](), set[int]()
        for operation in step.operations:
            match operation:
                case CreateTrial(trial=trial, length=length, closed=closed):
                    assert trial == self._created
                    assert length is not None
                    assert not closed
                    self.trials[trial] = Trial(length)
                    self._created += 1
                    created += 1
                case TrainTo(trial, length):
                    assert length > self.trials[trial].length
                    assert not self.trials[trial].closed
                    self.trials[trial].length = trains[trial] = length
                case Close(trial):
                    assert not self.trials[trial].closed, f"trial {trial} was closed twice"
                    self.trials[trial].closed = True
                    closes.add(trial)
                case Shutdown():
                    self.shutdowns.append(operation)
        return Asked(created, trains, frozenset(closes))


NOTHING = Asked(0, {}, frozenset())
CREATES = Asked(1, {}, frozenset())


def trains(trial: int, length: int, *, created: int = 0, closes: tuple[int, ...] = ()) -> Asked:
    """One trial goes on."""
    return Asked(created, {trial: length}, frozenset(closes))


def closes(*trials: int, created: int = 0) -> Asked:
    """Some trials are closed."""
    return Asked(created, {}, frozenset(trials))
