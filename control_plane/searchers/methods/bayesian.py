"""Bayesian search: trials are drawn at first, and later suggested by a model of the results so far.

The model runs outside (see control_plane/suggestions): the method counts its requests and their
answers, and stores the hyperparameters of every trial for the model to look at. Source: the
tree-structured Parzen estimator of Bergstra, Bardenet, Bengio and Kegl, "Algorithms for
Hyper-Parameter Optimization" (2011).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from json import dumps, loads
from typing import Any, Literal

from control_plane.field_types import Count, MaxLength, Steps
from control_plane.searchers.blob_store import BlobStore
from control_plane.searchers.era_rules import SearchRules
from control_plane.searchers.full_trainings import completed_share
from control_plane.searchers.method import (
    Create,
    CreateTrial,
    Event,
    ExternalInput,
    MethodState,
    MethodStep,
    SearchMethod,
    SuggestedPoints,
    SuggestionFailed,
    Tally,
    TrialClosed,
    TrialExitedEarly,
    TrialLengthReached,
)
from control_plane.searchers.methods.random import RandomPlan
from control_plane.searchers.options import TrialCountOptions
from control_plane.searchers.posted_operations import PostedOperations
from control_plane.searchers.spec import PreviewPart, SearcherSpec
from control_plane.searchers.stored_points import Point, store_point

# Blobs of the trials' hyperparameters, those of so many trials in each.
HPARAMS_BLOBS = "tried/"
TRIALS_PER_BLOB = 8


class BayesianOptions(TrialCountOptions):
    """Trials of which most are suggested by a model of the results so far."""

    max_concurrent_trials: Count = 16
    """The number of trials at a time; fewer let the model use more results for each suggestion."""
    startup_trials: Count = 10
    """The number of results before the model suggests hyperparameters; until then they are drawn at
    random.
    """


class StepBayesian(BayesianOptions):
    """Trials suggested by a model of the results so far, a number of them at a time."""

    max_steps: Steps
    """The number of steps that a trial trains."""


class LengthBayesian(BayesianOptions):
    """Trials suggested by a model of the results so far, a number of them at a time."""

    max_length: MaxLength
    """How long a trial trains: {batches: n}, {records: n} or {epochs: n}."""


@dataclass(frozen=True, slots=True)
class BayesianPlan:
    """Train `max_trials` trials to `max_length`, at most `max_concurrent_trials` >= 1 at a time;
    the model is asked once `startup_trials` >= 1 results are in.
    """

    max_length: int
    max_trials: int
    max_concurrent_trials: int
    startup_trials: int
    rules: SearchRules
    kind: Literal["bayesian"] = "bayesian"


@dataclass(frozen=True, slots=True)
class BayesianState(MethodState):
    """Progress of the search. `counted`: trials asked for so far, without the replacements of
    invalid ones. Of the suggestions `asked` for, numbered from 0, the first `answered` have come.
    `results`: trials that reached their length.
    """

    counted: int
    results: int = 0
    asked: int = 0
    answered: int = 0
    kind: Literal["bayesian"] = "bayesian"

    @property
    def awaits_external_input(self) -> bool:
        """Whether a suggestion is still to come; see MethodState."""
        return self.asked > self.answered


class BayesianSearch(SearchMethod[BayesianState]):
    """Keeps trials open, or suggestions asked for, up to the limit and to max_trials in all."""

    def __init__(self, plan: BayesianPlan, blobs: BlobStore) -> None:
        self._plan = plan
        self._blobs = blobs

    @property
    def replaces_refused(self) -> bool:
        """Whether the rules of its era say so."""
        return self._plan.rules.replaces_invalid_hparams

    def first_step(self) -> MethodStep[BayesianState]:
        """Draw the first trials: nothing is known that a model could learn from."""
        first = min(self._plan.max_trials, self._plan.max_concurrent_trials)
        return MethodStep(BayesianState(first), (self._make_create(first, "Sampled"),))

    def on_event(self, state: BayesianState, event: Event) -> MethodStep[BayesianState]:
        """Replace a trial that ended, and beyond max_trials one that was invalid."""
        match event:
            case TrialLengthReached():
                return MethodStep(replace(state, results=state.results + 1))
            case TrialExitedEarly(reason=reason) if (
                reason.is_invalid_hparams and self.replaces_refused
            ):
                return self._replace_trial(state)
            case TrialClosed() | TrialExitedEarly() if state.counted < self._plan.max_trials:
                return self._replace_trial(replace(state, counted=state.counted + 1))
            case _:
                return MethodStep(state)

    def on_trial_created(self, state: BayesianState, created: CreateTrial) -> BayesianState:
        """Store the trial's hyperparameters for the model."""
        number, place = divmod(created.trial, TRIALS_PER_BLOB)
        blob = self._blobs.read(f"{HPARAMS_BLOBS}{number}")
        known = [*parse_hparams(blob), created.hparams] if blob and place else [created.hparams]
        self._blobs.write(f"{HPARAMS_BLOBS}{number}", dumps(known, separators=(",", ":")).encode())
        return state

    def on_external_input(
        self, state: BayesianState, external_input: ExternalInput
    ) -> MethodStep[BayesianState]:
        """Create the suggested points, or draw one where none can be suggested. Anything but the
        answer to the first open request changes nothing.
        """
        assert not isinstance(external_input, PostedOperations), (
            "a model suggests, and posts nothing"
        )
        if external_input.first != state.answered or not state.awaits_external_input:
            return MethodStep(state)
        match external_input:
            case SuggestedPoints(points=points):
                fresh = points[: state.asked - state.answered]
                for number, point in enumerate(fresh, state.answered):
                    store_point(self._blobs, number, Point(point))
                create = self._make_create(len(fresh), "Kept", state.answered)
            case SuggestionFailed():
                create = self._make_create(1, "Sampled")
        return MethodStep(replace(state, answered=state.answered + create.count), (create,))

    def progress(self, state: BayesianState, tally: Tally) -> float:
        """Compute the share of max_trials trainings that is done."""
        return completed_share(
            self._plan.rules, self._plan.max_trials, self._plan.max_length, tally
        )

    def _replace_trial(self, state: BayesianState) -> MethodStep[BayesianState]:
        if state.results < self._plan.startup_trials:
            return MethodStep(state, (self._make_create(1, "Sampled"),))
        return MethodStep(replace(state, asked=state.asked + 1))

    def _make_create(
        self, count: int, hparams: Literal["Sampled", "Kept"], first: int = 0
    ) -> Create:
        return Create(count, hparams, first, length=self._plan.max_length, closed=True)


def parse_hparams(blob: bytes) -> Sequence[Mapping[str, Any]]:
    """Parse one blob of hyperparameters, in the order of the trials' numbers."""
    found: list[Mapping[str, Any]] = loads(blob)
    return found


def _make_plan(options: StepBayesian | LengthBayesian, rules: SearchRules) -> BayesianPlan:
    match options:
        case StepBayesian(max_steps=length) | LengthBayesian(max_length=length):
            return BayesianPlan(
                max_length=length.count,
                max_trials=options.max_trials,
                max_concurrent_trials=options.max_concurrent_trials,
                startup_trials=options.startup_trials,
                rules=rules,
            )


def _preview(plan: BayesianPlan) -> list[PreviewPart]:
    # Who chooses the hyperparameters changes nothing of what is trained.
    concurrent = plan.max_concurrent_trials
    return [PreviewPart(RandomPlan(plan.max_length, plan.max_trials, concurrent, plan.rules))]


SPEC = SearcherSpec[StepBayesian | LengthBayesian, BayesianPlan](
    name="bayesian",
    listing_order=3,
    step_options=StepBayesian,
    length_options=LengthBayesian,
    plan_type=BayesianPlan,
    state_type=BayesianState,
    make_plan=_make_plan,
    make_method=lambda plan, space, blobs: BayesianSearch(plan, blobs),
    trial_count=lambda options, plan, space: plan.max_trials,
    preview=_preview,
    trains_to_end=True,
)
