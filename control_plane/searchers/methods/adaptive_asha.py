"""The searcher `adaptive_asha`: several asynchronous halvings that share a number of trials.

Source: Li et al., "A System for Massively Parallel Hyperparameter Tuning" (2020), for the idea; the
formulas are those of Determined. The number of rungs is computed with integers, because the float
ln 243 / ln 3 is less than 5 on some machines.
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
    bracket_lengths,
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
    """Several asynchronous halvings that share a number of trials."""

    target_trial_steps: Steps
    """The largest number of steps that a trial trains."""
    bracket_rungs: Brackets = ()
    """The number of rungs of each bracket; replaces the mode."""
    max_concurrent_trials: CountOrZero = 0
    """The number of concurrent trials; with 0 the search decides."""


class LengthAdaptiveAsha(AdaptiveOptions, AsynchronousOptions):
    """Several asynchronous halvings that share a number of trials."""

    bracket_rungs: Brackets = ()
    """The number of rungs of each bracket; replaces the mode."""


Options = StepAdaptiveAsha | LengthAdaptiveAsha


def plan_adaptive_asha(
    total: HalvingPlan, mode: Mode, bracket_rungs: Sequence[int] = ()
) -> MultiBracketPlan:
    """Return one asynchronous halving for each number of rungs, the most rungs first.

    Args:
        total: the settings of all brackets. `max_trials` is divided by `divide_trials`, and
            `max_concurrent_trials` by `divide_concurrency`. `num_rungs` limits the rungs that
            `mode` yields.
        mode: determines the numbers of rungs; see `rung_counts`.
        bracket_rungs: the number of rungs of each bracket. If it is not empty, `mode` has no
            effect.
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
    """Return the largest useful number of rungs, at most `total.num_rungs`.

    With more rungs, divisor^(rungs - 1) exceeds the longest training or the number of trials.
    """
    limit = min(total.max_length, total.max_trials)
    return count_powers(limit, total.divisor, total.num_rungs - 1) + 1


def divide_trials(rungs: Sequence[int], divisor: float, max_trials: int) -> tuple[int, ...]:
    """Return the number of trials of each bracket, for brackets with the given numbers of rungs.

    The shares of `max_trials` are proportional to divisor^(rungs - 1) / rungs, rounded down, but at
    least 1. The first bracket also gets the remainder.
    """
    weights = [power(divisor, count - 1) / count for count in rungs]
    # `sum` is avoided, because the rounding of `sum` depends on the version of Python.
    weight_sum = reduce(add, weights)
    quotas = (weight / weight_sum * max_trials if weight_sum < inf else 0.0 for weight in weights)
    shares = [max(int(quota), 1) for quota in quotas]
    shares[0] += max(max_trials - sum(shares), 0)
    return tuple(shares)


def divide_concurrency(trials: Sequence[int], total: HalvingPlan) -> tuple[int, ...]:
    """Return the number of concurrent trials of each bracket.

    Args:
        trials: the number of trials of each bracket.
        total: the settings of all brackets. `max_concurrent_trials` is divided evenly; 0 gives
            each bracket the last bracket's number of trials, but at least the divisor.
    """
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
    rung_lengths=bracket_lengths,
    find_problems=lambda options, rules: find_too_many_rungs(options),
)
