"""A search that a method outside drives: the user's own process, told of events, posts operations.

Events are queued (event_queue.py) until they are acknowledged; a post (posted_operations.py) is
taken whole or not at all. Posts are numbered: the last one may come again, which changes nothing,
and any other number shows that two processes drive one search. Of each trial a blob is stored under
its request id, so that a post finds it without looking through the others.

After `determined.searcher` of Determined 0.19 to 0.37.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import ClassVar, Literal, NamedTuple

from control_plane.actors.lengths import Unit
from control_plane.evolve import evolve
from control_plane.field_types import LengthUnit
from control_plane.searchers import event_queue
from control_plane.searchers.blob_store import BlobStore
from control_plane.searchers.era_rules import SearchRules
from control_plane.searchers.event_queue import EVENTS_MAX, EventKind, QueuedEvent
from control_plane.searchers.method import (
    Close,
    Create,
    CreateTrial,
    Event,
    ExternalInput,
    MethodState,
    MethodStep,
    Operation,
    SearchMethod,
    Shutdown,
    Tally,
    TrainTo,
    TrialClosed,
    TrialExitedEarly,
    TrialLengthReached,
    TrialProgressed,
    TrialValidationReported,
)
from control_plane.searchers.options import TRIALS_MAX, SearcherOptions
from control_plane.searchers.posted_operations import (
    LENGTH_MAX,
    CloseRequest,
    CreateRequest,
    PostedOperation,
    PostedOperations,
    PostRefused,
    ProgressRequest,
    ShutdownRequest,
    ValidateAfterRequest,
)
from control_plane.searchers.spec import SearcherSpec
from control_plane.searchers.stored_points import Point, load_point, store_point

# Lengths that a trial has still to validate at; they stand in its blob.
LENGTHS_MAX = 50
# Events of an open trial: its early exit and its end, and the progress before them.
_EVENTS_OF_OPEN = 3


class CustomOptions(SearcherOptions):
    """A search that the user's own process drives; its other fields are not checked."""

    takes_unknown_fields: ClassVar[bool] = True

    unit: LengthUnit | None = None
    """The unit of the search's lengths."""

    @property
    def length_unit(self) -> Unit:
        """The unit of the lengths that the method asks for."""
        return self.unit or "batches"


@dataclass(frozen=True, slots=True)
class CustomPlan:
    """The unit of the lengths; the user's method says everything else."""

    unit: Unit
    rules: SearchRules
    kind: Literal["custom"] = "custom"

    @property
    def max_length(self) -> int:
        """The greatest length that a post may ask for."""
        return LENGTH_MAX


@dataclass(frozen=True)
class CustomState(MethodState):
    """Progress of the search. `newest` and `acknowledged` are numbers of events; `post` and
    `digest` belong to the last post that was taken.

    Of the `trials` so many are `running`, not ended, with `awaited` lengths to validate at.
    """

    newest: int = 0
    acknowledged: int = 0
    post: int = 0
    digest: str = ""
    trials: int = 0
    running: int = 0
    awaited: int = 0
    progress: float = 0.0
    kind: Literal["custom"] = "custom"

    @property
    def awaits_external_input(self) -> bool:
        """Always true: the method alone ends the search."""
        return True


class CustomTrial(NamedTuple):
    """A trial as the method steers it: the last length it was asked for, and those it has still
    to validate at. `closed` by the method; `ended` in any way. `told`: the number of
    its latest progress event.
    """

    number: int
    last: int = 0
    lengths: tuple[int, ...] = ()
    closed: bool = False
    ended: bool = False
    units: float = 0.0
    told: int = 0

    @property
    def is_finishing(self) -> bool:
        """Whether the trial ends with the length it trains to now."""
        return self.closed and len(self.lengths) <= 1


def is_repeated(state: CustomState, posted: PostedOperations) -> bool:
    """Whether this is the post that was taken last."""
    return posted.post == state.post and _digest(posted) == state.digest


def post_status(state: CustomState) -> dict[str, int]:
    """Return the last post and the last events of both sides, as the API shows them."""
    return {"post": state.post, "acknowledged": state.acknowledged, "newest": state.newest}


class CustomSearch(SearchMethod[CustomState]):
    """Queues events for the user's method and carries out the operations it posts."""

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs

    def first_step(self) -> MethodStep[CustomState]:
        """Queue the event that asks the method for its first operations."""
        return MethodStep(
            self._queue_event(CustomState(), QueuedEvent(EventKind.INITIAL_OPERATIONS))
        )

    def on_trial_created(self, state: CustomState, created: CreateTrial) -> CustomState:
        """Queue the event of a new trial."""
        return self._queue_event(state, QueuedEvent(EventKind.TRIAL_CREATED, created.request_id))

    def on_event(self, state: CustomState, event: Event) -> MethodStep[CustomState]:
        """Queue the event for the method, and let the trial train to the next of its lengths."""
        request_id = load_point(self._blobs, event.trial).request_id
        before = _read_trial(self._blobs, request_id)
        assert before is not None, request_id
        match event:
            case TrialProgressed(units=units):
                return MethodStep(self._queue_progress(state, request_id, before, units))
            case TrialLengthReached(length=length, metric=metric, value=value):
                if before.lengths[:1] != (length,):
                    return MethodStep(state)
                after = before._replace(lengths=before.lengths[1:])
                queued = QueuedEvent(
                    EventKind.VALIDATION_COMPLETED, request_id, length, metric, reported=value
                )
                state = self._queue_event(evolve(state, awaited=state.awaited - 1), queued)
                _write_trial(self._blobs, request_id, after)
                return MethodStep(state, _changed_operations(before, after))
            case TrialExitedEarly(reason=reason):
                queued = QueuedEvent(EventKind.TRIAL_EXITED_EARLY, request_id, reason=reason)
                return MethodStep(
                    self._end_trial(self._queue_event(state, queued), request_id, before)
                )
            case TrialClosed():
                return MethodStep(self._end_trial(state, request_id, before))
            case TrialValidationReported():
                return MethodStep(state)

    def on_external_input(
        self, state: CustomState, external_input: ExternalInput
    ) -> MethodStep[CustomState]:
        """Carry out a post; PostRefused, with nothing written, for one that is wrong."""
        if not isinstance(external_input, PostedOperations) or is_repeated(state, external_input):
            return MethodStep(state)
        _check_order(state, external_input)
        draft = _PostDraft(state, self._blobs)
        for index, operation in enumerate(external_input.operations):
            draft.add_operation(f"operations[{index}]", operation)
        acknowledged = max(state.acknowledged, external_input.acknowledged)
        state = evolve(
            draft.next_state(acknowledged),
            acknowledged=acknowledged,
            post=external_input.post,
            digest=_digest(external_input),
        )
        return MethodStep(state, draft.write_changes())

    def progress(self, state: CustomState, tally: Tally) -> float:
        """Return the share that the method said last."""
        return state.progress

    def _queue_event(self, state: CustomState, event: QueuedEvent) -> CustomState:
        event_queue.write_event(self._blobs, state.newest + 1, event)
        return evolve(state, newest=state.newest + 1)

    def _queue_progress(
        self, state: CustomState, request_id: str, trial: CustomTrial, units: float
    ) -> CustomState:
        """Replace the trial's queued progress event, or queue one: only the latest counts."""
        trial = trial._replace(units=trial.units + units)
        queued = QueuedEvent(EventKind.TRIAL_PROGRESS, request_id, value=trial.units)
        if trial.told > state.acknowledged:
            event_queue.write_event(self._blobs, trial.told, queued)
        else:
            state = self._queue_event(state, queued)
            trial = trial._replace(told=state.newest)
        _write_trial(self._blobs, request_id, trial)
        return state

    def _end_trial(self, state: CustomState, request_id: str, trial: CustomTrial) -> CustomState:
        _write_trial(self._blobs, request_id, trial._replace(lengths=(), ended=True))
        state = evolve(state, running=state.running - 1, awaited=state.awaited - len(trial.lengths))
        return self._queue_event(state, QueuedEvent(EventKind.TRIAL_CLOSED, request_id))


class _PostDraft:
    """The changes that the operations of a post add up to, before any of them is written."""

    def __init__(self, state: CustomState, blobs: BlobStore) -> None:
        self._blobs = blobs
        self._state = state
        self._before: dict[str, CustomTrial | None] = {}
        self._after: dict[str, CustomTrial] = {}
        self._points: dict[int, Point] = {}
        self._shutdown: Shutdown | None = None
        self._adds = False

    def add_operation(self, place: str, operation: PostedOperation) -> None:
        """Add one operation; PostRefused if the search cannot carry it out."""
        if self._shutdown is not None and not isinstance(operation, ProgressRequest):
            raise PostRefused(
                f"{place}: {operation.kind} comes after a shutdown; expected no further operations"
            )
        match operation:
            case CreateRequest():
                self._add_create(place, operation)
            case ValidateAfterRequest(request_id=request_id, length=length):
                self._add_validate_after(place, request_id, length)
            case CloseRequest(request_id=request_id):
                trial = self._get_trial(place, request_id)
                if trial.closed:
                    raise PostRefused(f"{place}: trial {request_id} is closed already")
                self._after[request_id] = trial._replace(closed=True)
            case ShutdownRequest(failure=failure, cancel=cancel):
                self._shutdown = Shutdown(failure=failure, cancel=cancel)
            case ProgressRequest(progress=progress):
                self._state = evolve(self._state, progress=progress)

    def next_state(self, acknowledged: int) -> CustomState:
        """Return the state after all operations; PostRefused if too many events could wait."""
        state = self._state
        waiting = state.newest - acknowledged + len(self._points)
        most = waiting + state.running * _EVENTS_OF_OPEN + state.awaited
        if self._adds and most > EVENTS_MAX:
            raise PostRefused(
                f"operations: up to {most} events could be waiting, of {state.running} open trials "
                f"and {waiting} unacknowledged ones; at most {EVENTS_MAX} may: acknowledge events "
                "or close trials first"
            )
        return state

    def write_changes(self) -> Sequence[Operation]:
        """Write the changed trials and points, and return the search's operations."""
        for number, point in self._points.items():
            store_point(self._blobs, number, point)
        operations: list[Operation] = []
        for request_id, after in self._after.items():
            _write_trial(self._blobs, request_id, after)
            operations += _changed_operations(self._before[request_id], after)
        return operations if self._shutdown is None else [*operations, self._shutdown]

    def _add_create(self, place: str, request: CreateRequest) -> None:
        known = self._find_trial(request.request_id)
        if known is not None:
            if self._get_point(known.number).hparams != request.hparams:
                raise PostRefused(
                    f"{place}: request id {request.request_id} belongs to another trial "
                    "with different hyperparameters; use a new one for each trial"
                )
            return
        state = self._state
        if state.trials == TRIALS_MAX:
            raise PostRefused(f"{place}: there are {TRIALS_MAX} trials, and no more are allowed")
        self._points[state.trials] = Point(request.hparams, request.request_id)
        self._before[request.request_id] = None
        self._after[request.request_id] = CustomTrial(state.trials)
        self._state = evolve(state, trials=state.trials + 1, running=state.running + 1)
        self._adds = True

    def _add_validate_after(self, place: str, request_id: str, length: int) -> None:
        trial = self._get_trial(place, request_id)
        if trial.closed:
            raise PostRefused(f"{place}: trial {request_id} is closed and trains no further")
        if length <= trial.last:
            raise PostRefused(
                f"{place}.length: got {length}; expected more than {trial.last}, which was "
                f"already requested for trial {request_id}"
            )
        if len(trial.lengths) == LENGTHS_MAX:
            raise PostRefused(
                f"{place}: trial {request_id} already has {LENGTHS_MAX} lengths to "
                "validate at, which is the limit"
            )
        if trial.ended:
            # It ended while the post was on its way, and an event tells the method.
            return
        self._after[request_id] = trial._replace(last=length, lengths=(*trial.lengths, length))
        self._state = evolve(self._state, awaited=self._state.awaited + 1)
        self._adds = True

    def _get_trial(self, place: str, request_id: str) -> CustomTrial:
        trial = self._find_trial(request_id)
        if trial is None:
            raise PostRefused(
                f"{place}.request_id: there is no trial {request_id}; create it first"
            )
        return trial

    def _find_trial(self, request_id: str) -> CustomTrial | None:
        if request_id not in self._after:
            trial = _read_trial(self._blobs, request_id)
            if trial is None:
                return None
            self._before[request_id] = trial
            self._after[request_id] = trial
        return self._after[request_id]

    def _get_point(self, number: int) -> Point:
        return self._points.get(number) or load_point(self._blobs, number)


def _changed_operations(before: CustomTrial | None, after: CustomTrial) -> list[Operation]:
    """Return the operations that a change of a trial leads to: the next length when it is its turn,
    and the end with the last one.
    """
    number = after.number
    if before is None:
        length = after.lengths[0] if after.lengths else None
        return [Create(1, "Kept", number, length, closed=after.is_finishing)]
    operations: list[Operation] = []
    if after.ended:
        return operations
    if after.lengths and after.lengths[:1] != before.lengths[:1]:
        operations.append(TrainTo(number, after.lengths[0]))
    if after.is_finishing and not before.is_finishing:
        operations.append(Close(number))
    return operations


def _check_order(state: CustomState, posted: PostedOperations) -> None:
    if posted.post == state.post:
        raise PostRefused(
            f"post {posted.post} was already accepted with different operations: another process "
            "drives this search",
            "conflict",
        )
    if posted.post != state.post + 1:
        raise PostRefused(
            f"post: got {posted.post}; expected {state.post + 1}, after the last one that was "
            "taken. Another process drives this search, or this one's folder is an old copy",
            "conflict",
        )
    if posted.acknowledged > state.newest:
        raise PostRefused(
            f"acknowledged: got {posted.acknowledged}; expected at most {state.newest}, the "
            "newest event"
        )


def _digest(posted: PostedOperations) -> str:
    text = json.dumps(asdict(posted), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _read_trial(blobs: BlobStore, request_id: str) -> CustomTrial | None:
    blob = blobs.read(f"request/{request_id}")
    if blob is None:
        return None
    number, last, lengths, closed, ended, units, told = json.loads(blob)
    return CustomTrial(number, last, tuple(lengths), closed, ended, units, told)


def _write_trial(blobs: BlobStore, request_id: str, trial: CustomTrial) -> None:
    blobs.write(f"request/{request_id}", json.dumps(trial, separators=(",", ":")).encode())


SPEC = SearcherSpec[CustomOptions, CustomPlan](
    name="custom",
    listing_order=10,
    length_options=CustomOptions,
    plan_type=CustomPlan,
    state_type=CustomState,
    make_plan=lambda options, rules: CustomPlan(options.length_unit, rules),
    make_method=lambda plan, space, blobs: CustomSearch(blobs),
    trial_count=lambda options, plan, space: None,
    preview=None,
)
