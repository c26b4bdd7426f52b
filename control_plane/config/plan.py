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
    LengthBayesian,
    LengthGrid,
    LengthRandom,
    LengthSingle,
    LengthSyncHalving,
    Population,
    RandomTrials,
    Searcher,
    StepAdaptive,
    StepAdaptiveAsha,
    StepAdaptiveSimple,
    StepAsyncHalving,
    StepBayesian,
    StepGrid,
    StepRandom,
    StepSingle,
    StepSyncHalving,
)
from control_plane.searchers import rules as searchers_rules
from control_plane.searchers.bayesian import BayesianPlan
from control_plane.searchers.brackets import adaptive, adaptive_asha, adaptive_simple, rungs_of
from control_plane.searchers.custom import CustomPlan
from control_plane.searchers.exploration import Exploration
from control_plane.searchers.grid import GridPlan
from control_plane.searchers.halving import HalvingPlan
from control_plane.searchers.population import PopulationPlan
from control_plane.searchers.random import RandomPlan
from control_plane.searchers.rules import Rules
from control_plane.searchers.search import MethodPlan, SearchPlan
from control_plane.searchers.single import SinglePlan
from control_plane.searchers.synchronous import Ladder, SyncHalvingPlan
from control_plane.searchers.tournament import TournamentPlan

# Searchers whose trials all train to the end.
TO_THE_END = ("single", "random", "grid", "bayesian")


class NotForeseeable(ValueError):
    """What a search does is for the user's own search method to say."""

    def __init__(self) -> None:
        super().__init__(
            "custom is driven by a search method of yours: what that will ask for cannot be "
            "previewed"
        )


def search_plan(searcher: Searcher, space: Group, seed: int, era: Era) -> SearchPlan:
    """The search, in the configuration's unit."""
    return SearchPlan(_method_plan(searcher, era), space_of(space), seed)


def trial_count(searcher: Searcher, space: Group, era: Era) -> int | None:
    """How many trials the search creates, replacements of invalid ones aside; None where that is
    decided as it goes.
    """
    match searcher:
        case StepSingle() | LengthSingle():
            return 1
        case StepGrid() | LengthGrid():
            return grid_points(space, integers_extra=1)
        case Asynchronous(max_time=int(), max_trials=trials):
            return trials
        case Adaptive() | StepSyncHalving() | LengthSyncHalving():
            # Each bracket has a trial at least, however few there are to share.
            return _bracket_trials(searcher, era)
        case RandomTrials(max_trials=trials):
            return trials
        case Population():
            return _population_plan(searcher, searchers_rules.STEP_ERA).max_trials
        case _:
            return None


def budgeted_trials(searcher: Searcher, era: Era) -> int | None:
    """How many trials a budget is enough for, None for a search without one."""
    if not isinstance(searcher, StepSyncHalving | StepAdaptive | Budgeted):
        return None
    return _bracket_trials(searcher, era)


def _bracket_trials(searcher: Searcher, era: Era) -> int:
    plan = _method_plan(searcher, era)
    brackets = plan.brackets if isinstance(plan, TournamentPlan) else (plan,)
    synchronous = sum(one.first_trials for one in brackets if isinstance(one, SyncHalvingPlan))
    return synchronous + sum(one.max_trials for one in brackets if isinstance(one, HalvingPlan))


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
        case StepBayesian() | LengthBayesian():
            return BayesianPlan(
                max_length=_trial_length(searcher),
                max_trials=searcher.max_trials,
                max_concurrent_trials=searcher.max_concurrent_trials,
                startup_trials=searcher.startup_trials,
                rules=rules,
            )
        case Custom(unit=unit):
            return CustomPlan(unit or "batches", rules)
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
        case Population():
            return _population_plan(searcher, rules)
        case _:
            raise AssertionError(f"searcher {searcher.name} has no plan")


def _halving_plan(
    searcher: StepAsyncHalving | StepAdaptiveAsha | LengthAsyncHalving | LengthAdaptiveAsha,
    rungs: int,
    rules: Rules,
) -> HalvingPlan:
    max_time = searcher.max_time if isinstance(searcher, Asynchronous) else None
    return HalvingPlan(
        max_length=_trial_length(searcher) if max_time is None else max_time,
        num_rungs=rungs,
        divisor=searcher.divisor,
        max_trials=searcher.max_trials,
        max_concurrent_trials=searcher.max_concurrent_trials,
        smaller_is_better=searcher.smaller_is_better,
        rules=rules,
        stops=isinstance(searcher, Asynchronous) and searcher.stop_once,
        by_time=max_time is not None,
    )


def _population_plan(searcher: Population, rules: Rules) -> PopulationPlan:
    explore = searcher.explore_function
    return PopulationPlan(
        length_per_round=_trial_length(searcher),
        population_size=searcher.population_size,
        num_rounds=searcher.num_rounds,
        truncate_fraction=searcher.replace_function.truncate_fraction,
        exploration=Exploration(explore.resample_probability, explore.perturb_factor),
        smaller_is_better=searcher.smaller_is_better,
        rules=rules,
    )


def _ladder(searcher: Halving | Adaptive, rules: Rules) -> Ladder:
    return Ladder(_trial_length(searcher), searcher.divisor, searcher.smaller_is_better, rules)


def _trial_length(searcher: Searcher) -> int:
    """How long a trial trains at most, in the configuration's unit."""
    return next(iter(searcher.lengths().values())).count
