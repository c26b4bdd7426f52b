"""From a checked configuration to what the searchers run."""

from __future__ import annotations

from control_plane.config.eras import Era
from control_plane.config.hyperparameters import Group, grid_points, space_of
from control_plane.config.searcher import (
    Adaptive,
    Asynchronous,
    Budgeted,
    Custom,
    Halving,
    LengthAdaptive,
    LengthAdaptiveAsha,
    LengthAdaptiveSimple,
    LengthAsyncHalving,
    LengthGrid,
    LengthRandom,
    LengthSingle,
    LengthSyncHalving,
    RandomTrials,
    Searcher,
    StepAdaptive,
    StepAdaptiveAsha,
    StepAdaptiveSimple,
    StepAsyncHalving,
    StepGrid,
    StepRandom,
    StepSingle,
    StepSyncHalving,
)
from control_plane.searchers import rules as searchers_rules
from control_plane.searchers.brackets import adaptive, adaptive_asha, adaptive_simple, rungs_of
from control_plane.searchers.custom import CustomPlan
from control_plane.searchers.grid import GridPlan
from control_plane.searchers.halving import HalvingPlan
from control_plane.searchers.random import RandomPlan
from control_plane.searchers.rules import Rules
from control_plane.searchers.search import MethodPlan, SearchPlan
from control_plane.searchers.single import SinglePlan
from control_plane.searchers.synchronous import Ladder, SyncHalvingPlan
from control_plane.searchers.tournament import TournamentPlan

AVAILABLE = (
    "single",
    "random",
    "grid",
    "sync_halving",
    "async_halving",
    "adaptive",
    "adaptive_simple",
    "adaptive_asha",
    "custom",
)


class SearcherNotAvailable(ValueError):
    """A configuration is valid, but its searcher cannot run yet."""

    def __init__(self, name: str) -> None:
        available = ", ".join(AVAILABLE)
        super().__init__(f"{name} is not available yet; available: {available}")


class NotForeseeable(SearcherNotAvailable):
    """What a search does is for the user's own search method to say."""

    def __init__(self) -> None:
        ValueError.__init__(
            self,
            "custom is driven by a search method of yours: what that will ask for cannot be "
            "previewed",
        )


def search_plan(searcher: Searcher, space: Group, seed: int, era: Era) -> SearchPlan:
    """The search in the configuration's unit; SearcherNotAvailable for those still to come."""
    return SearchPlan(_method_plan(searcher, era), space_of(space), seed)


def trial_count(searcher: Searcher, space: Group) -> int | None:
    """How many trials the search creates, None where their results decide that."""
    match searcher:
        case StepSingle() | LengthSingle():
            return 1
        case StepGrid() | LengthGrid():
            return grid_points(space, integers_extra=1)
        case RandomTrials(max_trials=trials):
            return trials
        case _:
            return None


def budgeted_trials(searcher: Searcher, era: Era) -> int | None:
    """How many trials a budget is enough for, None for a search without one."""
    if not isinstance(searcher, StepSyncHalving | StepAdaptive | Budgeted):
        return None
    plan = _method_plan(searcher, era)
    brackets = plan.brackets if isinstance(plan, TournamentPlan) else (plan,)
    return sum(one.first_trials for one in brackets if isinstance(one, SyncHalvingPlan))


def _method_plan(searcher: Searcher, era: Era) -> MethodPlan:
    rules = searchers_rules.STEP_ERA if era is Era.STEP else searchers_rules.LENGTH_ERA
    match searcher:
        case StepSingle(max_steps=length) | LengthSingle(max_length=length):
            return SinglePlan(length.count, rules)
        case StepRandom(max_steps=length, max_trials=trials):
            return RandomPlan(length.count, trials, 0, rules)
        case LengthRandom(max_length=length, max_trials=trials, max_concurrent_trials=concurrent):
            return RandomPlan(length.count, trials, concurrent, rules)
        case StepGrid(max_steps=length):
            return GridPlan(length.count, 0, rules)
        case LengthGrid(max_length=length, max_concurrent_trials=concurrent):
            return GridPlan(length.count, concurrent, rules)
        case Custom(unit=unit):
            return CustomPlan(unit or "batches", rules)
        case Asynchronous(max_time=int()):
            raise SearcherNotAvailable(f"searcher {searcher.name} by max_time")
        case _:
            return _compared_plan(searcher, rules)


def _compared_plan(searcher: Searcher, rules: Rules) -> MethodPlan:
    """Of the searches that compare trials while they train."""
    match searcher:
        case StepAsyncHalving() | LengthAsyncHalving():
            return _halving_plan(searcher, searcher.num_rungs, rules)
        case StepAdaptiveAsha() | LengthAdaptiveAsha():
            whole = _halving_plan(searcher, searcher.max_rungs, rules)
            return adaptive_asha(whole, searcher.mode, searcher.bracket_rungs)
        case StepSyncHalving(step_budget=budget) | LengthSyncHalving(budget=budget):
            return _ladder(searcher, rules).within_budget(searcher.num_rungs, budget.count)
        case StepAdaptive(step_budget=budget) | LengthAdaptive(budget=budget):
            rungs = rungs_of(searcher.mode, searcher.max_rungs, searcher.bracket_rungs)
            return adaptive(_ladder(searcher, rules), budget.count, rungs)
        case StepAdaptiveSimple() | LengthAdaptiveSimple():
            rungs = rungs_of(searcher.mode, searcher.max_rungs)
            return adaptive_simple(_ladder(searcher, rules), searcher.max_trials, rungs)
        case _:
            raise SearcherNotAvailable(f"searcher {searcher.name}")


def _halving_plan(
    searcher: StepAsyncHalving | StepAdaptiveAsha | LengthAsyncHalving | LengthAdaptiveAsha,
    rungs: int,
    rules: Rules,
) -> HalvingPlan:
    return HalvingPlan(
        max_length=_trial_length(searcher),
        num_rungs=rungs,
        divisor=searcher.divisor,
        max_trials=searcher.max_trials,
        max_concurrent_trials=searcher.max_concurrent_trials,
        smaller_is_better=searcher.smaller_is_better,
        rules=rules,
        stops=isinstance(searcher, Asynchronous) and searcher.stop_once,
    )


def _ladder(searcher: Halving | Adaptive, rules: Rules) -> Ladder:
    return Ladder(_trial_length(searcher), searcher.divisor, searcher.smaller_is_better, rules)


def _trial_length(searcher: Searcher) -> int:
    """How long a trial trains at most, in the configuration's unit."""
    return next(iter(searcher.lengths().values())).count
