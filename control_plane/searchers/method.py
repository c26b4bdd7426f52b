"""The interface between search methods and their driver: operations, events, plans and states.

A method returns symbolic operations and never draws: one `Create` may stand for 100,000 trials. The
driver expands creates in the order in which they were asked for, so the draws keep one order.
Lengths and units are in the configuration's unit: steps, batches, records or epochs.
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
"""The length of a training that ends when its own code does or the search stops it; no other one
is as long.
"""


@dataclass(frozen=True, slots=True)
class Create:
    """Create `count` trials; each trains to the absolute `length` and validates (None: it waits).

    `closed`: each is closed after that. `hparams` says where hyperparameters come from: "Sampled"
    from the space; "FromGrid", trial i takes grid point first_point + i * point_step; "Kept", it
    takes stored point first_point + i (see stored_points.py); "Explored", it is a copy of trial
    `first_point`, whose point is stored, with that trial's latest checkpoint and hyperparameters
    near its own.
    """

    count: int
    hparams: Literal["Sampled", "FromGrid", "Kept", "Explored"]
    first_point: int
    length: int | None
    closed: bool
    point_step: Literal[1, -1] = 1


@dataclass(frozen=True, slots=True)
class TrainTo:
    """Train to `length`, counted from the trial's start, then validate."""

    trial: int
    length: int


@dataclass(frozen=True, slots=True)
class Close:
    """Let the trial end once it has trained what it was asked for."""

    trial: int


@dataclass(frozen=True, slots=True)
class Stop:
    """Let the trial end now, saving its work first."""

    trial: int


@dataclass(frozen=True, slots=True)
class Shutdown:
    """End the search; `cancel`: users had stopped all of its trials."""

    failure: bool
    cancel: bool = False


Operation = Create | TrainTo | Close | Stop | Shutdown


@dataclass(frozen=True, slots=True)
class CreateTrial:
    """Create trial number `trial` (from 0); `length` and `closed` as in `Create`. `request_id` is a
    UUID, `seed` has 31 bits. It starts from the latest checkpoint of trial number `parent`.
    """

    trial: int
    request_id: str
    seed: int
    hparams: Mapping[str, object]
    length: int | None
    closed: bool
    parent: int | None = None


class ExitReason(StrEnum):
    """Why a trial ended before it did what was asked of it."""

    ERRORED = "ERRORED"
    USER_REQUESTED_STOP = "USER_REQUESTED_STOP"
    USER_CANCELED = "USER_CANCELED"
    INVALID_HP = "INVALID_HP"
    INIT_INVALID_HP = "INIT_INVALID_HP"

    @property
    def is_invalid_hparams(self) -> bool:
        """Whether the trial refused its hyperparameters."""
        return self in (ExitReason.INVALID_HP, ExitReason.INIT_INVALID_HP)


@dataclass(frozen=True, slots=True)
class TrialLengthReached:
    """The validation at the end of a `TrainTo` was reported; `metric` carries its own sign. `value`
    is what a search method of the user's gets in its place, as JSON, "" for nothing else.
    """

    trial: int
    length: int
    metric: float
    value: str = ""


@dataclass(frozen=True, slots=True)
class TrialValidationReported:
    """A validation was reported, at `time` by the search's own time metric; in any order, and the
    same one again after a failure.
    """

    trial: int
    time: float
    metric: float


@dataclass(frozen=True, slots=True)
class TrialProgressed:
    """The trial trained `units` >= 0 beyond all it had reported; in the step era whole steps."""

    trial: int
    units: float


@dataclass(frozen=True, slots=True)
class TrialClosed:
    """The trial ended normally; `units` is the sum of what it had reported as progress."""

    trial: int
    units: float


@dataclass(frozen=True, slots=True)
class TrialExitedEarly:
    """The trial ended early, which closes it too: no `TrialClosed` follows. `units` as in
    `TrialClosed`; `length` is that of its latest `TrialLengthReached`, 0 without one.
    """

    trial: int
    reason: ExitReason
    units: float
    length: int = 0


Event = (
    TrialLengthReached | TrialValidationReported | TrialProgressed | TrialClosed | TrialExitedEarly
)


@dataclass(frozen=True, slots=True)
class SuggestedPoints:
    """Points that a model suggests, as answers to the requests from number `first` on."""

    first: int
    points: tuple[Mapping[str, object], ...]


@dataclass(frozen=True, slots=True)
class SuggestionFailed:
    """A model cannot answer the request of number `first`, and `why`."""

    first: int
    why: str


ExternalInput = SuggestedPoints | SuggestionFailed | PostedOperations


@dataclass(frozen=True)
class Tally:
    """Counts of the driver over all trials; 0 <= closed <= created <= requested.

    `closed` includes those that exited; `exited` counts every reason, `errored`, `invalid` and
    `canceled` some.
    `units` is all reported training, `open_units` the part of it by trials still open.
    """

    requested: int = 0
    created: int = 0
    closed: int = 0
    exited: int = 0
    errored: int = 0
    invalid: int = 0
    reached: int = 0
    units: float = 0.0
    open_units: float = 0.0
    canceled: int = 0


@dataclass(frozen=True, slots=True)
class MethodStep(Generic[State]):
    """A method's answer: its next state and what it wants done, in order. One that `is_large` has
    written as much as goes into one commit: nothing is expanded together with it.
    """

    state: State
    operations: Sequence[Operation] = ()
    is_large: bool = False


class MethodState:
    """The method's part of a search's state; each method has a frozen dataclass of its own."""

    __slots__ = ()

    @property
    def is_closing(self) -> bool:
        """Whether the method has decided to close trials, or to create them, and has not asked for
        all of that yet.
        """
        return False

    @property
    def awaits_external_input(self) -> bool:
        """Whether input from outside is still to come: such a search is not over when all its
        trials are.
        """
        return False


class MethodPlan(Protocol):
    """The task of a search method, from its configuration; a frozen dataclass."""

    @property
    def kind(self) -> str:
        """The name that identifies stored plans of this type."""
        ...

    @property
    def rules(self) -> SearchRules:
        """The rules of the configuration's era."""
        ...

    @property
    def max_length(self) -> int:
        """How long a trial trains at most."""
        ...


@runtime_checkable
class ExploringPlan(MethodPlan, Protocol):
    """A plan whose method makes trials that are "Explored"."""

    @property
    def exploration(self) -> Exploration:
        """Return how the hyperparameters of a copy differ from its original's."""
        ...


class SearchMethod(ABC, Generic[State]):
    """An algorithm, bound to its plan; all that changes is in `State`, immutable and JSON-able."""

    @abstractmethod
    def first_step(self) -> MethodStep[State]:
        """Begin the search."""

    @abstractmethod
    def on_event(self, state: State, event: Event) -> MethodStep[State]:
        """Answer an event of an open trial, each at most once."""

    @abstractmethod
    def progress(self, state: State, tally: Tally) -> float:
        """Estimate the completed share; the driver cuts it to [0, 1] and NaN to 0."""

    @property
    def replaces_refused(self) -> bool:
        """Whether a trial that refused its hyperparameters is replaced by another, beyond those
        that count; by default none is.
        """
        return False

    def on_trial_created(self, state: State, created: CreateTrial) -> State:
        """Take note of a trial that a `Create` became; they come in the order of their numbers."""
        return state

    def on_external_input(self, state: State, external_input: ExternalInput) -> MethodStep[State]:
        """Answer input from outside, which may come twice."""
        return MethodStep(state)

    def close_more(self, state: State, trials: int, close_max: int) -> MethodStep[State]:
        """Close or create at most `close_max` trials of a state that is closing; `trials` were
        requested of the whole search.
        """
        return MethodStep(state)

    def resume(self, state: State, tally: Tally) -> MethodStep[State]:
        """Go on after a time in which ends were counted in `tally` and not answered; by default a
        method cannot.
        """
        return MethodStep(state)
