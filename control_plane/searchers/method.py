"""The seam between search methods and their driver: operations, events and what a method is.

A method returns symbolic operations and never draws: one `Create` may stand for 100,000 trials. The
driver expands creates in the order in which they were asked for, so the draws keep one order.
Lengths and units are in the configuration's unit: steps, batches, records or epochs.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Generic, Literal, TypeVar

from control_plane.searchers.posted import Posted

State = TypeVar("State")

ENDLESS: Final = (1 << 53) - 1
"""The length of a training that ends when its own code does or the search stops it."""


@dataclass(frozen=True, slots=True)
class Create:
    """Create `count` trials; each trains to the absolute `length` and validates (None: it waits).

    `closed`: each is closed after that. Hyperparameters are sampled from the space; "FromGrid",
    trial i takes grid point first_point + i * point_step; "Kept", it takes what the method keeps as
    point first_point + i (see kept.py); "Explored", it is a copy of trial `first_point`, whose
    point the method keeps, with that trial's latest checkpoint and hyperparameters near its own.
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
    """End the search; `cancel`: people had stopped all of it."""

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
    def invalid_hparams(self) -> bool:
        """Whether the trial refused its hyperparameters."""
        return self in (ExitReason.INVALID_HP, ExitReason.INIT_INVALID_HP)


@dataclass(frozen=True, slots=True)
class TrialReached:
    """The validation at the end of a `TrainTo` was reported; `metric` carries its own sign."""

    trial: int
    length: int
    metric: float


@dataclass(frozen=True, slots=True)
class TrialMeasured:
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
class TrialExited:
    """The trial ended early, which closes it too: no `TrialClosed` follows. `units` as there;
    `length` is that of its latest `TrialReached`, 0 without one.
    """

    trial: int
    reason: ExitReason
    units: float
    length: int = 0


Event = TrialReached | TrialMeasured | TrialProgressed | TrialClosed | TrialExited


@dataclass(frozen=True, slots=True)
class Suggested:
    """Points that an adviser suggests, as answers to the requests from number `first` on."""

    first: int
    points: tuple[Mapping[str, object], ...]


@dataclass(frozen=True, slots=True)
class SuggestionFailed:
    """An adviser has nothing to say to the request of number `first`, and `why`."""

    first: int
    why: str


Advice = Suggested | SuggestionFailed | Posted


@dataclass(frozen=True)
class Tally:
    """What the driver counts over all trials; 0 <= closed <= created <= requested.

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
    """A method's answer: its next state and what it wants done, in order."""

    state: State
    operations: Sequence[Operation] = ()


class MethodState:
    """What a method keeps in the search's state; it is a dataclass of its own."""

    __slots__ = ()

    @property
    def is_closing(self) -> bool:
        """Whether trials are still to be closed that were decided about."""
        return False

    @property
    def awaits_advice(self) -> bool:
        """Whether someone outside is still to say what to do: such a search is not over because
        all its trials are.
        """
        return False


class SearchMethod(ABC, Generic[State]):
    """One algorithm, bound to its plan; all that changes is in `State`, immutable and JSON-able."""

    @abstractmethod
    def initial(self) -> MethodStep[State]:
        """Begin the search."""

    @abstractmethod
    def on_event(self, state: State, event: Event) -> MethodStep[State]:
        """Answer an event of an open trial, each at most once."""

    @abstractmethod
    def progress(self, state: State, tally: Tally) -> float:
        """Estimate the completed share; the driver cuts it to [0, 1] and NaN to 0."""

    def on_created(self, state: State, created: CreateTrial) -> State:
        """Take note of a trial that a `Create` became; they come in the order of their numbers."""
        return state

    def on_advice(self, state: State, advice: Advice) -> MethodStep[State]:
        """Answer what someone outside says, who may say it twice."""
        return MethodStep(state)

    def close_more(self, state: State, trials: int, close_max: int) -> MethodStep[State]:
        """Close at most `close_max` trials of a state that is closing; `trials` were requested of
        the whole search.
        """
        return MethodStep(state)

    def resumed(self, state: State, tally: Tally) -> MethodStep[State]:
        """Go on after a while in which ends were counted in `tally` and not answered; unless a
        method says otherwise, it cannot.
        """
        return MethodStep(state)
