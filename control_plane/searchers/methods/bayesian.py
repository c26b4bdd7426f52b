"""The searcher `bayesian`: samples the first trials, then asks a model for hyperparameters.

The model runs outside the search; see control_plane/suggestions. The method counts requests and
answers, and stores the hyperparameters of every trial for the model. Source: the tree-structured
Parzen estimator of Bergstra, Bardenet, Bengio and Kegl, "Algorithms for Hyper-Parameter
Optimization" (2011).
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

HPARAMS_BLOBS = "tried/"
"""The prefix of the names of the blobs that contain the trials' hyperparameters."""
TRIALS_PER_BLOB = 8
"""The number of trials whose hyperparameters are in one blob."""


class BayesianOptions(TrialCountOptions):
    """The options of `bayesian` in both eras."""

    max_concurrent_trials: Count = 16
    """The number of concurrent trials. With fewer concurrent trials, the model knows more results
    at each suggestion.
    """
    startup_trials: Count = 10
    """The number of results before the model suggests hyperparameters. Earlier trials are sampled
    at random.
    """


class StepBayesian(BayesianOptions):
    """Bayesian search: after the first trials, a model of the results suggests hyperparameters."""

    max_steps: Steps
    """The number of steps that a trial trains."""


class LengthBayesian(BayesianOptions):
    """Bayesian search: after the first trials, a model of the results suggests hyperparameters."""

    max_length: MaxLength
    """The length of a trial's training: {batches: n}, {records: n} or {epochs: n}."""


@dataclass(frozen=True, slots=True)
class BayesianPlan:
    """The plan of a Bayesian search."""

    max_length: int
    """The length of each trial."""
    max_trials: int
    """The number of trials, without replacements of invalid trials."""
    max_concurrent_trials: int
    """The limit of open trials and open requests to the model; at least 1."""
    startup_trials: int
    """The number of results before the method asks the model; at least 1."""
    rules: SearchRules
    kind: Literal["bayesian"] = "bayesian"


@dataclass(frozen=True, slots=True)
class BayesianState(MethodState):
    """The state of a Bayesian search."""

    counted: int
    """Trials that the method requested, without replacements of invalid trials."""
    results: int = 0
    """Reports of trials that reached `max_length`."""
    asked: int = 0
    """Requests to the model. Requests are numbered from 0."""
    answered: int = 0
    """Answered requests. The model answers requests in order."""
    kind: Literal["bayesian"] = "bayesian"

    @property
    def awaits_external_input(self) -> bool:
        """Return whether a request to the model is unanswered; see MethodState."""
        return self.asked > self.answered


class BayesianSearch(SearchMethod[BayesianState]):
    """The method of a Bayesian search: each ended trial is followed by a sampled or suggested
    trial, up to the planned number.
    """

    def __init__(self, plan: BayesianPlan, blobs: BlobStore) -> None:
        self._plan = plan
        self._blobs = blobs

    @property
    def replaces_refused(self) -> bool:
        """Return whether a trial that refused the hyperparameters is replaced; see SearchMethod."""
        return self._plan.rules.replaces_invalid_hparams

    def first_step(self) -> MethodStep[BayesianState]:
        """Return the first state, and the creation of the first trials by sampling."""
        first = min(self._plan.max_trials, self._plan.max_concurrent_trials)
        return MethodStep(BayesianState(first), (self._make_create(first, "Sampled"),))

    def on_event(self, state: BayesianState, event: Event) -> MethodStep[BayesianState]:
        """Return the next trial after the end of a trial, up to max_trials.

        The step creates a sampled trial before `startup_trials` results exist. Later the step only
        counts a request to the model. A trial that refused the hyperparameters is replaced even
        beyond max_trials, if the rules of the era allow replacements. A reached length is only
        counted as a result.
        """
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
        """Write the trial's hyperparameters to the blobs, and return the state unchanged."""
        number, place = divmod(created.trial, TRIALS_PER_BLOB)
        blob = self._blobs.read(f"{HPARAMS_BLOBS}{number}")
        listed = [*parse_hparams(blob), created.hparams] if blob and place else [created.hparams]
        self._blobs.write(f"{HPARAMS_BLOBS}{number}", dumps(listed, separators=(",", ":")).encode())
        return state

    def on_external_input(
        self, state: BayesianState, external_input: ExternalInput
    ) -> MethodStep[BayesianState]:
        """Return the creation of trials with suggested hyperparameters.

        Each point answers a request; points beyond the open requests are ignored. If the model
        failed, create one sampled trial instead. Input other than the answer to the first open
        request changes nothing.
        """
        assert not isinstance(external_input, PostedOperations), (
            "a model suggests, and posts nothing"
        )
        if external_input.first != state.answered or not state.awaits_external_input:
            return MethodStep(state)
        match external_input:
            case SuggestedPoints(points=points):
                used = points[: state.asked - state.answered]
                for number, point in enumerate(used, state.answered):
                    store_point(self._blobs, number, Point(point))
                create = self._make_create(len(used), "Kept", state.answered)
            case SuggestionFailed():
                create = self._make_create(1, "Sampled")
        return MethodStep(replace(state, answered=state.answered + create.count), (create,))

    def progress(self, state: BayesianState, tally: Tally) -> float:
        """Return the completed share of max_trials full trainings."""
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
    """Return the hyperparameters in one blob, in the order of the trials' numbers."""
    hparams: list[Mapping[str, Any]] = loads(blob)
    return hparams


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
    # Lengths and numbers of trials do not depend on the source of the hyperparameters.
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
