"""The searcher `async_halving`: asynchronous halving with one bracket.

The algorithm is in the folder `halving`.
"""

from control_plane.field_types import CountOrZero, Steps
from control_plane.searchers.halving.asynchronous import HalvingPlan, HalvingState, plan_halving
from control_plane.searchers.halving.multi_bracket import make_only_bracket, preview_bracket
from control_plane.searchers.halving.options import (
    AsynchronousOptions,
    HalvingOptions,
    find_too_many_rungs,
)
from control_plane.searchers.halving.rung_progress import read_bracket
from control_plane.searchers.options import TrialCountOptions
from control_plane.searchers.spec import SearcherSpec


class StepAsyncHalving(HalvingOptions, TrialCountOptions):
    """Asynchronous halving: each result either promotes a trial or creates a new trial."""

    target_trial_steps: Steps
    """The largest number of steps that a trial trains."""
    max_concurrent_trials: CountOrZero = 0
    """The number of concurrent trials; with 0 the search decides."""


class LengthAsyncHalving(HalvingOptions, AsynchronousOptions):
    """Asynchronous halving: each result either promotes a trial or creates a new trial. With
    `stop_once`, each result decides whether the trial continues or stops.
    """


SPEC = SearcherSpec[StepAsyncHalving | LengthAsyncHalving, HalvingPlan](
    name="async_halving",
    listing_order=5,
    step_options=StepAsyncHalving,
    length_options=LengthAsyncHalving,
    plan_type=HalvingPlan,
    state_type=HalvingState,
    make_plan=lambda options, rules: plan_halving(options, options.num_rungs, rules),
    make_method=lambda plan, space, blobs: make_only_bracket(plan, blobs),
    trial_count=lambda options, plan, space: plan.max_trials,
    preview=lambda plan: [preview_bracket(plan)],
    read_brackets=read_bracket,
    rung_lengths=lambda plan: plan.lengths,
    find_problems=lambda options, rules: find_too_many_rungs(options),
)
