"""Asynchronous halvings side by side that share a number of trials.

Source: Li et al., "A System for Massively Parallel Hyperparameter Tuning" (2020), for the idea; the
formulas are those of Determined. Rungs are counted in whole numbers: as floats ln 243 / ln 3 falls
short of 5 on some machines.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from math import inf
from operator import add

from control_plane.field_types import CountOrZero, Steps
from control_plane.searchers.era_rules import SearchRules
from control_plane.searchers.halving.asynchronous import HalvingPlan, plan_halving
from control_plane.searchers.halving.multi_bracket import (
    MultiBracketPlan,
    MultiBracketState,
    divide_evenly,
    make_multi_bracket,
    preview_brackets,
    rung_counts,
)
from control_plane.searchers.halving.options import (
    AdaptiveOptions,
    AsynchronousOptions,
    Brackets,
    Mode,
    find_too_many_rungs,
)
from control_plane.searchers.halving.rung_progress import read_multi_bracket
from control_plane.searchers.halving.rungs import count_powers, power
from control_plane.searchers.options import TrialCountOptions
from control_plane.searchers.spec import SearcherSpec


class StepAdaptiveAsha(AdaptiveOptions, TrialCountOptions):
    """Asynchronous halvings side by side."""

    target_trial_steps: Steps
    """The largest number of steps that a trial trains."""
    bracket_rungs: Brackets = ()
    """The number of rungs of each bracket, instead of those of the mode."""
    max_concurrent_trials: CountOrZero = 0
    """The number of trials at a time; with 0 the search decides."""


class LengthAdaptiveAsha(AdaptiveOptions, AsynchronousOptions):
    """Asynchronous halvings side by side."""

    bracket_rungs: Brackets = ()
    """The number of rungs of each bracket, instead of those of the mode."""


Options = StepAdaptiveAsha | LengthAdaptiveAsha


def plan_adaptive_asha(
    total: HalvingPlan, mode: Mode, bracket_rungs: Sequence[int] = ()
) -> MultiBracketPlan:
    """Plan asynchronous halvings that share the trials of `total` and how many are open at the
    start, with at most its rungs unless `bracket_rungs` lists them.
    """
    rungs = rung_counts(mode, _rungs_max(total), bracket_rungs)
    trials = divide_trials(rungs, total.divisor, total.max_trials)
    concurrent = divide_concurrency(trials, total)
    brackets = zip(rungs, trials, concurrent, strict=True)
    return MultiBracketPlan(
        tuple(
            replace(total, num_rungs=count, max_trials=share, max_concurrent_trials=first)
            for count, share, first in brackets
        )
    )


def _rungs_max(total: HalvingPlan) -> int:
    """Return the number of rungs above which trials would have no length to be compared at, or none
    would go on.
    """
    most = min(total.max_length, total.max_trials)
    return count_powers(most, total.divisor, total.num_rungs - 1) + 1


def divide_trials(rungs: Sequence[int], divisor: float, max_trials: int) -> tuple[int, ...]:
    """Divide trials among brackets in proportion to divisor^(rungs - 1) / rungs, at least one each;
    what is left over goes to the first.
    """
    weights = [power(divisor, count - 1) / count for count in rungs]
    # Not `sum`, whose last bit depends on the version of Python.
    weight_sum = reduce(add, weights)
    quotas = (weight / weight_sum * max_trials if weight_sum < inf else 0.0 for weight in weights)
    shares = [max(int(quota), 1) for quota in quotas]
    shares[0] += max(max_trials - sum(shares), 0)
    return tuple(shares)


def divide_concurrency(trials: Sequence[int], total: HalvingPlan) -> tuple[int, ...]:
    """Divide the trials that are open at the start among brackets."""
    brackets, concurrent = len(trials), total.max_concurrent_trials
    if concurrent == 0:
        return (max(trials[-1], int(total.divisor)),) * brackets
    if not total.rules.creates_all_at_once:
        concurrent = max(concurrent, brackets)
    return divide_evenly(concurrent, brackets)


def _make_plan(options: Options, rules: SearchRules) -> MultiBracketPlan:
    total = plan_halving(options, options.max_rungs, rules)
    return plan_adaptive_asha(total, options.mode, options.bracket_rungs)


def _trial_count(options: Options, plan: MultiBracketPlan, space: object) -> int:
    if isinstance(options, LengthAdaptiveAsha) and options.max_time is not None:
        return options.max_trials
    return plan.trial_count


SPEC = SearcherSpec[Options, MultiBracketPlan](
    name="adaptive_asha",
    listing_order=8,
    step_options=StepAdaptiveAsha,
    length_options=LengthAdaptiveAsha,
    plan_type=MultiBracketPlan,
    state_type=MultiBracketState,
    make_plan=_make_plan,
    make_method=make_multi_bracket,
    trial_count=_trial_count,
    preview=preview_brackets,
    read_brackets=read_multi_bracket,
    find_problems=lambda options, rules: find_too_many_rungs(options),
)
