"""A search under its driver, told what its trials report; it answers what was asked for. Its state
is stored and read again between two steps.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from pydantic import TypeAdapter

from control_plane.searchers.method import (
    Close,
    CreateTrial,
    Event,
    ExitReason,
    Shutdown,
    TrainTo,
    TrialClosed,
    TrialExited,
    TrialProgressed,
    TrialReached,
)
from control_plane.searchers.randomness import Generator
from control_plane.searchers.search import (
    MethodPlan,
    SearchPlan,
    SearchState,
    SearchStep,
    begin,
    expand,
    handle,
    progress,
)
from control_plane.searchers.space import Double, Group
from tests.unit.searchers.kept import Kept

SPACE = Group({"x": Double(0.0, 1.0, None)})
STATE = TypeAdapter(SearchState)


class Asked(NamedTuple):
    """What a search asked for in answer to one event, the closings that came later included."""

    created: int
    trains: dict[int, int]
    closes: frozenset[int]


@dataclass
class Trial:
    """The length a trial trains to, the one it reached, whether it is to end after that, and what
    it reported as progress.
    """

    length: int
    reached: int = 0
    closed: bool = False
    units: float = 0.0

    @property
    def waits(self) -> bool:
        """Whether it can do nothing before it hears a word."""
        return self.reached == self.length and not self.closed


@dataclass
class Driven:
    """A search; `waits` leaves what comes later for `settled` or `went_on`. `trials` are open."""

    plan: MethodPlan
    expand_max: int = 100
    waits: bool = False
    space: Group = SPACE
    seed: int = 7
    trials: dict[int, Trial] = field(default_factory=dict)
    created: list[CreateTrial] = field(default_factory=list)
    shutdowns: list[Shutdown] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.search = SearchPlan(self.plan, self.space, self.seed)
        self.parts = Kept()
        self.more = False
        self._generator = Generator.seeded(self.seed)
        self.state: SearchState
        self.first = self._taken(begin(self.search, self.parts))

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

    def progressed(self, trial: int, units: float) -> Asked:
        """The trial trained so much more."""
        self.trials[trial].units += units
        return self.told(TrialProgressed(trial, units))

    def exited(self, trial: int, reason: ExitReason = ExitReason.ERRORED) -> Asked:
        """The trial ended early."""
        now = self.trials.pop(trial)
        return self.told(TrialExited(trial, reason, now.units, now.reached))

    def ended(self, trial: int) -> Asked:
        """The trial, closed, ended normally."""
        now = self.trials.pop(trial)
        assert now.closed
        assert now.reached == now.length
        return self.told(TrialClosed(trial, now.units))

    def told(self, event: Event) -> Asked:
        """The answer to an event."""
        return self._taken(
            self._stepped(
                lambda state, generator: handle(
                    self.search, state, generator, event, self.expand_max, self.parts
                )
            )
        )

    def went_on(self) -> Asked:
        """A part of what was left to create and to close."""
        return self._noted(
            self._stepped(
                lambda state, generator: expand(
                    self.search, state, generator, self.expand_max, self.parts
                )
            )
        )

    def settled(self) -> Asked:
        """What was left to create and to close."""
        asked = self.went_on()
        while self.more:
            asked = _both(asked, self.went_on())
        return asked

    @property
    def progress(self) -> float:
        return progress(self.search, self.state)

    def _stepped(self, step_of: Callable[[SearchState, Generator], SearchStep]) -> SearchStep:
        stored = STATE.validate_json(STATE.dump_json(self.state))
        assert stored == self.state
        generator = Generator.restored(self._generator.key, stored.position)
        step = step_of(stored, generator)
        self._generator = generator
        return step

    def _taken(self, step: SearchStep) -> Asked:
        asked = self._noted(step)
        return asked if self.waits or not self.more else _both(asked, self.settled())

    def _noted(self, step: SearchStep) -> Asked:
        self.state, self.more = step.state, step.more
        created, trains, closes = len(self.created), dict[int, int](), set[int]()
        for operation in step.operations:
            assert not self.shutdowns, f"{operation} came after the end"
            match operation:
                case CreateTrial(trial=trial, length=length, closed=closed):
                    assert trial == len(self.created)
                    assert length is not None
                    self.trials[trial] = Trial(length, closed=closed)
                    self.created.append(operation)
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
        count = len(self.created) - created
        assert count <= self.expand_max
        return Asked(count, trains, frozenset(closes))


def _both(asked: Asked, later: Asked) -> Asked:
    created, trains = asked.created + later.created, asked.trains | later.trains
    return Asked(created, trains, asked.closes | later.closes)


NOTHING = Asked(0, {}, frozenset())
CREATES = Asked(1, {}, frozenset())


def trains(trial: int, length: int, *, created: int = 0, closes: tuple[int, ...] = ()) -> Asked:
    """One trial goes on."""
    return Asked(created, {trial: length}, frozenset(closes))


def closes(*trials: int, created: int = 0) -> Asked:
    """Some trials are closed."""
    return Asked(created, {}, frozenset(trials))
