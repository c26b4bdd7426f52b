"""Every search of a configuration, under any legal order of events.

A new searcher is a row of `SEARCHERS`.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from control_plane.config.check import check_config
from control_plane.config.experiment import ExperimentConfig
from control_plane.config.problems import ConfigInvalid
from control_plane.searchers.era_rules import STEP_ERA
from control_plane.searchers.halving.multi_bracket import MultiBracketPlan, MultiBracketState
from control_plane.searchers.halving.synchronous import SyncHalvingPlan, SyncHalvingState
from control_plane.searchers.method import (
    CreateTrial,
    Event,
    ExitReason,
    MethodPlan,
    Shutdown,
    TrialLengthReached,
)
from control_plane.searchers.methods.grid import GridPlan
from control_plane.searchers.methods.pbt import PopulationPlan
from control_plane.searchers.methods.random import RandomPlan
from control_plane.searchers.methods.single import SinglePlan
from control_plane.searchers.randomness import Generator
from control_plane.searchers.registry import searcher_specs
from control_plane.searchers.search import SearchPlan, begin_search, expand_creates
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
from tests.unit.config.samples import LENGTH, STEP, change_fields, to_yaml
from tests.unit.searchers.driven_search import Answer, DrivenSearch

# Invalid trials are replaced without a limit, so a run has to stop making them.
INVALID_MAX = 4
TRIALS_MAX = 24
# Floating sums of exact multiples of 1/4 are exact; only the division rounds.
EPSILON = 1e-12

few = st.integers(1, 12)
concurrencies = st.integers(0, 5)
divisors = st.sampled_from([1.5, 2.0, 3.0, 4.0])
modes = st.sampled_from(["aggressive", "standard", "conservative"])
rungs = st.integers(1, 4)
# In units of a trial's length: a budget is some complete trainings and a rest.
budgets = st.integers(1, 6)
halved = {"divisor": divisors, "num_rungs": rungs}
adaptive = {"divisor": divisors, "max_rungs": rungs, "mode": modes}
bracketed = {"bracket_rungs": st.lists(rungs, max_size=3)}
at_once = {"max_concurrent_trials": concurrencies}
stopping = {"stop_once": st.booleans()}
rounds = {
    "population_size": st.integers(1, 7),
    "num_rounds": st.integers(1, 4),
    "replace_function": st.fixed_dictionaries({"truncate_fraction": st.floats(0, 0.5)}),
    "explore_function": st.fixed_dictionaries(
        {
            "resample_probability": st.floats(0, 1),
            "perturb_factor": st.floats(0, 1),
            "move_integers": st.booleans(),
        }
    ),
}

Fields = Mapping[str, st.SearchStrategy[Any]]
SEARCHERS: Mapping[str, tuple[str, Fields, Fields]] = {
    # By name: the step era's field for a trial's length, the fields of both eras, and the
    # additional fields of the length era. A searcher without a step era uses the length era's
    # length.
    "single": ("max_steps", {}, {}),
    "random": ("max_steps", {"max_trials": few}, at_once),
    "grid": ("max_steps", {}, at_once),
    "async_halving": ("target_trial_steps", {**halved, **at_once, "max_trials": few}, stopping),
    "adaptive_asha": (
        "target_trial_steps",
        {**adaptive, **bracketed, **at_once, "max_trials": few},
        stopping,
    ),
    "sync_halving": ("target_trial_steps", {**halved, "budget": budgets}, {}),
    "adaptive": ("target_trial_steps", {**adaptive, **bracketed, "budget": budgets}, {}),
    "adaptive_simple": ("max_steps", {**adaptive, "max_trials": few}, {}),
    "pbt": ("steps_per_round", rounds, {}),
}
# The length era's field for a trial's length if other than max_length.
LENGTH_NAMES = {"pbt": "length_per_round"}
SYNCHRONOUS = {"sync_halving", "adaptive", "adaptive_simple"}
# Searchers that refuse more rungs than lengths, or a budget for no trial.
IMPOSSIBLE = {
    f"searcher.{name}" for name in ("num_rungs", "bracket_rungs", "step_budget", "budget")
}
# Searchers with external decisions, whose properties are tested elsewhere.
ADVISED = {"bayesian", "custom"}

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


@st.composite
def configs(draw: st.DrawFn, names: Collection[str]) -> ExperimentConfig:
    """Return a configuration of either era with at most `TRIALS_MAX` trials."""
    name = draw(st.sampled_from(sorted(names)))
    in_steps, both, in_lengths = SEARCHERS[name]
    is_steps, length = draw(st.booleans()), draw(st.integers(1, 30))
    fields = draw(st.fixed_dictionaries({**both, **({} if is_steps else in_lengths)}))
    fields |= {"name": name, "metric": "m", "smaller_is_better": draw(st.booleans())}
    fields[in_steps if is_steps else LENGTH_NAMES.get(name, "max_length")] = length
    if budget := fields.pop("budget", None):
        fields["step_budget" if is_steps else "budget"] = length * budget + 1
    changes = {
        "searcher": fields,
        "hyperparameters.global_batch_size": 8,
        "reproducibility.experiment_seed": draw(st.integers(0, 2**31 - 1)),
    }
    text = to_yaml(change_fields(STEP if is_steps else LENGTH, changes))
    try:
        config = check_config(text)
    except ConfigInvalid as error:
        assume(not {problem.path.partition("[")[0] for problem in error.problems} <= IMPOSSIBLE)
        raise
    assume((config.trials or 0) <= TRIALS_MAX)
    return config


@st.composite
def plans(draw: st.DrawFn, names: Collection[str] = SEARCHERS) -> SearchPlan:
    """Return a search plan of any configuration, over any space."""
    plan = draw(configs(names)).search_plan()
    space = draw(spaces)
    assume(not isinstance(plan.method, GridPlan) or grid_size(space) <= TRIALS_MAX)
    return replace(plan, space=space)


@dataclass
class Run:
    """A search with trials that act at random, and occasionally repeated reports."""

    plan: SearchPlan
    create_max: int
    exits: list[ExitReason] = field(default_factory=list)

    def __post_init__(self) -> None:
        method, space, seed = self.plan.method, self.plan.space, self.plan.seed
        self.real = DrivenSearch(method, self.create_max, waits=True, space=space, seed=seed)
        self.done = self.real.progress

    @property
    def is_over(self) -> bool:
        return bool(self.real.shutdowns)

    @property
    def invalid(self) -> int:
        return sum(reason.is_invalid_hparams for reason in self.exits)

    def advance(self, data: st.DataObject) -> None:
        """Create or close some trials, or let a trial do a legal step."""
        real = self.real
        movable = sorted(trial for trial, now in real.trials.items() if not now.is_waiting)
        forfeited = 0.0
        if real.more and (not movable or data.draw(st.booleans())):
            real.expand_once()
        elif real.trials and data.draw(st.integers(0, 9)) == 0:
            forfeited = self._exit_trial(data, data.draw(st.sampled_from(sorted(real.trials))))
        else:
            assert movable, "all trials wait for the search"
            self._move_trial(data, data.draw(st.sampled_from(movable)))
        before, self.done = self.done, real.progress
        assert before - forfeited - EPSILON <= self.done <= 1

    def _exit_trial(self, data: st.DataObject, trial: int) -> float:
        """Let a trial exit; return the share of progress that no longer counts."""
        reasons = [r for r in ExitReason if self.invalid < INVALID_MAX or not r.is_invalid_hparams]
        reason = data.draw(st.sampled_from(reasons))
        units = self.real.trials[trial].units
        self.exits.append(reason)
        self.real.exit_trial(trial, reason)
        method = self.plan.method
        if not reason.is_invalid_hparams or method.rules is STEP_ERA or is_synchronous(method):
            return 0.0
        if isinstance(method, PopulationPlan):
            return 0.0
        if isinstance(method, RandomPlan | SinglePlan | GridPlan):
            return units / (method.max_length * trials_max(self.plan))
        return 1.0

    def _move_trial(self, data: st.DataObject, trial: int) -> None:
        now = self.real.trials[trial]
        if now.reached == now.length:
            self.real.end_trial(trial)
        elif now.units < now.length and data.draw(st.booleans()):
            blobs = 1 if self.plan.method.rules is STEP_ERA else 4
            most = int((now.length - now.units) * blobs)
            self.real.report_progress(trial, data.draw(st.integers(1, most)) / blobs)
        else:
            metrics = st.sampled_from([0.0, 1.0, 2.0]) | st.floats(allow_nan=False)
            length, metric = now.length, data.draw(metrics)
            self.real.report_result(trial, metric)
            if data.draw(st.integers(0, 3)) == 0:
                self._repeat_event(TrialLengthReached(trial, length, metric))

    def _repeat_event(self, event: Event) -> None:
        """Repeat a report, and check that the search does not change."""
        real = self.real
        before, contents = real.state.method, dict(real.blobs.contents)
        # The search may continue with waiting operations, which do not answer the report.
        waiting = real.more
        answer = real.send_event(event)
        if not waiting:
            assert (answer, real.state.method) == (Answer(0, {}, frozenset()), before)
            assert real.blobs.contents == contents


def run_to_end(plan: SearchPlan, create_max: int, data: st.DataObject) -> Run:
    run = Run(plan, create_max)
    while not run.is_over:
        run.advance(data)
    return run


def brackets(method: MethodPlan) -> tuple[MethodPlan, ...]:
    return method.brackets if isinstance(method, MultiBracketPlan) else (method,)


def is_synchronous(method: MethodPlan) -> bool:
    return isinstance(brackets(method)[0], SyncHalvingPlan)


@runtime_checkable
class HasTrials(Protocol):
    """A plan with a fixed number of trials."""

    @property
    def max_trials(self) -> int: ...


def trials_max(plan: SearchPlan) -> int:
    """Return the number of trials without replacements of invalid trials."""
    counts = 0
    for one in brackets(plan.method):
        match one:
            case SinglePlan():
                counts += 1
            case GridPlan():
                counts += grid_size(plan.space)
            case SyncHalvingPlan(first_trials=trials):
                counts += trials
            case other:
                assert isinstance(other, HasTrials), other
                counts += other.max_trials
    return counts


def replacement_count(run: Run) -> int:
    """Return the number of replacements of invalid trials."""
    method = run.plan.method
    keeps = isinstance(method, SinglePlan | GridPlan | PopulationPlan) or is_synchronous(method)
    return 0 if keeps or method.rules is STEP_ERA else run.invalid


def test_every_searcher_is_tested_here() -> None:
    known = {spec.name for spec in searcher_specs()}
    assert known - ADVISED == set(SEARCHERS)


@settings(deadline=None, derandomize=True, max_examples=120)
@given(plans(), st.integers(1, 9), st.data())
def test_every_search_ends_with_all_trials_closed(
    plan: SearchPlan, create_max: int, data: st.DataObject
) -> None:
    run = run_to_end(plan, create_max, data)
    trials = len(run.real.created)
    assert not run.real.trials
    assert not run.real.more
    expected = trials_max(plan) + replacement_count(run)
    # A failed trial is not copied.
    fewer = isinstance(plan.method, PopulationPlan) and run.exits
    assert trials <= expected if fewer else trials == expected
    tally = run.real.state.tally
    assert tally.closed == tally.requested == trials
    assert run.done == 1.0
    any_exit = plan.method.rules is STEP_ERA
    failed = len(run.exits) if any_exit else run.exits.count(ExitReason.ERRORED)
    failed_all = failed >= trials
    canceled = not failed_all and run.exits.count(ExitReason.USER_CANCELED) >= trials
    assert run.real.shutdowns == [Shutdown(failure=failed_all, cancel=canceled)]


@settings(deadline=None, derandomize=True, max_examples=50)
@given(plans(SYNCHRONOUS), st.integers(1, 9), st.data())
def test_synchronous_search_fills_rungs_exactly(
    plan: SearchPlan, create_max: int, data: st.DataObject
) -> None:
    state = run_to_end(plan, create_max, data).real.state.method
    states = state.brackets if isinstance(state, MultiBracketState) else (state,)
    for one, ended in zip(brackets(plan.method), states, strict=True):
        assert isinstance(one, SyncHalvingPlan)
        assert isinstance(ended, SyncHalvingState)
        assert ended.results == one.trials or not one.first_trials


@settings(deadline=None, derandomize=True)
@given(plans({"single", "random", "grid"}), st.integers(1, 9), st.data())
def test_number_of_open_trials_is_limited(
    plan: SearchPlan, create_max: int, data: st.DataObject
) -> None:
    method = plan.method
    limit = method.max_concurrent_trials if isinstance(method, RandomPlan | GridPlan) else 0
    run = Run(plan, create_max)
    while not run.is_over:
        assert method.rules is STEP_ERA or not limit or len(run.real.trials) <= limit
        assert len(run.real.state.backlog) <= 1
        run.advance(data)


@settings(deadline=None, derandomize=True, max_examples=50)
@given(plans(SEARCHERS.keys() - {"pbt"}), st.integers(1, 9), st.data())
def test_drawn_hyperparameters_do_not_depend_on_chunks_and_events(
    plan: SearchPlan, create_max: int, data: st.DataObject
) -> None:
    run = run_to_end(plan, create_max, data)
    method = plan.method
    if isinstance(method, GridPlan):
        method = replace(method, max_concurrent_trials=0)
    elif not isinstance(method, SinglePlan):
        method = RandomPlan(1, TRIALS_MAX + INVALID_MAX, 0, method.rules)
    everything = replace(plan, method=method)
    begun = begin_search(everything).state
    if not begun.shutdown:
        generator = Generator.from_seed(plan.seed)
        drawn = expand_creates(everything, begun, generator, create_max=1000).operations
        expected = [drawn_values(one) for one in drawn if isinstance(one, CreateTrial)]
        assert [drawn_values(one) for one in run.real.created] == expected[: len(run.real.created)]


def drawn_values(created: CreateTrial) -> tuple[object, ...]:
    return created.request_id, created.seed, created.hparams


@settings(deadline=None, derandomize=True)
@given(spaces)
def test_grid_points_are_distinct(space: Group) -> None:
    points = [repr(grid_point(space, index)) for index in range(grid_size(space))]
    assert len(set(points)) == len(points)
