from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from control_plane.searchers.grid import GridPlan
from control_plane.searchers.method import (
    CreateTrial,
    Event,
    ExitReason,
    Shutdown,
    TrialClosed,
    TrialExited,
    TrialProgressed,
    TrialReached,
)
from control_plane.searchers.random import RandomPlan
from control_plane.searchers.randomness import Generator
from control_plane.searchers.rules import LENGTH_ERA, STEP_ERA
from control_plane.searchers.search import (
    MethodPlan,
    SearchPlan,
    SearchState,
    SearchStep,
    TrialOperation,
    begin,
    expand,
    handle,
    progress,
)
from control_plane.searchers.single import SinglePlan
from control_plane.searchers.space import (
    Categorical,
    Const,
    Double,
    Group,
    Int,
    Log,
    Parameter,
    grid_point,
    grid_size,
)

# Invalid trials are replaced without end, so a run has to stop making them.
INVALID_MAX = 4
# Floating sums of exact multiples of 1/4 are exact; the division alone rounds.
EPSILON = 1e-12

STATE = TypeAdapter(SearchState)

counts = st.integers(1, 3)
leaves: st.SearchStrategy[Parameter] = st.one_of(
    st.builds(Const, st.integers()),
    st.builds(
        lambda low, width, n: Int(low, low + width, n), st.integers(-999, 999), counts, counts
    ),
    st.builds(lambda low, n: Double(low, low + 1, n), st.integers(-9, 9), counts),
    st.builds(lambda low, n: Log(10, low, low + 1, n), st.integers(-9, 9), counts),
    st.builds(
        Categorical, st.lists(st.text(max_size=2), min_size=1, max_size=3, unique=True).map(tuple)
    ),
)
names = st.text("abAB12", min_size=1, max_size=3)
nested: st.SearchStrategy[Parameter] = st.dictionaries(names, leaves, max_size=2).map(Group)
spaces = st.dictionaries(names, leaves | nested, max_size=3).map(Group)
rules = st.sampled_from([STEP_ERA, LENGTH_ERA])
lengths = st.integers(1, 5)
concurrencies = st.integers(0, 4)
methods: st.SearchStrategy[MethodPlan] = st.one_of(
    st.builds(RandomPlan, lengths, st.integers(1, 8), concurrencies, rules),
    st.builds(SinglePlan, lengths, rules),
    st.builds(GridPlan, lengths, concurrencies, rules),
)
plans = st.builds(SearchPlan, methods, spaces, st.integers(0, 2**32 - 1))


@dataclass
class Open:
    """A trial that runs: what it reported, and whether its length was validated."""

    units: float = 0.0
    reached: bool = False


@dataclass
class Run:
    """One search under a random but legal order of events, its state stored after each."""

    plan: SearchPlan
    create_max: int
    open: dict[int, Open] = field(default_factory=dict)
    operations: list[TrialOperation] = field(default_factory=list)
    exits: list[ExitReason] = field(default_factory=list)
    # The share of progress that the trial just found invalid had made: it does not count any more.
    forfeited: float = 0.0

    def __post_init__(self) -> None:
        self.generator = Generator.seeded(self.plan.seed)
        self.done = 0.0
        self._take(begin(self.plan))

    def advance(self, data: st.DataObject) -> None:
        """Expand a chunk, or let one open trial do a legal thing."""
        if self.more and (not self.open or data.draw(st.booleans())):
            self._stored(lambda s, g: expand(self.plan, s, g, self.create_max))
            return
        trial = data.draw(st.sampled_from(sorted(self.open)))
        event = self._event(data, trial)
        self._stored(lambda s, g: handle(self.plan, s, g, event, self.create_max))

    @property
    def created(self) -> list[CreateTrial]:
        return [op for op in self.operations if isinstance(op, CreateTrial)]

    @property
    def invalid(self) -> int:
        return sum(reason.invalid_hparams for reason in self.exits)

    def _event(self, data: st.DataObject, trial: int) -> Event:
        now, length = self.open[trial], self.plan.method.max_length
        if data.draw(st.integers(0, 9)) == 0:
            reasons = [r for r in ExitReason if self.invalid < INVALID_MAX or not r.invalid_hparams]
            reason = data.draw(st.sampled_from(reasons))
            self.exits.append(reason)
            del self.open[trial]
            if reason.invalid_hparams and self.plan.method.rules is LENGTH_ERA:
                self.forfeited = now.units / (length * trials_max(self.plan, invalid=0))
            return TrialExited(trial, reason, now.units)
        if now.units < length:
            parts = 1 if self.plan.method.rules is STEP_ERA else 4
            delta = data.draw(st.integers(1, int((length - now.units) * parts))) / parts
            now.units += delta
            return TrialProgressed(trial, delta)
        if not now.reached:
            now.reached = True
            return TrialReached(trial, length, data.draw(st.floats()))
        return TrialClosed(trial, self.open.pop(trial).units)

    def _stored(self, step_of: Callable[[SearchState, Generator], SearchStep]) -> None:
        """Take a step from the live state and again from the stored one: they must agree."""
        key, position = self.generator.key, self.generator.position
        twin = Generator.restored(key, position)
        stored = STATE.validate_json(STATE.dump_json(self.state))
        assert stored.position == position
        step, again = step_of(self.state, self.generator), step_of(stored, twin)
        assert step == again
        assert (self.generator.key, self.generator.position) == (twin.key, twin.position)
        self._take(step)

    def _take(self, step: SearchStep) -> None:
        self.state, self.more = step.state, step.more
        self.operations += step.operations
        creates = [op for op in step.operations if isinstance(op, CreateTrial)]
        assert len(creates) <= self.create_max
        self.open.update((create.trial, Open()) for create in creates)
        before, self.done = self.done, progress(self.plan, self.state)
        assert before - self.forfeited - EPSILON <= self.done <= 1
        self.forfeited = 0.0


def finished(plan: SearchPlan, create_max: int, data: st.DataObject) -> Run:
    run = Run(plan, create_max)
    while not run.state.shutdown:
        run.advance(data)
    return run


def trials_max(plan: SearchPlan, invalid: int) -> int:
    match plan.method:
        case SinglePlan():
            return 1
        case GridPlan():
            return grid_size(plan.space)
        case RandomPlan(max_trials=max_trials, rules=era):
            return max_trials + (invalid if era is LENGTH_ERA else 0)
        case other:
            raise AssertionError(other)


@settings(deadline=None, derandomize=True)
@given(plans, st.integers(1, 9), st.data())
def test_every_search_ends_with_all_its_trials_closed(
    plan: SearchPlan, create_max: int, data: st.DataObject
) -> None:
    run = finished(plan, create_max, data)
    trials = len(run.created)
    assert not run.open
    assert not run.more
    assert trials == trials_max(plan, run.invalid)
    assert [create.trial for create in run.created] == list(range(trials))
    assert run.state.tally.closed == run.state.tally.requested == trials
    assert run.done == 1.0
    any_exit = plan.method.rules is STEP_ERA
    failed = len(run.exits) if any_exit else run.exits.count(ExitReason.ERRORED)
    failed_all = failed >= trials
    canceled = not failed_all and run.exits.count(ExitReason.USER_CANCELED) >= trials
    ends = [op for op in run.operations if isinstance(op, Shutdown)]
    assert ends == [Shutdown(failure=failed_all, cancel=canceled)]
    assert run.operations[-1] == ends[0]


@settings(deadline=None, derandomize=True)
@given(plans, st.integers(1, 9), st.data())
def test_no_more_trials_are_open_than_allowed(
    plan: SearchPlan, create_max: int, data: st.DataObject
) -> None:
    method = plan.method
    limit = method.max_concurrent_trials if isinstance(method, RandomPlan | GridPlan) else 0
    run = Run(plan, create_max)
    while not run.state.shutdown:
        assert method.rules is STEP_ERA or not limit or len(run.open) <= limit
        assert len(run.state.backlog) <= 1
        run.advance(data)


@settings(deadline=None, derandomize=True)
@given(plans, st.integers(1, 9), st.data())
def test_neither_chunks_nor_events_change_what_a_trial_draws(
    plan: SearchPlan, create_max: int, data: st.DataObject
) -> None:
    run = finished(plan, create_max, data)
    at_once = plan
    if isinstance(plan.method, RandomPlan):
        everything = RandomPlan(plan.method.max_length, 8 + INVALID_MAX, 0, plan.method.rules)
        at_once = SearchPlan(everything, plan.space, plan.seed)
    elif isinstance(plan.method, GridPlan):
        unlimited = GridPlan(plan.method.max_length, 0, plan.method.rules)
        at_once = SearchPlan(unlimited, plan.space, plan.seed)
    generator = Generator.seeded(plan.seed)
    state = begin(at_once).state
    if not state.shutdown:
        expected = expand(at_once, state, generator, create_max=1000).operations
        assert tuple(run.created) == expected[: len(run.created)]


@settings(deadline=None, derandomize=True)
@given(spaces)
def test_no_two_grid_points_are_equal(space: Group) -> None:
    points = [repr(grid_point(space, index)) for index in range(grid_size(space))]
    assert len(set(points)) == len(points)
