"""Random search: trials sampled independently, each trained to the same length."""

from dataclasses import dataclass
from typing import Literal

from control_plane.searchers.era_rules import SearchRules
from control_plane.searchers.full_trainings import (
    ConcurrentTrainingOptions,
    StepTrainingOptions,
    completed_share,
    initial_trial_count,
    length_count,
    vacant_trial_count,
)
from control_plane.searchers.method import (
    Create,
    Event,
    MethodState,
    MethodStep,
    SearchMethod,
    Tally,
    TrialClosed,
    TrialExitedEarly,
)
from control_plane.searchers.options import TrialCountOptions
from control_plane.searchers.spec import PreviewPart, SearcherSpec


class StepRandom(StepTrainingOptions, TrialCountOptions):
    """Trials sampled from the space."""


class LengthRandom(ConcurrentTrainingOptions, TrialCountOptions):
    """Trials sampled from the space, a number of them at a time."""


@dataclass(frozen=True, slots=True)
class RandomPlan:
    """Train `max_trials` trials to `max_length`; at most `max_concurrent_trials` open (0: all)."""

    max_length: int
    max_trials: int
    max_concurrent_trials: int
    rules: SearchRules
    kind: Literal["random"] = "random"


@dataclass(frozen=True, slots=True)
class RandomState(MethodState):
    """Progress of the search. `counted`: trials created so far, without the replacements of
    invalid ones.
    """

    counted: int
    kind: Literal["random"] = "random"


class RandomSearch(SearchMethod[RandomState]):
    """Keeps trials open up to the limit until max_trials were created."""

    def __init__(self, plan: RandomPlan) -> None:
        self._plan = plan

    @property
    def replaces_refused(self) -> bool:
        """Whether the rules of its era say so."""
        return self._plan.rules.replaces_invalid_hparams

    def first_step(self) -> MethodStep[RandomState]:
        """Create the first trials, all of them where nothing limits how many may be open."""
        plan = self._plan
        first = initial_trial_count(plan.rules, plan.max_trials, plan.max_concurrent_trials)
        return self._create_trials(RandomState(first), first)

    def on_event(self, state: RandomState, event: Event) -> MethodStep[RandomState]:
        """Replace a trial that ended, and beyond max_trials one that was invalid."""
        match event:
            case TrialExitedEarly(reason=reason) if (
                reason.is_invalid_hparams and self.replaces_refused
            ):
                return self._create_trials(state, 1)
            case TrialClosed() | TrialExitedEarly() if state.counted < self._plan.max_trials:
                return self._create_trials(RandomState(state.counted + 1), 1)
            case _:
                return MethodStep(state)

    def resume(self, state: RandomState, tally: Tally) -> MethodStep[RandomState]:
        """Replace the invalid trials that were not, and fill up to the limit of open ones.

        More may be open than the limit, where trials were opened again.
        """
        plan = self._plan
        replaced = tally.requested - state.counted
        missed = max(0, tally.invalid - replaced) if self.replaces_refused else 0
        room = vacant_trial_count(plan.rules, plan.max_trials, plan.max_concurrent_trials, tally)
        more = max(0, min(room - missed, plan.max_trials - state.counted))
        return self._create_trials(RandomState(state.counted + more), missed + more)

    def progress(self, state: RandomState, tally: Tally) -> float:
        """Compute the share of max_trials trainings that is done."""
        return completed_share(
            self._plan.rules, self._plan.max_trials, self._plan.max_length, tally
        )

    def _create_trials(self, state: RandomState, count: int) -> MethodStep[RandomState]:
        create = Create(count, "Sampled", first_point=0, length=self._plan.max_length, closed=True)
        return MethodStep(state, (create,))


def _make_plan(options: StepRandom | LengthRandom, rules: SearchRules) -> RandomPlan:
    match options:
        case StepRandom(max_steps=length):
            return RandomPlan(length_count(length), options.max_trials, 0, rules)
        case LengthRandom(max_length=length, max_concurrent_trials=concurrent):
            return RandomPlan(length_count(length), options.max_trials, concurrent, rules)


SPEC = SearcherSpec[StepRandom | LengthRandom, RandomPlan](
    name="random",
    listing_order=1,
    step_options=StepRandom,
    length_options=LengthRandom,
    plan_type=RandomPlan,
    state_type=RandomState,
    make_plan=_make_plan,
    make_method=lambda plan, space, blobs: RandomSearch(plan),
    trial_count=lambda options, plan, space: plan.max_trials,
    preview=lambda plan: [PreviewPart(plan)],
    trains_to_end=True,
)
