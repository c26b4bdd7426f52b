"""Bayesian search: trials are drawn at first, and later suggested by a model of the results so far.

The model runs outside (see control_plane/suggestions): the method counts what it asked for and what
was answered, and keeps the hyperparameters of every trial for the model to look at. Source: the
tree-structured Parzen estimator of Bergstra, Bardenet, Bengio and Kegl, "Algorithms for
Hyper-Parameter Optimization" (2011).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from json import dumps, loads
from typing import Any, Literal

from control_plane.searchers.kept import Point, keep
from control_plane.searchers.method import (
    Advice,
    Create,
    CreateTrial,
    Event,
    MethodState,
    MethodStep,
    SearchMethod,
    Suggested,
    SuggestionFailed,
    Tally,
    TrialClosed,
    TrialExited,
    TrialReached,
)
from control_plane.searchers.parts import Parts
from control_plane.searchers.posted import Posted
from control_plane.searchers.rules import Rules, share_done

# Where the hyperparameters of the trials lie, so many in a part.
TRIED = "tried/"
TRIED_PER_PART = 8


@dataclass(frozen=True, slots=True)
class BayesianPlan:
    """Train `max_trials` trials to `max_length`, at most `max_concurrent_trials` >= 1 at a time;
    the model is asked once `startup_trials` >= 1 results are in.
    """

    max_length: int
    max_trials: int
    max_concurrent_trials: int
    startup_trials: int
    rules: Rules
    kind: Literal["bayesian"] = "bayesian"


@dataclass(frozen=True, slots=True)
class BayesianState(MethodState):
    """`counted`: trials wanted so far, without the replacements of invalid ones. Of the suggestions
    `asked` for, numbered from 0, the first `answered` have come. `results`: trials that reached
    their length.
    """

    counted: int
    results: int = 0
    asked: int = 0
    answered: int = 0
    kind: Literal["bayesian"] = "bayesian"

    @property
    def awaits_advice(self) -> bool:
        """See MethodState."""
        return self.asked > self.answered


class BayesianSearch(SearchMethod[BayesianState]):
    """Keeps trials open, or asked for, up to the limit until max_trials were."""

    def __init__(self, plan: BayesianPlan, parts: Parts) -> None:
        self._plan = plan
        self._parts = parts

    def initial(self) -> MethodStep[BayesianState]:
        """Draw the first trials: nothing is known that a model could learn from."""
        first = min(self._plan.max_trials, self._plan.max_concurrent_trials)
        return MethodStep(BayesianState(first), (self._create(first, "Sampled"),))

    def on_event(self, state: BayesianState, event: Event) -> MethodStep[BayesianState]:
        """Replace a trial that ended, and beyond max_trials one that was invalid."""
        match event:
            case TrialReached():
                return MethodStep(replace(state, results=state.results + 1))
            case TrialExited(reason=reason) if (
                reason.invalid_hparams and self._plan.rules.replaces_invalid_hparams
            ):
                return self._one_more(state)
            case TrialClosed() | TrialExited() if state.counted < self._plan.max_trials:
                return self._one_more(replace(state, counted=state.counted + 1))
            case _:
                return MethodStep(state)

    def on_created(self, state: BayesianState, created: CreateTrial) -> BayesianState:
        """Keep the trial's hyperparameters for the model."""
        part, place = divmod(created.trial, TRIED_PER_PART)
        piece = self._parts.read(f"{TRIED}{part}")
        known = [*tried(piece), created.hparams] if piece and place else [created.hparams]
        self._parts.write(f"{TRIED}{part}", dumps(known, separators=(",", ":")).encode())
        return state

    def on_advice(self, state: BayesianState, advice: Advice) -> MethodStep[BayesianState]:
        """Create what was suggested, or draw what could not be. Anything but the answer to the
        first request that is open changes nothing.
        """
        assert not isinstance(advice, Posted), "a model suggests, and posts nothing"
        if advice.first != state.answered or not state.awaits_advice:
            return MethodStep(state)
        match advice:
            case Suggested(points=points):
                fresh = points[: state.asked - state.answered]
                for number, point in enumerate(fresh, state.answered):
                    keep(self._parts, number, Point(point))
                create = self._create(len(fresh), "Kept", state.answered)
            case SuggestionFailed():
                create = self._create(1, "Sampled")
        return MethodStep(replace(state, answered=state.answered + create.count), (create,))

    def progress(self, state: BayesianState, tally: Tally) -> float:
        """Compute the share of max_trials trainings that is done."""
        return share_done(self._plan.rules, self._plan.max_trials, self._plan.max_length, tally)

    def _one_more(self, state: BayesianState) -> MethodStep[BayesianState]:
        if state.results < self._plan.startup_trials:
            return MethodStep(state, (self._create(1, "Sampled"),))
        return MethodStep(replace(state, asked=state.asked + 1))

    def _create(self, count: int, hparams: Literal["Sampled", "Kept"], first: int = 0) -> Create:
        return Create(count, hparams, first, length=self._plan.max_length, closed=True)


def tried(piece: bytes) -> Sequence[Mapping[str, Any]]:
    """The hyperparameters in one part, by the trials' numbers."""
    found: list[Mapping[str, Any]] = loads(piece)
    return found
