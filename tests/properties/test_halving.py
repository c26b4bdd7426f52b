"""Halvings under any legal order of events, their state stored after each."""

from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from control_plane.searchers.halving import HalvingPlan, HalvingState
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
from control_plane.searchers.rules import LENGTH_ERA, STEP_ERA
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
from control_plane.searchers.synchronous import Ladder, SyncHalvingPlan, SyncHalvingState
from control_plane.searchers.tournament import (
    BracketPlan,
    BracketState,
    TournamentPlan,
    TournamentState,
)
from tests.unit.searchers.kept import Kept

SPACE = Group({"x": Double(0.0, 1.0, None)})
STATE = TypeAdapter(SearchState)
INVALID_MAX = 3

eras = st.sampled_from([STEP_ERA, LENGTH_ERA])
halvings = st.builds(
    HalvingPlan,
    max_length=st.integers(1, 30),
    num_rungs=st.integers(1, 4),
    divisor=st.sampled_from([1.5, 2.0, 3.0, 4.0]),
    max_trials=st.integers(1, 12),
    max_concurrent_trials=st.integers(0, 5),
    smaller_is_better=st.booleans(),
    rules=eras,
    stops=st.booleans(),
)
ladders = st.builds(
    Ladder,
    max_length=st.integers(1, 30),
    divisor=st.sampled_from([1.5, 2.0, 3.0, 4.0]),
    smaller_is_better=st.booleans(),
    rules=eras,
)
rungs = st.integers(1, 4)
synchronous = st.one_of(
    st.builds(Ladder.within_budget, ladders, rungs, st.integers(1, 100)).filter(
        lambda plan: plan.first_trials <= 12
    ),
    st.builds(Ladder.with_trials, ladders, rungs, st.integers(1, 12)),
)
brackets: st.SearchStrategy[list[BracketPlan]] = st.one_of(
    st.lists(halvings, min_size=1, max_size=3), st.lists(synchronous, min_size=1, max_size=3)
)
# A tournament's brackets are of one kind and of one era.
tournaments = brackets.filter(lambda plans: len({plan.rules for plan in plans}) == 1).map(
    lambda plans: TournamentPlan(tuple(plans))
)
methods = st.one_of(halvings, synchronous, tournaments)


@dataclass
class Open:
    """A trial that runs: the length it trains to, the one it reached, and whether it may end."""

    length: int
    reached: int = 0
    units: float = 0.0
    closed: bool = False


@dataclass
class Run:
    """A search; `create_max` trials are created or closed at a time."""

    plan: SearchPlan
    create_max: int
    parts: Kept = field(default_factory=Kept)
    open: dict[int, Open] = field(default_factory=dict)
    created: int = 0
    invalid: int = 0
    ended: list[Shutdown] = field(default_factory=list)
    done: float = 0.0

    def __post_init__(self) -> None:
        self.generator = Generator.seeded(self.plan.seed)
        self._take(begin(self.plan, self.parts))

    def advance(self, data: st.DataObject) -> None:
        """Creates or closes some trials, or lets one do a legal thing, now and then twice."""
        movable = [trial for trial, now in self.open.items() if not _waits(now)]
        if self.more and (not movable or data.draw(st.booleans())):
            self._step(lambda s: expand(self.plan, s, self.generator, self.create_max, self.parts))
            return
        idle = [trial for trial in self.open if trial not in movable]
        assert movable or not idle, "trials wait for a word that never comes"
        exits = data.draw(st.integers(0, 9)) == 0
        trial = data.draw(st.sampled_from(sorted(self.open) if exits else sorted(movable)))
        event = self._exit(data, trial) if exits else self._event(data, trial)
        self._handled(event)
        if isinstance(event, TrialReached) and data.draw(st.integers(0, 3)) == 0:
            self._repeated(event)

    def _exit(self, data: st.DataObject, trial: int) -> Event:
        reasons = [r for r in ExitReason if self.invalid < INVALID_MAX or not r.invalid_hparams]
        reason = data.draw(st.sampled_from(reasons))
        now = self.open.pop(trial)
        if reason.invalid_hparams and replaces_invalid(self.plan):
            self.invalid += 1
            # Its results do not count any more.
            self.done = 0.0
        return TrialExited(trial, reason, now.units, now.reached)

    def _event(self, data: st.DataObject, trial: int) -> Event:
        now = self.open[trial]
        if now.reached == now.length:
            return TrialClosed(trial, self.open.pop(trial).units)
        if now.units < now.length and data.draw(st.booleans()):
            delta = data.draw(st.integers(1, int(now.length - now.units)))
            now.units += delta
            return TrialProgressed(trial, float(delta))
        now.reached = now.length
        metric = data.draw(st.sampled_from([0.0, 1.0, 2.0]) | st.floats(-9, 9))
        return TrialReached(trial, now.length, metric)

    def _handled(self, event: Event) -> None:
        generator, parts = self.generator, self.parts
        self._step(lambda s: handle(self.plan, s, generator, event, self.create_max, parts))

    def _repeated(self, event: TrialReached) -> None:
        """A report that comes again when its trial is in a later rung says nothing new."""
        if self.open[event.trial].length > event.length:
            before = self._results()
            self._handled(event)
            assert self._results() == before

    def _results(self) -> list[tuple[int, ...]]:
        return [one.results for one in states(self.state)]

    def _step(self, step_of: Callable[[SearchState], SearchStep]) -> None:
        self._take(step_of(STATE.validate_json(STATE.dump_json(self.state))))

    def _take(self, step: SearchStep) -> None:
        self.state, self.more = step.state, step.more
        for operation in step.operations:
            match operation:
                case CreateTrial(trial=trial, length=length):
                    assert trial == self.created
                    assert length is not None
                    self.created += 1
                    self.open[trial] = Open(length)
                case TrainTo(trial, length):
                    assert length > self.open[trial].length
                    assert not self.open[trial].closed
                    self.open[trial].length = length
                case Close(trial):
                    assert not self.open[trial].closed
                    self.open[trial].closed = True
                case Shutdown():
                    self.ended.append(operation)
        before, self.done = self.done, progress(self.plan, self.state)
        assert before - 1e-12 <= self.done <= 1


def _waits(trial: Open) -> bool:
    return trial.reached == trial.length and not trial.closed


def plans(plan: SearchPlan) -> list[BracketPlan]:
    method = plan.method
    found = method.brackets if isinstance(method, TournamentPlan) else (method,)
    return [one for one in found if isinstance(one, HalvingPlan | SyncHalvingPlan)]


def states(state: SearchState) -> list[BracketState]:
    method = state.method
    found = method.brackets if isinstance(method, TournamentState) else (method,)
    return [one for one in found if isinstance(one, HalvingState | SyncHalvingState)]


def trials_max(plan: BracketPlan) -> int:
    return plan.max_trials if isinstance(plan, HalvingPlan) else plan.first_trials


def replaces_invalid(plan: SearchPlan) -> bool:
    is_synchronous = any(isinstance(one, SyncHalvingPlan) for one in plans(plan))
    return plan.method.rules is LENGTH_ERA and not is_synchronous


@settings(deadline=None, derandomize=True, max_examples=400)
@given(methods, st.integers(1, 5), st.data())
def test_a_halving_ends_with_every_trial_created_and_closed(
    method: BracketPlan | TournamentPlan, create_max: int, data: st.DataObject
) -> None:
    run = Run(SearchPlan(method, SPACE, 7), create_max)
    while not run.state.shutdown:
        run.advance(data)
    assert not run.open
    assert run.created == sum(map(trials_max, plans(run.plan))) + run.invalid
    assert len(run.ended) == 1
    assert run.done == 1.0
    for plan, state in zip(plans(run.plan), states(run.state), strict=True):
        if isinstance(plan, SyncHalvingPlan) and plan.first_trials:
            assert state.results == plan.trials
