"""The searcher `random`: samples trials independently and trains all to the same length."""

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
    """Random search: the hyperparameters of each trial are sampled from the space."""


class LengthRandom(ConcurrentTrainingOptions, TrialCountOptions):
    """Random search: the hyperparameters of each trial are sampled from the space."""


@dataclass(frozen=True, slots=True)
class RandomPlan:
    """The plan of a random search."""

    max_length: int
    """The length of each trial, or ENDLESS."""
    max_trials: int
    """The number of trials, without replacements of invalid trials."""
    max_concurrent_trials: int
    """The limit of open trials; 0 means no limit. The step era ignores the limit."""
    rules: SearchRules
    kind: Literal["random"] = "random"


@dataclass(frozen=True, slots=True)
class RandomState(MethodState):
    """The state of a random search."""

    counted: int
    """Trials that the method requested, without replacements of invalid trials."""
    kind: Literal["random"] = "random"


class RandomSearch(SearchMethod[RandomState]):
    """The method of a random search: each ended trial is followed by a new trial, up to the planned
    number.
    """

    def __init__(self, plan: RandomPlan) -> None:
        self._plan = plan

    @property
    def replaces_refused(self) -> bool:
        """Return whether a trial that refused the hyperparameters is replaced; see SearchMethod."""
        return self._plan.rules.replaces_invalid_hparams

    @property
    def open_trials_max(self) -> int | None:
        """Return the limit of open trials. None: no limit, as always in the step era."""
        is_limited = not self._plan.rules.creates_all_at_once
        return (self._plan.max_concurrent_trials or None) if is_limited else None

    def first_step(self) -> MethodStep[RandomState]:
        """Return the first state, and the creation of the first trials.

        Without a limit of open trials, these are all trials.
        """
        plan = self._plan
        first = initial_trial_count(plan.rules, plan.max_trials, plan.max_concurrent_trials)
        return self._create_trials(RandomState(first), first)

    def on_event(self, state: RandomState, event: Event) -> MethodStep[RandomState]:
        """Return the creation of one trial after the end of a trial, up to max_trials.

        A trial that refused the hyperparameters is replaced even beyond max_trials, if the rules of
        the era allow replacements.
        """
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
        """Return the creation of trials up to the limit of open trials; see SearchMethod.

        Missing replacements of invalid trials come first, then new trials up to max_trials. If
        reopened trials exceed the limit, no trial is created.
        """
        plan = self._plan
        replaced = tally.requested - state.counted
        missing = max(0, tally.invalid - replaced) if self.replaces_refused else 0
        room = vacant_trial_count(plan.rules, plan.max_trials, plan.max_concurrent_trials, tally)
        missing = min(missing, max(0, room))
        more = max(0, min(room - missing, plan.max_trials - state.counted))
        return self._create_trials(RandomState(state.counted + more), missing + more)

    def progress(self, state: RandomState, tally: Tally) -> float:
        """Return the completed share of `max_trials` full trainings; see `completed_share`.

        An ended trial counts in full, an invalid trial not at all (length era). The driver clamps
        the share to [0, 1].
        """
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
    can_continue=True,
)
