"""Several halvings side by side, each with trials of its own: the brackets of adaptive searches.

They go from the one that stops trials early, with many, to the one that hardly stops any.

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
    """The plans of the brackets, in the order in which they create their first trials."""

    brackets: tuple[BracketPlan, ...]
    kind: Literal["tournament"] = "tournament"

    @property
    def rules(self) -> SearchRules:
        """The rules of the era, which all brackets share."""
        return self.brackets[0].rules

    @property
    def max_length(self) -> int:
        """How long a trial trains at most."""
        return max(bracket.max_length for bracket in self.brackets)

    @property
    def trial_count(self) -> int:
        """How many trials all brackets create: each has one at least, however few there are to
        share.
        """
        return sum(bracket.trial_count for bracket in self.brackets)


@dataclass(frozen=True)
class MultiBracketState(MethodState):
    """The states of the brackets, in the order of their plans."""

    brackets: tuple[BracketState, ...]
    kind: Literal["tournament"] = "tournament"

    @property
    def is_closing(self) -> bool:
        """Whether any bracket is closing trials."""
        return any(bracket.is_closing for bracket in self.brackets)


class MultiBracketSearch(SearchMethod[MultiBracketState]):
    """Hands each event to the bracket that created the trial."""

    def __init__(self, plan: MultiBracketPlan, blobs: BlobStore) -> None:
        self._plans = plan.brackets
        self._blobs = blobs
        first = [bracket.first_trials for bracket in plan.brackets]
        self._statuses = TrialStatuses(PrefixedBlobStore(blobs, "roster/"), first)

    @property
    def replaces_refused(self) -> bool:
        """Whether any bracket does."""
        return any(
            self._make_bracket(number).replaces_refused for number in range(len(self._plans))
        )

    def first_step(self) -> MethodStep[MultiBracketState]:
        """Create the first trials of all brackets, bracket after bracket."""
        steps = [self._make_bracket(number).first_step() for number in range(len(self._plans))]
        operations = [operation for step in steps for operation in step.operations]
        return MethodStep(MultiBracketState(tuple(step.state for step in steps)), operations)

    def on_event(self, state: MultiBracketState, event: Event) -> MethodStep[MultiBracketState]:
        """Pass the event to the trial's bracket, and record the trials that the bracket creates."""
        number = self._statuses.bracket_of(event.trial)
        step = self._make_bracket(number).on_event(state.brackets[number], event)
        created = sum(bracket.created for bracket in state.brackets)
        self._assign_bracket(step.operations, created, number)
        return MethodStep(_replace_bracket(state, number, step.state), step.operations)

    def close_more(
        self, state: MultiBracketState, trials: int, close_max: int
    ) -> MethodStep[MultiBracketState]:
        """Close trials of the first bracket that has any to close."""
        number = next(n for n, bracket in enumerate(state.brackets) if bracket.is_closing)
        step = self._make_bracket(number).close_more(state.brackets[number], trials, close_max)
        return MethodStep(_replace_bracket(state, number, step.state), step.operations)

    def progress(self, state: MultiBracketState, tally: Tally) -> float:
        """Compute the mean over the brackets."""
        shares = [
            min(max(self._make_bracket(number).progress(bracket, tally), 0.0), 1.0)
            for number, bracket in enumerate(state.brackets)
        ]
        return fsum(shares) / len(shares)

    def _make_bracket(self, number: int) -> SearchMethod[Any]:
        # Made for the one event that it answers: most events concern a single bracket.
        blobs = PrefixedBlobStore(self._blobs, f"{number}/")
        return make_bracket_method(self._plans[number], blobs, self._statuses, number)

    def _assign_bracket(self, operations: Sequence[Operation], created: int, bracket: int) -> None:
        for operation in operations:
            if isinstance(operation, Create):
                for trial in range(created, created + operation.count):
                    self._statuses.set_bracket(trial, bracket)
                created += operation.count


def rung_counts(mode: Mode, rungs_max: int, listed: Sequence[int] = ()) -> tuple[int, ...]:
    """Return the number of rungs of each bracket, the largest first: as `listed`, or by the mode
    if none are.
    """
    if listed:
        return tuple(sorted(listed, reverse=True))
    least = {"aggressive": rungs_max, "standard": (rungs_max - 1) // 2 + 1, "conservative": 1}
    return tuple(range(rungs_max, least[mode] - 1, -1))


def divide_evenly(total: int, brackets: int) -> tuple[int, ...]:
    """Divide a number evenly among brackets; the first ones get one more of the remainder."""
    each, over = divmod(total, brackets)
    return tuple(each + (n < over) for n in range(brackets))


def make_bracket_method(
    plan: BracketPlan, blobs: BlobStore, statuses: TrialStatuses, bracket: int = 0
) -> SearchMethod[Any]:
    """Make the method of a bracket's plan."""
    # A plan and the state it made belong together, which types cannot say.
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
    """Make the method of a plan that is the whole search."""
    return make_bracket_method(plan, blobs, TrialStatuses(PrefixedBlobStore(blobs, "roster/"), ()))


def make_multi_bracket(plan: MultiBracketPlan, space: Group, blobs: BlobStore) -> SearchMethod[Any]:
    """Make the method of several brackets, which sample the space whatever it is."""
    return MultiBracketSearch(plan, blobs)


def preview_bracket(plan: BracketPlan) -> PreviewPart:
    """Return what a preview runs of one bracket."""
    if isinstance(plan, SyncHalvingPlan):
        return PreviewPart(plan)
    return PreviewPart(
        plan,
        depends_on_results=plan.num_rungs > 1,
        expected_stops=plan.expected_stops(),
        report_times=plan.lengths if plan.by_time else (),
    )


def preview_brackets(plan: MultiBracketPlan) -> list[PreviewPart]:
    """Return what a preview runs of several brackets."""
    # Brackets know nothing of each other: each goes its way as it would beside the others, where
    # its trials have other numbers in the same order.
    return [preview_bracket(bracket) for bracket in plan.brackets]


def _replace_bracket(
    state: MultiBracketState, number: int, bracket: BracketState
) -> MultiBracketState:
    if bracket is state.brackets[number]:
        return state
    brackets = (*state.brackets[:number], bracket, *state.brackets[number + 1 :])
    return evolve(state, brackets=brackets)
