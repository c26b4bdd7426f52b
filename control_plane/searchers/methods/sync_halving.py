"""The searcher `sync_halving`: synchronous halving with one bracket.

The algorithm is in the folder `halving`.
"""

from collections.abc import Iterator

from control_plane.field_types import Steps
from control_plane.findings import Finding
from control_plane.searchers.era_rules import SearchRules
from control_plane.searchers.halving.multi_bracket import make_only_bracket, preview_bracket
from control_plane.searchers.halving.options import (
    BudgetOptions,
    HalvingOptions,
    find_budget_problems,
    find_too_many_rungs,
)
from control_plane.searchers.halving.rung_progress import read_bracket
from control_plane.searchers.halving.synchronous import (
    RungLadder,
    SyncHalvingPlan,
    SyncHalvingState,
)
from control_plane.searchers.spec import SearcherSpec


class StepSyncHalving(HalvingOptions):
    """Synchronous halving: each rung promotes a fixed number of trials, the best of the rung."""

    target_trial_steps: Steps
    """The largest number of steps that a trial trains."""
    step_budget: Steps
    """The number of steps of all trials together."""
    train_stragglers: bool = True
    """Accepted, but has no effect: trials that a rung does not promote end, as in Determined."""


class LengthSyncHalving(HalvingOptions, BudgetOptions):
    """Synchronous halving: each rung promotes a fixed number of trials, the best of the rung."""

    train_stragglers: bool = True
    """Accepted, but has no effect: trials that a rung does not promote end, as in Determined."""


Options = StepSyncHalving | LengthSyncHalving


def _make_plan(options: Options, rules: SearchRules) -> SyncHalvingPlan:
    longest, budget = (length.count for length in options.lengths().values())
    ladder = RungLadder(longest, options.divisor, options.smaller_is_better, rules)
    return ladder.plan_within_budget(options.num_rungs, budget)


def _find_problems(options: Options, rules: SearchRules) -> Iterator[Finding]:
    field = "step_budget" if isinstance(options, StepSyncHalving) else "budget"
    yield from find_budget_problems(_make_plan(options, rules).first_trials, field)
    yield from find_too_many_rungs(options)


SPEC = SearcherSpec[Options, SyncHalvingPlan](
    name="sync_halving",
    listing_order=4,
    step_options=StepSyncHalving,
    length_options=LengthSyncHalving,
    plan_type=SyncHalvingPlan,
    state_type=SyncHalvingState,
    make_plan=_make_plan,
    make_method=lambda plan, space, blobs: make_only_bracket(plan, blobs),
    trial_count=lambda options, plan, space: plan.first_trials,
    preview=lambda plan: [preview_bracket(plan)],
    read_brackets=read_bracket,
    rung_lengths=lambda plan: plan.lengths,
    find_problems=_find_problems,
)
