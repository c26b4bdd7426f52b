"""Several halvings side by side, each with trials of its own: the brackets of adaptive searches."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum
from typing import Any, Literal

from control_plane.evolve import evolve
from control_plane.searchers.halving import HalvingPlan, HalvingState
from control_plane.searchers.method import (
    Create,
    Event,
    MethodState,
    MethodStep,
    Operation,
    SearchMethod,
    Tally,
)
from control_plane.searchers.parts import Parts, PartsUnder
from control_plane.searchers.promotion import Promotion
from control_plane.searchers.roster import Roster
from control_plane.searchers.rules import Rules
from control_plane.searchers.stopping import Stopping
from control_plane.searchers.synchronous import SyncHalvingPlan, SyncHalvingState, Synchronous
from control_plane.searchers.timed import TimedStopping

BracketPlan = HalvingPlan | SyncHalvingPlan
BracketState = HalvingState | SyncHalvingState


@dataclass(frozen=True, slots=True)
class TournamentPlan:
    """The brackets, in the order in which they create their first trials."""

    brackets: tuple[BracketPlan, ...]
    kind: Literal["tournament"] = "tournament"

    @property
    def rules(self) -> Rules:
        """Those of every bracket."""
        return self.brackets[0].rules

    @property
    def max_length(self) -> int:
        """How long a trial trains at most."""
        return max(bracket.max_length for bracket in self.brackets)


@dataclass(frozen=True)
class TournamentState(MethodState):
    """Of each bracket its own."""

    brackets: tuple[BracketState, ...]
    kind: Literal["tournament"] = "tournament"

    @property
    def is_closing(self) -> bool:
        """Whether a bracket is."""
        return any(bracket.is_closing for bracket in self.brackets)


class Tournament(SearchMethod[TournamentState]):
    """Hands each event to the bracket that created the trial."""

    def __init__(self, plan: TournamentPlan, parts: Parts) -> None:
        self._plans = plan.brackets
        self._parts = parts
        first = [bracket.first_trials for bracket in plan.brackets]
        self._roster = Roster(PartsUnder(parts, "roster/"), first)

    def initial(self) -> MethodStep[TournamentState]:
        """The first trials of all brackets, bracket after bracket."""
        steps = [self._bracket(number).initial() for number in range(len(self._plans))]
        operations = [operation for step in steps for operation in step.operations]
        return MethodStep(TournamentState(tuple(step.state for step in steps)), operations)

    def on_event(self, state: TournamentState, event: Event) -> MethodStep[TournamentState]:
        """What the trial's bracket answers; trials that it creates are its own."""
        number = self._roster.bracket(event.trial)
        step = self._bracket(number).on_event(state.brackets[number], event)
        created = sum(bracket.created for bracket in state.brackets)
        self._enlist(step.operations, created, number)
        return MethodStep(_with_bracket(state, number, step.state), step.operations)

    def close_more(
        self, state: TournamentState, trials: int, close_max: int
    ) -> MethodStep[TournamentState]:
        """Close trials of the first bracket that has any to close."""
        number = next(n for n, bracket in enumerate(state.brackets) if bracket.is_closing)
        step = self._bracket(number).close_more(state.brackets[number], trials, close_max)
        return MethodStep(_with_bracket(state, number, step.state), step.operations)

    def progress(self, state: TournamentState, tally: Tally) -> float:
        """Compute the mean over the brackets."""
        shares = [
            min(max(self._bracket(number).progress(bracket, tally), 0.0), 1.0)
            for number, bracket in enumerate(state.brackets)
        ]
        return fsum(shares) / len(shares)

    def _bracket(self, number: int) -> SearchMethod[Any]:
        # Made for the one event that it answers: most events concern a single bracket.
        parts = PartsUnder(self._parts, f"{number}/")
        return halving(self._plans[number], parts, self._roster, number)

    def _enlist(self, operations: Sequence[Operation], created: int, bracket: int) -> None:
        for operation in operations:
            if isinstance(operation, Create):
                for trial in range(created, created + operation.count):
                    self._roster.enlist(trial, bracket)
                created += operation.count


def halving(plan: BracketPlan, parts: Parts, roster: Roster, bracket: int = 0) -> SearchMethod[Any]:
    """The method of a plan."""
    # A plan and the state it made belong together, which types cannot say.
    match plan:
        case SyncHalvingPlan():
            return Synchronous(plan, parts, roster, bracket)
        case HalvingPlan(by_time=True):
            return TimedStopping(plan, parts, roster, bracket)
        case HalvingPlan(stops=True):
            return Stopping(plan, parts, roster, bracket)
        case HalvingPlan():
            return Promotion(plan, parts, roster, bracket)


def alone(plan: BracketPlan, parts: Parts) -> SearchMethod[Any]:
    """The method of a plan that is the whole search."""
    return halving(plan, parts, Roster(PartsUnder(parts, "roster/"), ()))


def _with_bracket(state: TournamentState, number: int, bracket: BracketState) -> TournamentState:
    if bracket is state.brackets[number]:
        return state
    brackets = (*state.brackets[:number], bracket, *state.brackets[number + 1 :])
    return evolve(state, brackets=brackets)
