"""Adaptive searches: several halvings, called brackets, each with separate trials.

The first bracket has the most rungs and stops trials earliest. The last bracket has the fewest
rungs.

Source: Li et al., "Hyperband" (2018), for the idea; the formulas are those of Determined.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum
from typing import Any, Literal

from control_plane.evolve import evolve
from control_plane.searchers.blob_store import BlobStore, PrefixedBlobStore
from control_plane.searchers.era_rules import SearchRules
from control_plane.searchers.halving.asynchronous import (
    HalvingPlan,
    HalvingState,
    PromotingHalving,
    StoppingHalving,
    TimedStoppingHalving,
)
from control_plane.searchers.halving.options import Mode
from control_plane.searchers.halving.synchronous import (
    SyncHalving,
    SyncHalvingPlan,
    SyncHalvingState,
)
from control_plane.searchers.halving.trial_statuses import TrialStatuses
from control_plane.searchers.method import (
    Create,
    Event,
    MethodState,
    MethodStep,
    Operation,
    SearchMethod,
    Tally,
)
from control_plane.searchers.space import Group
from control_plane.searchers.spec import PreviewPart

BracketPlan = HalvingPlan | SyncHalvingPlan
BracketState = HalvingState | SyncHalvingState


@dataclass(frozen=True, slots=True)
class MultiBracketPlan:
    """The plans of all brackets, in the order in which brackets create the first trials."""

    brackets: tuple[BracketPlan, ...]
    kind: Literal["tournament"] = "tournament"

    @property
    def rules(self) -> SearchRules:
        """Return the rules of the era. All brackets have the same rules."""
        return self.brackets[0].rules

    @property
    def max_length(self) -> int:
        """Return the longest training of a trial in any bracket."""
        return max(bracket.max_length for bracket in self.brackets)

    @property
    def trial_count(self) -> int:
        """Return the number of trials of all brackets, without replacements of invalid trials."""
        return sum(bracket.trial_count for bracket in self.brackets)


@dataclass(frozen=True)
class MultiBracketState(MethodState):
    """The states of the brackets, in the order of the plans."""

    brackets: tuple[BracketState, ...]
    kind: Literal["tournament"] = "tournament"

    @property
    def is_closing(self) -> bool:
        """Return whether any bracket is closing trials; see MethodState."""
        return any(bracket.is_closing for bracket in self.brackets)


class MultiBracketSearch(SearchMethod[MultiBracketState]):
    """A search method that passes each event to the bracket that created the trial."""

    def __init__(self, plan: MultiBracketPlan, blobs: BlobStore) -> None:
        self._plans = plan.brackets
        self._blobs = blobs
        first = [bracket.first_trials for bracket in plan.brackets]
        self._statuses = TrialStatuses(PrefixedBlobStore(blobs, "roster/"), first)

    @property
    def replaces_refused(self) -> bool:
        """Return whether any bracket replaces trials that refused the hyperparameters."""
        return any(
            self._make_bracket(number).replaces_refused for number in range(len(self._plans))
        )

    def first_step(self) -> MethodStep[MultiBracketState]:
        """Return the first state, and the creation of the first trials of each bracket in order."""
        steps = [self._make_bracket(number).first_step() for number in range(len(self._plans))]
        operations = [operation for step in steps for operation in step.operations]
        return MethodStep(MultiBracketState(tuple(step.state for step in steps)), operations)

    def on_event(self, state: MultiBracketState, event: Event) -> MethodStep[MultiBracketState]:
        """Return the answer of the trial's bracket. Record the bracket of each new trial."""
        number = self._statuses.bracket_of(event.trial)
        step = self._make_bracket(number).on_event(state.brackets[number], event)
        created = sum(bracket.created for bracket in state.brackets)
        self._assign_bracket(step.operations, created, number)
        return MethodStep(_replace_bracket(state, number, step.state), step.operations)

    def close_more(
        self, state: MultiBracketState, trials: int, close_max: int
    ) -> MethodStep[MultiBracketState]:
        """Return closes of the first bracket that is closing trials; see SearchMethod."""
        number = next(n for n, bracket in enumerate(state.brackets) if bracket.is_closing)
        step = self._make_bracket(number).close_more(state.brackets[number], trials, close_max)
        return MethodStep(_replace_bracket(state, number, step.state), step.operations)

    def progress(self, state: MultiBracketState, tally: Tally) -> float:
        """Return the mean of the brackets' completed shares, each clamped to [0, 1]."""
        shares = [
            min(max(self._make_bracket(number).progress(bracket, tally), 0.0), 1.0)
            for number, bracket in enumerate(state.brackets)
        ]
        return fsum(shares) / len(shares)

    def _make_bracket(self, number: int) -> SearchMethod[Any]:
        # Made on demand, because most events concern only one bracket.
        blobs = PrefixedBlobStore(self._blobs, f"{number}/")
        return make_bracket_method(self._plans[number], blobs, self._statuses, number)

    def _assign_bracket(self, operations: Sequence[Operation], created: int, bracket: int) -> None:
        """Write the number of the bracket for each trial that `operations` create.

        Args:
            created: the number of trials that exist, which is the number of the first new trial.
        """
        for operation in operations:
            if isinstance(operation, Create):
                for trial in range(created, created + operation.count):
                    self._statuses.set_bracket(trial, bracket)
                created += operation.count


def rung_counts(mode: Mode, rungs_max: int, listed: Sequence[int] = ()) -> tuple[int, ...]:
    """Return the number of rungs of each bracket, in decreasing order.

    If `listed` is not empty, return these numbers. Otherwise return one bracket for each number
    from `rungs_max` down to a limit that depends on the mode: "aggressive" rungs_max, "standard"
    about half of rungs_max, "conservative" 1.
    """
    if listed:
        return tuple(sorted(listed, reverse=True))
    least = {"aggressive": rungs_max, "standard": (rungs_max - 1) // 2 + 1, "conservative": 1}
    return tuple(range(rungs_max, least[mode] - 1, -1))


def divide_evenly(total: int, brackets: int) -> tuple[int, ...]:
    """Divide `total` into integer shares that differ by at most 1, the larger shares first."""
    share, remainder = divmod(total, brackets)
    return tuple(share + (n < remainder) for n in range(brackets))


def make_bracket_method(
    plan: BracketPlan, blobs: BlobStore, statuses: TrialStatuses, bracket: int = 0
) -> SearchMethod[Any]:
    """Return the search method for a bracket's plan.

    Args:
        blobs: the blobs of the bracket.
        statuses: the statuses of the trials of all brackets.
        bracket: the number of the bracket.
    """
    # The return type is SearchMethod[Any], because types cannot express which state type belongs
    # to the plan.
    match plan:
        case SyncHalvingPlan():
            return SyncHalving(plan, blobs, statuses, bracket)
        case HalvingPlan(by_time=True):
            return TimedStoppingHalving(plan, blobs, statuses, bracket)
        case HalvingPlan(stops=True):
            return StoppingHalving(plan, blobs, statuses, bracket)
        case HalvingPlan():
            return PromotingHalving(plan, blobs, statuses, bracket)


def make_only_bracket(plan: BracketPlan, blobs: BlobStore) -> SearchMethod[Any]:
    """Return the search method for a search with a single bracket."""
    return make_bracket_method(plan, blobs, TrialStatuses(PrefixedBlobStore(blobs, "roster/"), ()))


def make_multi_bracket(plan: MultiBracketPlan, space: Group, blobs: BlobStore) -> SearchMethod[Any]:
    """Return the search method for a search with several brackets. `space` is not used."""
    return MultiBracketSearch(plan, blobs)


def bracket_lengths(plan: MultiBracketPlan) -> tuple[int, ...]:
    """Return the lengths of the rungs of all brackets, in increasing order, each length once."""
    return tuple(sorted({length for bracket in plan.brackets for length in bracket.lengths}))


def preview_bracket(plan: BracketPlan) -> PreviewPart:
    """Return the preview part of one bracket."""
    if isinstance(plan, SyncHalvingPlan):
        return PreviewPart(plan)
    return PreviewPart(
        plan,
        depends_on_results=plan.num_rungs > 1,
        expected_stops=plan.expected_stops(),
        report_times=plan.lengths if plan.by_time else (),
    )


def preview_brackets(plan: MultiBracketPlan) -> list[PreviewPart]:
    """Return a preview part for each bracket."""
    # Brackets are independent. A bracket previewed alone makes the same decisions as in the full
    # search; only the trial numbers differ.
    return [preview_bracket(bracket) for bracket in plan.brackets]


def _replace_bracket(
    state: MultiBracketState, number: int, bracket: BracketState
) -> MultiBracketState:
    if bracket is state.brackets[number]:
        return state
    brackets = (*state.brackets[:number], bracket, *state.brackets[number + 1 :])
    return evolve(state, brackets=brackets)
