"""Random search: trials sampled independently, each trained to the same length."""

from dataclasses import dataclass
from typing import Literal

from control_plane.searchers.method import (
    Create,
    Event,
    MethodState,
    MethodStep,
    SearchMethod,
    Tally,
    TrialClosed,
    TrialExited,
)
from control_plane.searchers.rules import Rules, first_batch, share_done


@dataclass(frozen=True, slots=True)
class RandomPlan:
    """Train `max_trials` trials to `max_length`; at most `max_concurrent_trials` open (0: all)."""

    max_length: int
    max_trials: int
    max_concurrent_trials: int
    rules: Rules
    kind: Literal["random"] = "random"


@dataclass(frozen=True, slots=True)
class RandomState(MethodState):
    """`counted`: trials created so far, without the replacements of invalid ones."""

    counted: int
    kind: Literal["random"] = "random"


class RandomSearch(SearchMethod[RandomState]):
    """Keeps trials open up to the limit until max_trials were created."""

    def __init__(self, plan: RandomPlan) -> None:
        self._plan = plan

    def initial(self) -> MethodStep[RandomState]:
        """Create the first trials, all of them where nothing limits how many may be open."""
        plan = self._plan
        first = first_batch(plan.rules, plan.max_trials, plan.max_concurrent_trials)
        return self._created(RandomState(first), first)

    def on_event(self, state: RandomState, event: Event) -> MethodStep[RandomState]:
        """Replace a trial that ended, and beyond max_trials one that was invalid."""
        match event:
            case TrialExited(reason=reason) if (
                reason.invalid_hparams and self._plan.rules.replaces_invalid_hparams
            ):
                return self._created(state, 1)
            case TrialClosed() | TrialExited() if state.counted < self._plan.max_trials:
                return self._created(RandomState(state.counted + 1), 1)
            case _:
                return MethodStep(state)

    def resumed(self, state: RandomState, tally: Tally) -> MethodStep[RandomState]:
        """Replace the invalid trials that were not, and fill up to the limit of open ones.

        More may be open than the limit, where trials were opened again.
        """
        plan = self._plan
        replaced = tally.requested - state.counted
        missed = max(0, tally.invalid - replaced) if plan.rules.replaces_invalid_hparams else 0
        limit = first_batch(plan.rules, plan.max_trials, plan.max_concurrent_trials)
        room = limit - (tally.requested - tally.closed) - missed
        more = max(0, min(room, plan.max_trials - state.counted))
        return self._created(RandomState(state.counted + more), missed + more)

    def progress(self, state: RandomState, tally: Tally) -> float:
        """Compute the share of max_trials trainings that is done."""
        return share_done(self._plan.rules, self._plan.max_trials, self._plan.max_length, tally)

    def _created(self, state: RandomState, count: int) -> MethodStep[RandomState]:
        create = Create(count, "Sampled", first_point=0, length=self._plan.max_length, closed=True)
        return MethodStep(state, (create,))
