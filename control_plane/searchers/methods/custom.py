"""The searcher `custom`: a user's own process reads events and posts operations.

Events are queued (event_queue.py) until the process acknowledges the events. A post
(posted_operations.py) takes effect as a whole or not at all. Posts are numbered. A repetition of
the latest post changes nothing; any other unexpected number shows that two processes drive the
same search. A blob for each trial is stored under the request id, so that a post finds a trial
directly.

Modeled on `determined.searcher` of Determined 0.19 to 0.37.
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

# The lengths are part of a trial's blob, which must stay small.
LENGTHS_MAX = 50
"""The largest number of requested lengths that a trial has not reached yet."""
_EVENTS_OF_OPEN = 3
"""The number of future events of an open trial: progress, early exit and end."""


class CustomOptions(SearcherOptions):
    """A search that the user's own process controls. Unknown fields are not checked."""

    takes_unknown_fields: ClassVar[bool] = True

    unit: LengthUnit | None = None
    """The unit of the search's lengths."""

    @property
    def length_unit(self) -> Unit:
        """Return the unit of the lengths in posts. "batches" by default."""
        return self.unit or "batches"


@dataclass(frozen=True, slots=True)
class CustomPlan:
    """The plan of a custom search. The user's process decides everything except the unit."""

    unit: Unit
    rules: SearchRules
    kind: Literal["custom"] = "custom"

    @property
    def max_length(self) -> int:
        """Return the largest length that a post may request."""
        return LENGTH_MAX


@dataclass(frozen=True)
class CustomState(MethodState):
    """The state of a custom search."""

    newest: int = 0
    """The number of the latest queued event; events are numbered from 1."""
    acknowledged: int = 0
    """The number of the latest acknowledged event."""
    post: int = 0
    """The number of the latest accepted post; posts are numbered from 1."""
    digest: str = ""
    """The digest of the latest accepted post."""
    trials: int = 0
    """The number of trials that posts created."""
    running: int = 0
    """The number of trials that have not ended."""
    awaited: int = 0
    """The number of requested lengths that running trials have not reached yet."""
    progress: float = 0.0
    """The completed share of the search, as the latest post reported."""
    kind: Literal["custom"] = "custom"

    @property
    def awaits_external_input(self) -> bool:
        """Return True: only the user's process ends the search."""
        return True


class CustomTrial(NamedTuple):
    """A trial's record, stored as a JSON list under the request id."""

    number: int
    """The trial's number within the search."""
    last: int = 0
    """The largest requested length."""
    lengths: tuple[int, ...] = ()
    """The requested lengths that the trial has not reached yet, in increasing order."""
    closed: bool = False
    """Whether the user's process closed the trial."""
    ended: bool = False
    """Whether the trial ended, for any reason."""
    units: float = 0.0
    """The training that the trial reported."""
    progress_event: int = 0
    """The number of the trial's latest progress event."""

    @property
    def is_finishing(self) -> bool:
        """Return whether the trial ends at the current length: closed, without further lengths."""
        return self.closed and len(self.lengths) <= 1


def is_repeated(state: CustomState, posted: PostedOperations) -> bool:
    """Return whether a post equals the latest accepted post."""
    return posted.post == state.post and _digest(posted) == state.digest


def post_status(state: CustomState) -> dict[str, int]:
    """Return the API's answer to a post.

    `post`: the latest accepted post. `acknowledged`: the latest acknowledged event. `newest`: the
    latest queued event. All three are numbers from 1; 0 before the first.
    """
    return {"post": state.post, "acknowledged": state.acknowledged, "newest": state.newest}


class CustomSearch(SearchMethod[CustomState]):
    """The method of a custom search: queues events, and carries out posted operations."""

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs

    def first_step(self) -> MethodStep[CustomState]:
        """Queue the event that requests the first operations, and return the first state."""
        return MethodStep(
            self._queue_event(CustomState(), QueuedEvent(EventKind.INITIAL_OPERATIONS))
        )

    def on_trial_created(self, state: CustomState, created: CreateTrial) -> CustomState:
        """Queue the event of a new trial, and return the next state."""
        return self._queue_event(state, QueuedEvent(EventKind.TRIAL_CREATED, created.request_id))

    def on_event(self, state: CustomState, event: Event) -> MethodStep[CustomState]:
        """Process a trial's event; return the next state and the operations for the trial.

        A reached length is queued as a validation. The trial then trains to the next requested
        length, ends if it is closed, or waits. An unexpected length is ignored.

        Progress is queued, or overwrites the trial's progress event that is not acknowledged yet.
        An early exit queues the exit and the end, a normal end the end alone. A reported validation
        is ignored. The event queue and the trial's record are written to the blobs.
        """
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
        """Write the changes of a post, and return the next state and the operations.

        A repetition of the latest post changes nothing.

        Raises:
            PostRefused: the post is out of order, or an operation is not possible. Nothing is
                written.
        """
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
        """Return the completed share that the user's process reported last, or 0."""
        return state.progress

    def _queue_event(self, state: CustomState, event: QueuedEvent) -> CustomState:
        event_queue.write_event(self._blobs, state.newest + 1, event)
        return evolve(state, newest=state.newest + 1)

    def _queue_progress(
        self, state: CustomState, request_id: str, trial: CustomTrial, units: float
    ) -> CustomState:
        """Queue a progress event for `units` more training, and return the next state.

        Overwrites the trial's previous progress event if that event is not acknowledged yet.
        """
        trial = trial._replace(units=trial.units + units)
        queued = QueuedEvent(EventKind.TRIAL_PROGRESS, request_id, value=trial.units)
        if trial.progress_event > state.acknowledged:
            event_queue.write_event(self._blobs, trial.progress_event, queued)
        else:
            state = self._queue_event(state, queued)
            trial = trial._replace(progress_event=state.newest)
        _write_trial(self._blobs, request_id, trial)
        return state

    def _end_trial(self, state: CustomState, request_id: str, trial: CustomTrial) -> CustomState:
        """Write that a trial ended, queue the event, and return the next state."""
        _write_trial(self._blobs, request_id, trial._replace(lengths=(), ended=True))
        state = evolve(state, running=state.running - 1, awaited=state.awaited - len(trial.lengths))
        return self._queue_event(state, QueuedEvent(EventKind.TRIAL_CLOSED, request_id))


class _PostDraft:
    """The combined changes of a post's operations, kept in memory until all are checked."""

    def __init__(self, state: CustomState, blobs: BlobStore) -> None:
        self._blobs = blobs
        self._state = state
        self._before: dict[str, CustomTrial | None] = {}
        self._after: dict[str, CustomTrial] = {}
        self._points: dict[int, Point] = {}
        self._shutdown: Shutdown | None = None
        self._adds = False

    def add_operation(self, place: str, operation: PostedOperation) -> None:
        """Add the changes of one operation, without writing.

        Raises:
            PostRefused: the operation is not possible; the message begins with `place`.
        """
        if self._shutdown is not None and not isinstance(operation, ProgressRequest):
            raise PostRefused(
                f"{place}: {operation.kind} follows a shutdown; expected no further operations"
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
        """Return the state after all operations, if events up to `acknowledged` are acknowledged.

        Raises:
            PostRefused: the post adds trials or lengths, and more than EVENTS_MAX events could then
                be unacknowledged.
        """
        state = self._state
        waiting = state.newest - acknowledged + len(self._points)
        possible = waiting + state.running * _EVENTS_OF_OPEN + state.awaited
        if self._adds and possible > EVENTS_MAX:
            raise PostRefused(
                f"operations: up to {possible} events could wait: {waiting} unacknowledged events, "
                f"and future events of {state.running} open trials; at most {EVENTS_MAX} are "
                "allowed. Acknowledge events or close trials first"
            )
        return state

    def write_changes(self) -> Sequence[Operation]:
        """Write the changed trials and points to the blobs, and return the operations."""
        for number, point in self._points.items():
            store_point(self._blobs, number, point)
        operations: list[Operation] = []
        for request_id, after in self._after.items():
            _write_trial(self._blobs, request_id, after)
            operations += _changed_operations(self._before[request_id], after)
        return operations if self._shutdown is None else [*operations, self._shutdown]

    def _add_create(self, place: str, request: CreateRequest) -> None:
        existing_trial = self._find_trial(request.request_id)
        if existing_trial is not None:
            if self._get_point(existing_trial.number).hparams != request.hparams:
                raise PostRefused(
                    f"{place}: request id {request.request_id} belongs to another trial "
                    "with different hyperparameters; use a new request id for each trial"
                )
            return
        state = self._state
        if state.trials == TRIALS_MAX:
            raise PostRefused(f"{place}: the search has {TRIALS_MAX} trials, which is the limit")
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
            # The trial may have ended while the post was sent; the method receives an event.
            return
        self._after[request_id] = trial._replace(last=length, lengths=(*trial.lengths, length))
        self._state = evolve(self._state, awaited=self._state.awaited + 1)
        self._adds = True

    def _get_trial(self, place: str, request_id: str) -> CustomTrial:
        """Return the record of a trial. Raise PostRefused if no such trial exists."""
        trial = self._find_trial(request_id)
        if trial is None:
            raise PostRefused(
                f"{place}.request_id: trial {request_id} does not exist; create the trial first"
            )
        return trial

    def _find_trial(self, request_id: str) -> CustomTrial | None:
        """Return the record of a trial with the changes of the post. None if no trial exists."""
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
    """Return the operations that a changed trial record causes.

    - A new trial (`before` is None) is created by a single `Create`. The `Create` has the trial's
      first length or None, and whether the trial is closed after the length.
    - An older trial that has ended has no operations.
    - A changed first length of `after.lengths` becomes a `TrainTo`.
    - A trial that is closed now, and has at most one length left, becomes a `Close`.
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
    """Raise PostRefused unless the post is the next one and acknowledges only queued events."""
    if posted.post == state.post:
        raise PostRefused(
            f"post {posted.post} was already accepted with different operations: another process "
            "drives this search",
            "conflict",
        )
    if posted.post != state.post + 1:
        raise PostRefused(
            f"post: got {posted.post}; expected {state.post + 1}, after the latest accepted post. "
            "Another process drives this search, or the folder of this process is an old copy",
            "conflict",
        )
    if posted.acknowledged > state.newest:
        raise PostRefused(
            f"acknowledged: got {posted.acknowledged}; expected at most {state.newest}, the "
            "newest event"
        )


def _digest(posted: PostedOperations) -> str:
    """Return 16 hexadecimal digits that identify the content of a post."""
    text = json.dumps(asdict(posted), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _read_trial(blobs: BlobStore, request_id: str) -> CustomTrial | None:
    blob = blobs.read(f"request/{request_id}")
    if blob is None:
        return None
    number, last, lengths, closed, ended, units, progress_event = json.loads(blob)
    return CustomTrial(number, last, tuple(lengths), closed, ended, units, progress_event)


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
