"""The interface between search methods and the driver: operations, events, plans and states.

A method returns symbolic operations and draws no random numbers. One `Create` may stand for 100,000
trials. The driver expands creates in the order in which methods return them, which fixes the order
of all random draws. Lengths and units are in the configuration's unit: steps, batches, records or
epochs.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Generic, Literal, Protocol, TypeVar, runtime_checkable

from control_plane.searchers.era_rules import SearchRules
from control_plane.searchers.exploration import Exploration
from control_plane.searchers.posted_operations import PostedOperations

State = TypeVar("State")

ENDLESS: Final = 1 << 53
"""The length of a training without a length limit: the training code ends, or the search stops it.
All other lengths are smaller.
"""


@dataclass(frozen=True, slots=True)
class Create:
    """A request to create trials with consecutive numbers."""

    count: int
    hparams: Literal["Sampled", "FromGrid", "Kept", "Explored"]
    """The source of the hyperparameters of trial i, with i from 0 to count - 1.

    - "Sampled": random values from the space.
    - "FromGrid": grid point first_point + i * point_step.
    - "Kept": stored point first_point + i * point_step; see stored_points.py.
    - "Explored": values near the stored point of trial number `first_point`. The trial is a copy:
      the latest checkpoint of trial `first_point` is its first checkpoint.
    """
    first_point: int
    length: int | None
    """The length, from the trial's start, at which each trial validates. None: each trial waits for
    a `TrainTo`.
    """
    closed: bool
    """Whether each trial ends after its validation at `length`."""
    point_step: Literal[1, -1] = 1


@dataclass(frozen=True, slots=True)
class TrainTo:
    """A request to train a trial to `length`, counted from the trial's start, and to validate."""

    trial: int
    length: int


@dataclass(frozen=True, slots=True)
class Close:
    """A request to end a trial after the last training that was requested."""

    trial: int


@dataclass(frozen=True, slots=True)
class Stop:
    """A request to end a trial now. The trial saves a checkpoint first."""

    trial: int


@dataclass(frozen=True, slots=True)
class Shutdown:
    """A request to end the search."""

    failure: bool
    """Whether the search failed."""
    cancel: bool = False
    """Whether the experiment ends as canceled, for example after users canceled all trials."""


Operation = Create | TrainTo | Close | Stop | Shutdown


@dataclass(frozen=True, slots=True)
class CreateTrial:
    """A request to create a trial; the driver builds the request from a `Create`."""

    trial: int
    """The trial's number within the search, from 0."""
    request_id: str
    """A UUID."""
    seed: int
    """The trial's random seed, of 31 bits."""
    hparams: Mapping[str, object]
    length: int | None
    """As in `Create`."""
    closed: bool
    """As in `Create`."""
    parent: int | None = None
    """The number of the trial whose latest checkpoint the new trial starts from, or None."""


class ExitReason(StrEnum):
    """The reason why a trial ended before the requested training was complete."""

    ERRORED = "ERRORED"
    USER_REQUESTED_STOP = "USER_REQUESTED_STOP"
    USER_CANCELED = "USER_CANCELED"
    INVALID_HP = "INVALID_HP"
    INIT_INVALID_HP = "INIT_INVALID_HP"

    @property
    def is_invalid_hparams(self) -> bool:
        """Return whether the training code refused the hyperparameters."""
        return self in (ExitReason.INVALID_HP, ExitReason.INIT_INVALID_HP)


@dataclass(frozen=True, slots=True)
class TrialLengthReached:
    """A trial reached the requested length and reported a validation there."""

    trial: int
    length: int
    metric: float
    """The metric as reported; larger values may be better."""
    value: str = ""
    """JSON that a custom search receives in place of the metric. "": the metric alone."""


@dataclass(frozen=True, slots=True)
class TrialValidationReported:
    """A trial of a search with a time metric reported a validation.

    Reports can arrive in any order. A trial that restarts after a failure repeats reports.
    """

    trial: int
    time: float
    """The value of the search's time metric."""
    metric: float
    """The metric as reported; larger values may be better."""


@dataclass(frozen=True, slots=True)
class TrialProgressed:
    """A trial trained `units` >= 0 more than at its last report; whole steps in the step era."""

    trial: int
    units: float


@dataclass(frozen=True, slots=True)
class TrialClosed:
    """A trial ended normally."""

    trial: int
    units: float
    """The sum of the units of all `TrialProgressed` events of the trial."""


@dataclass(frozen=True, slots=True)
class TrialExitedEarly:
    """A trial ended early. No `TrialClosed` follows."""

    trial: int
    reason: ExitReason
    units: float
    """As in `TrialClosed`."""
    length: int = 0
    """The length of the trial's latest `TrialLengthReached`, or 0."""


Event = (
    TrialLengthReached | TrialValidationReported | TrialProgressed | TrialClosed | TrialExitedEarly
)


@dataclass(frozen=True, slots=True)
class SuggestedPoints:
    """Points that a model suggests as answers to consecutive requests."""

    first: int
    """The number of the request that the first point answers."""
    points: tuple[Mapping[str, object], ...]
    """Hyperparameters by name."""


@dataclass(frozen=True, slots=True)
class SuggestionFailed:
    """A model's failure to answer a request."""

    first: int
    """The number of the request."""
    why: str
    """The reason, for a log or a user."""


ExternalInput = SuggestedPoints | SuggestionFailed | PostedOperations


@dataclass(frozen=True)
class Tally:
    """The driver's counts over all trials; 0 <= closed <= created <= requested."""

    requested: int = 0
    """Trials of all creates that the method returned."""
    created: int = 0
    closed: int = 0
    """Trials that ended, early exits included."""
    exited: int = 0
    """Trials that ended early, for any reason."""
    errored: int = 0
    """Trials that ended early with an error."""
    invalid: int = 0
    """Trials that ended early because the training code refused the hyperparameters."""
    reached: int = 0
    """`TrialLengthReached` events."""
    units: float = 0.0
    """Training that all trials reported."""
    open_units: float = 0.0
    """The part of `units` that open trials reported."""
    canceled: int = 0
    """Trials that ended early because a user canceled the trial."""


@dataclass(frozen=True, slots=True)
class MethodStep(Generic[State]):
    """A method's answer to an event: the next state, and operations in the order of execution."""

    state: State
    operations: Sequence[Operation] = ()
    is_large: bool = False
    """Whether the method wrote enough blobs to fill a commit. The driver then expands no creates in
    the same step.
    """


class MethodState:
    """The method's part of a search's state; each method has a frozen dataclass of its own."""

    __slots__ = ()

    @property
    def is_closing(self) -> bool:
        """Return whether `close_more` has closes or creates left to return."""
        return False

    @property
    def awaits_external_input(self) -> bool:
        """Return whether the search waits for an `ExternalInput`. The driver does not shut down a
        waiting search, even when all trials have ended.
        """
        return False


class MethodPlan(Protocol):
    """The settings of a search method, made from a configuration; a frozen dataclass."""

    @property
    def kind(self) -> str:
        """Return the name that identifies stored plans of this type."""
        ...

    @property
    def rules(self) -> SearchRules:
        """Return the rules of the configuration's era."""
        ...

    @property
    def max_length(self) -> int:
        """Return the longest training of a trial, in the configuration's unit."""
        ...


@runtime_checkable
class ExploringPlan(MethodPlan, Protocol):
    """A plan of a method that returns creates with `hparams` "Explored"."""

    @property
    def exploration(self) -> Exploration:
        """Return the settings by which the hyperparameters of a copy change."""
        ...

    @property
    def integers_move(self) -> bool:
        """Return whether a copy's integers change by at least one; see `explore_hparams`."""
        ...


class SearchMethod(ABC, Generic[State]):
    """A search algorithm with a plan. All variable data is in `State`, immutable and JSON-able, and
    in the search's blobs.
    """

    @abstractmethod
    def first_step(self) -> MethodStep[State]:
        """Return the first state and the first operations of the search."""

    @abstractmethod
    def on_event(self, state: State, event: Event) -> MethodStep[State]:
        """Return the next state and the operations after an event of an open trial.

        The driver passes each event at most once.
        """

    @abstractmethod
    def progress(self, state: State, tally: Tally) -> float:
        """Estimate the completed share of the search, nominally from 0 to 1.

        The driver clamps the estimate to [0, 1] and replaces NaN and infinities by 0.
        """

    @property
    def replaces_refused(self) -> bool:
        """Return whether the method replaces a trial that refused the hyperparameters.

        Replacements do not count towards the planned number of trials. False by default.
        """
        return False

    @property
    def open_trials_max(self) -> int | None:
        """Return the limit of simultaneously open trials. None: no limit."""
        return None

    def on_trial_created(self, state: State, created: CreateTrial) -> State:
        """Return the state after the driver created a trial; unchanged by default.

        The driver calls it once for each trial, in the order of the trials' numbers. A method may
        write blobs here.
        """
        return state

    def on_external_input(self, state: State, external_input: ExternalInput) -> MethodStep[State]:
        """Return the next state and the operations after input from outside the search.

        The input is a user's post or the model's answer to a request. The same input may arrive
        twice. By default, return the state unchanged and no operations.
        """
        return MethodStep(state)

    def close_more(self, state: State, trials: int, close_max: int) -> MethodStep[State]:
        """Return the next state, with closes or creates, for a state that is closing.

        The driver calls it repeatedly while `MethodState.is_closing`. By default nothing changes.

        Args:
            trials: the number of trials that the search has requested so far.
            close_max: the largest number of trials to close or create.
        """
        return MethodStep(state)

    def resume(self, state: State, tally: Tally) -> MethodStep[State]:
        """Return the operations that are due after trials ended without a call of `on_event`.

        `tally` counts these ends. By default nothing changes.
        """
        return MethodStep(state)
