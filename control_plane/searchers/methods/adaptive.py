"""The searcher `adaptive`: several synchronous halvings that share a budget of training evenly.

Source: Li et al., "Hyperband" (2018), for the idea; the formulas are those of Determined 0.12.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Final

from control_plane.field_types import CrossCheck, Length, Measured, Steps, ValueRefused
from control_plane.findings import Finding
from control_plane.searchers.era_rules import SearchRules
from control_plane.searchers.halving.multi_bracket import (
    MultiBracketPlan,
    MultiBracketState,
    bracket_lengths,
    make_multi_bracket,
    preview_brackets,
    rung_counts,
)
from control_plane.searchers.halving.options import (
    AdaptiveOptions,
    Brackets,
    BudgetOptions,
    check_budget_size,
    check_budget_unit,
    find_budget_problems,
    find_too_many_rungs,
)
from control_plane.searchers.halving.rung_progress import read_multi_bracket
from control_plane.searchers.halving.synchronous import RungLadder
from control_plane.searchers.spec import SearcherSpec

STEP_BUDGET_MAX: Final = 50_000


def _check_step_budget(budget: Length, above: Mapping[str, Any]) -> None:
    if budget.count > STEP_BUDGET_MAX:
        raise ValueRefused(f"must be at most {STEP_BUDGET_MAX}, not {budget.count}")
    check_budget_size(budget, above.get("target_trial_steps"), "target_trial_steps")


def _check_budget(budget: Length, above: Mapping[str, Any]) -> None:
    check_budget_unit(budget, above)
    check_budget_size(budget, above.get("max_length"), "max_length")


class StepAdaptive(AdaptiveOptions):
    """Several synchronous halvings that share a budget of training."""

    target_trial_steps: Steps
    """The largest number of steps that a trial trains."""
    step_budget: Annotated[Steps, CrossCheck(_check_step_budget)]
    """The number of steps of all trials together."""
    bracket_rungs: Brackets = ()
    """The number of rungs of each bracket; replaces the mode."""
    train_stragglers: bool = True
    """Accepted, but has no effect: trials that a rung does not promote end, as in Determined."""


class LengthAdaptive(AdaptiveOptions, BudgetOptions):
    """Several synchronous halvings that share a budget of training."""

    budget: Annotated[Measured, CrossCheck(_check_budget)]
    """The training of all trials together, in the unit of max_length."""
    bracket_rungs: Brackets = ()
    """The number of rungs of each bracket; replaces the mode."""
    train_stragglers: bool = True
    """Accepted, but has no effect: trials that a rung does not promote end, as in Determined."""


Options = StepAdaptive | LengthAdaptive


def plan_adaptive(ladder: RungLadder, budget: int, rungs: Sequence[int]) -> MultiBracketPlan:
    """Return the plan of an adaptive search.

    Args:
        budget: the units of training in total, divided evenly among the brackets.
        rungs: the number of rungs of each bracket.
    """
    share = budget // len(rungs)
    return MultiBracketPlan(tuple(ladder.plan_within_budget(count, share) for count in rungs))


def _make_plan(options: Options, rules: SearchRules) -> MultiBracketPlan:
    longest, budget = (length.count for length in options.lengths().values())
    ladder = RungLadder(longest, options.divisor, options.smaller_is_better, rules)
    rungs = rung_counts(options.mode, options.max_rungs, options.bracket_rungs)
    return plan_adaptive(ladder, budget, rungs)


def _find_problems(options: Options, rules: SearchRules) -> Iterator[Finding]:
    field = "step_budget" if isinstance(options, StepAdaptive) else "budget"
    yield from find_budget_problems(_make_plan(options, rules).trial_count, field)
    yield from find_too_many_rungs(options)


SPEC = SearcherSpec[Options, MultiBracketPlan](
    name="adaptive",
    listing_order=6,
    step_options=StepAdaptive,
    length_options=LengthAdaptive,
    plan_type=MultiBracketPlan,
    state_type=MultiBracketState,
    make_plan=_make_plan,
    make_method=make_multi_bracket,
    trial_count=lambda options, plan, space: plan.trial_count,
    preview=preview_brackets,
    read_brackets=read_multi_bracket,
    rung_lengths=bracket_lengths,
    find_problems=_find_problems,
)
