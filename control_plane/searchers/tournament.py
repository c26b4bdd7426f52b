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
class TournamentState:
    """Of each bracket its own."""

    brackets: tuple[BracketState, ...]
    kind: Literal["tournament"] = "tournament"


class Tournament:
    """Hands each event to the bracket that created the trial."""

    def __init__(self, plan: TournamentPlan, parts: Parts) -> None:
        first = [bracket.first_trials for bracket in plan.brackets]
        self._roster = Roster(PartsUnder(parts, "roster/"), first)
        self._brackets = [
            halving(bracket, PartsUnder(parts, f"{n}/"), self._roster, n)
            for n, bracket in enumerate(plan.brackets)
        ]

    def initial(self) -> MethodStep[TournamentState]:
        """The first trials of all brackets, bracket after bracket."""
        steps = [bracket.initial() for bracket in self._brackets]
        operations = [operation for step in steps for operation in step.operations]
        return MethodStep(TournamentState(tuple(step.state for step in steps)), operations)

    def on_event(self, state: TournamentState, event: Event) -> MethodStep[TournamentState]:
        """What the trial's bracket answers; trials that it creates are its own."""
        number = self._roster.bracket(event.trial)
        step = self._brackets[number].on_event(state.brackets[number], event)
        created = sum(bracket.created for bracket in state.brackets)
        self._enlist(step.operations, created, number)
        return MethodStep(_with_bracket(state, number, step.state), step.operations)

    def is_closing(self, state: TournamentState) -> bool:
        """Whether a bracket has trials to close."""
        pairs = zip(self._brackets, state.brackets, strict=True)
        return any(bracket.is_closing(one) for bracket, one in pairs)

    def close_more(
        self, state: TournamentState, trials: int, close_max: int
    ) -> MethodStep[TournamentState]:
        """Close trials of the first bracket that has any to close."""
        for number, bracket in enumerate(self._brackets):
            if bracket.is_closing(state.brackets[number]):
                step = bracket.close_more(state.brackets[number], trials, close_max)
                return MethodStep(_with_bracket(state, number, step.state), step.operations)
        return MethodStep(state)

    def resumed(self, state: TournamentState, tally: Tally) -> MethodStep[TournamentState]:
        """Nothing: such a search does not go on once it has ended."""
        return MethodStep(state)

    def progress(self, state: TournamentState, tally: Tally) -> float:
        """Compute the mean over the brackets."""
        shares = [
            min(max(bracket.progress(one, tally), 0.0), 1.0)
            for bracket, one in zip(self._brackets, state.brackets, strict=True)
        ]
        return fsum(shares) / len(shares)

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
