"""The searcher `adaptive_simple`: several synchronous halvings that share the trials evenly.

Source: Li et al., "Hyperband" (2018), for the idea; the formulas are those of Determined 0.12.
"""

from collections.abc import Sequence

from control_plane.field_types import MaxLength, Steps
from control_plane.searchers.era_rules import SearchRules
from control_plane.searchers.halving.multi_bracket import (
    MultiBracketPlan,
    MultiBracketState,
    bracket_lengths,
    divide_evenly,
    make_multi_bracket,
    preview_brackets,
    rung_counts,
)
from control_plane.searchers.halving.options import AdaptiveOptions, FewTrials
from control_plane.searchers.halving.rung_progress import read_multi_bracket
from control_plane.searchers.halving.synchronous import RungLadder
from control_plane.searchers.spec import SearcherSpec


class StepAdaptiveSimple(AdaptiveOptions):
    """Several synchronous halvings that share a number of trials."""

    max_steps: Steps
    """The largest number of steps that a trial trains."""
    max_trials: FewTrials
    """The number of trials."""


class LengthAdaptiveSimple(AdaptiveOptions):
    """Several synchronous halvings that share a number of trials."""

    max_length: MaxLength
    """The longest training of a trial: {batches: n}, {records: n} or {epochs: n}."""
    max_trials: FewTrials
    """The number of trials."""


Options = StepAdaptiveSimple | LengthAdaptiveSimple


def plan_adaptive_simple(
    ladder: RungLadder, max_trials: int, rungs: Sequence[int]
) -> MultiBracketPlan:
    """Return the plan of a search with several synchronous halvings.

    Args:
        max_trials: the number of trials, divided evenly among the brackets. Each bracket has at
            least 1 trial, so more brackets than trials result in more trials.
        rungs: the number of rungs of each bracket.
    """
    shares = (max(share, 1) for share in divide_evenly(max_trials, len(rungs)))
    return MultiBracketPlan(tuple(map(ladder.plan_with_trials, rungs, shares)))


def _make_plan(options: Options, rules: SearchRules) -> MultiBracketPlan:
    [longest] = options.lengths().values()
    ladder = RungLadder(longest.count, options.divisor, options.smaller_is_better, rules)
    rungs = rung_counts(options.mode, options.max_rungs)
    return plan_adaptive_simple(ladder, options.max_trials, rungs)


SPEC = SearcherSpec[Options, MultiBracketPlan](
    name="adaptive_simple",
    listing_order=7,
    step_options=StepAdaptiveSimple,
    length_options=LengthAdaptiveSimple,
    plan_type=MultiBracketPlan,
    state_type=MultiBracketState,
    make_plan=_make_plan,
    make_method=make_multi_bracket,
    trial_count=lambda options, plan, space: plan.trial_count,
    preview=preview_brackets,
    read_brackets=read_multi_bracket,
    rung_lengths=bracket_lengths,
)
