"""What a halving of any kind does with its trials: finds their rungs, closes those left behind."""

from functools import cached_property
from typing import Generic, Protocol, TypeVar

from control_plane.evolve import evolve
from control_plane.searchers.method import (
    Close,
    MethodState,
    MethodStep,
    SearchMethod,
    TrialExited,
    TrialReached,
)
from control_plane.searchers.parts import Parts
from control_plane.searchers.ranking import Ranking, Result
from control_plane.searchers.roster import Roster, Standing
from control_plane.searchers.rungs import signed


class Rungs(Protocol):
    """A plan: the length of each rung from a trial's start, and which way a metric is better."""

    @property
    def lengths(self) -> tuple[int, ...]: ...

    @property
    def smaller_is_better(self) -> bool: ...


class ClosingState(MethodState):
    """`closing`: rungs from the bottom whose trials are being closed where they did not go on;
    those before trial `closing_from` were looked at, None: all.
    """

    closing: int
    closing_from: int | None

    @property
    def is_closing(self) -> bool:
        """See MethodState."""
        return self.closing_from is not None


Plan = TypeVar("Plan", bound=Rungs)
State = TypeVar("State", bound=ClosingState)


class Bracket(SearchMethod[State], Generic[Plan, State]):
    """The rungs of one plan. `number` tells it from others where several run side by side."""

    def __init__(self, plan: Plan, parts: Parts, roster: Roster, number: int = 0) -> None:
        self._plan = plan
        self._parts = parts
        self._roster = roster
        self._number = number
        self._rankings: dict[int, Ranking] = {}

    @cached_property
    def _lengths(self) -> tuple[int, ...]:
        # Of many brackets only one is asked for it.
        return self._plan.lengths

    @property
    def _top(self) -> int:
        return len(self._lengths) - 1

    def close_more(self, state: State, trials: int, close_max: int) -> MethodStep[State]:
        """See SearchMethod."""
        assert state.closing_from is not None
        closed, following = self._roster.close_left(
            self._number, state.closing, range(state.closing_from, trials), close_max
        )
        return MethodStep(evolve(state, closing_from=following), tuple(map(Close, closed)))

    def _ranking(self, rung: int) -> Ranking:
        if rung not in self._rankings:
            self._rankings[rung] = Ranking(self._parts, f"rung{rung}")
        return self._rankings[rung]

    def _awaited(self, event: TrialReached) -> tuple[int, Result] | None:
        """The rung that a report is for and its result there, signed so that less is better; None
        for one that nobody waits for.
        """
        standing = self._roster.standing(event.trial)
        is_over = standing.closed or standing.reported
        if is_over or self._lengths[standing.rung] != event.length:
            return None
        return standing.rung, self._result(event.trial, event.metric)

    def _result(self, trial: int, metric: float) -> Result:
        return Result(signed(metric, self._plan.smaller_is_better), trial)

    def _stays(self, trial: int, *, closed: bool) -> bool:
        """Note that a trial's result is there and leads to nothing yet or, `closed`, to nothing any
        more; False for one that exited, which nobody has to be told.
        """
        standing = self._roster.standing(trial)
        if not standing.exited:
            self._roster.stand(trial, Standing(standing.rung, closed=closed, reported=True))
        return not standing.exited

    def _goes_on(self, trial: int, rung: int) -> Standing:
        """Note the rung that a trial is now in; where it stands there."""
        before = self._roster.standing(trial)
        standing = Standing(rung, before.exited, before.closed)
        self._roster.stand(trial, standing)
        return standing

    def _left(self, event: TrialExited) -> tuple[int, bool]:
        """The rung that a trial leaves, and whether its result is there: then it only waited."""
        standing = self._roster.standing(event.trial)
        self._roster.stand(event.trial, standing._replace(exited=True, closed=True))
        only_waited = standing.closed or event.length == self._lengths[standing.rung]
        return standing.rung, only_waited
