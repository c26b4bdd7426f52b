"""A search that a method outside drives: the user's own process, told of events, posts operations.

What happens is queued (events.py) until it is acknowledged; what is posted (posted.py) is taken
whole or not at all. Posts are numbered: the last one may come again, which changes nothing, and
any other number shows that two processes drive one search. Of each trial a piece is kept under its
request id, so that a post finds it without looking through the others.

After `determined.searcher` of Determined 0.19 to 0.37.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal, NamedTuple

from control_plane.actors.lengths import Unit
from control_plane.evolve import evolve
from control_plane.searchers import events
from control_plane.searchers.events import EVENTS_MAX, EventKind, Told
from control_plane.searchers.kept import Point, keep, kept
from control_plane.searchers.method import (
    Advice,
    Close,
    Create,
    CreateTrial,
    Event,
    MethodState,
    MethodStep,
    Operation,
    SearchMethod,
    Shutdown,
    Tally,
    TrainTo,
    TrialClosed,
    TrialExited,
    TrialMeasured,
    TrialProgressed,
    TrialReached,
)
from control_plane.searchers.parts import Parts
from control_plane.searchers.posted import (
    LENGTH_MAX,
    Asked,
    CloseAsked,
    CreateAsked,
    Posted,
    PostRefused,
    ProgressAsked,
    ShutdownAsked,
    ValidateAfterAsked,
)
from control_plane.searchers.rules import Rules

TRIALS_MAX = 1_000_000
# Lengths that a trial has still to validate at; they stand in its piece.
LENGTHS_MAX = 50
# Of an open trial: its early exit and its end, and the progress that is told before.
_EVENTS_OF_OPEN = 3


@dataclass(frozen=True, slots=True)
class CustomPlan:
    """Lengths are in `unit`; all else the method says."""

    unit: Unit
    rules: Rules
    kind: Literal["custom"] = "custom"

    @property
    def max_length(self) -> int:
        """No trial trains longer."""
        return LENGTH_MAX


@dataclass(frozen=True)
class CustomState(MethodState):
    """`newest` and `acknowledged` are events, `post` and `digest` the last post that was taken.

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
    def awaits_advice(self) -> bool:
        """The method alone ends the search."""
        return True


class Steered(NamedTuple):
    """A trial as the method steers it: the last length it was asked for, and those it has still
    to validate at. `closed` by the method; `ended` in any way. `told`: the event of its progress.
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
        """Whether it ends with what it is training for now."""
        return self.closed and len(self.lengths) <= 1


def is_repeated(state: CustomState, posted: Posted) -> bool:
    """Whether this is the post that was taken last."""
    return posted.post == state.post and _digest(posted) == state.digest


def standing(state: CustomState) -> dict[str, int]:
    """How far the method and the search understand each other, as the API tells it."""
    return {"post": state.post, "acknowledged": state.acknowledged, "newest": state.newest}


class CustomSearch(SearchMethod[CustomState]):
    """Queues what happens and carries out what is posted."""

    def __init__(self, plan: CustomPlan, parts: Parts) -> None:
        self._plan = plan
        self._parts = parts

    def initial(self) -> MethodStep[CustomState]:
        """Ask the method how to begin."""
        return MethodStep(self._told(CustomState(), Told(EventKind.INITIAL_OPERATIONS)))

    def on_created(self, state: CustomState, created: CreateTrial) -> CustomState:
        """Tell of the trial."""
        return self._told(state, Told(EventKind.TRIAL_CREATED, created.request_id))

    def on_event(self, state: CustomState, event: Event) -> MethodStep[CustomState]:
        """Tell of it, and give the trial the next of its lengths."""
        request_id = kept(self._parts, event.trial).request_id
        before = _read(self._parts, request_id)
        assert before is not None, request_id
        match event:
            case TrialProgressed(units=units):
                return MethodStep(self._progressed(state, request_id, before, units))
            case TrialReached(length=length, metric=metric):
                if before.lengths[:1] != (length,):
                    return MethodStep(state)
                after = before._replace(lengths=before.lengths[1:])
                told = Told(EventKind.VALIDATION_COMPLETED, request_id, length, metric)
                state = self._told(evolve(state, awaited=state.awaited - 1), told)
                _write(self._parts, request_id, after)
                return MethodStep(state, _operations(before, after))
            case TrialExited(reason=reason):
                told = Told(EventKind.TRIAL_EXITED_EARLY, request_id, reason=reason)
                return MethodStep(self._ended(self._told(state, told), request_id, before))
            case TrialClosed():
                return MethodStep(self._ended(state, request_id, before))
            case TrialMeasured():
                return MethodStep(state)

    def on_advice(self, state: CustomState, advice: Advice) -> MethodStep[CustomState]:
        """Take a post; PostRefused, and nothing is written."""
        if not isinstance(advice, Posted) or is_repeated(state, advice):
            return MethodStep(state)
        _check_order(state, advice)
        draft = _Draft(self._plan, state, self._parts)
        for index, asked in enumerate(advice.operations):
            draft.take(f"operations[{index}]", asked)
        acknowledged = max(state.acknowledged, advice.acknowledged)
        state = evolve(
            draft.settled(acknowledged),
            acknowledged=acknowledged,
            post=advice.post,
            digest=_digest(advice),
        )
        return MethodStep(state, draft.written())

    def progress(self, state: CustomState, tally: Tally) -> float:
        """What the method said last."""
        return state.progress

    def _told(self, state: CustomState, told: Told) -> CustomState:
        events.write(self._parts, state.newest + 1, told)
        return evolve(state, newest=state.newest + 1)

    def _progressed(
        self, state: CustomState, request_id: str, trial: Steered, units: float
    ) -> CustomState:
        """One event at a time tells how far a trial is: the latest is what counts."""
        trial = trial._replace(units=trial.units + units)
        told = Told(EventKind.TRIAL_PROGRESS, request_id, value=trial.units)
        if trial.told > state.acknowledged:
            events.write(self._parts, trial.told, told)
        else:
            state = self._told(state, told)
            trial = trial._replace(told=state.newest)
        _write(self._parts, request_id, trial)
        return state

    def _ended(self, state: CustomState, request_id: str, trial: Steered) -> CustomState:
        _write(self._parts, request_id, trial._replace(lengths=(), ended=True))
        state = evolve(state, running=state.running - 1, awaited=state.awaited - len(trial.lengths))
        return self._told(state, Told(EventKind.TRIAL_CLOSED, request_id))


class _Draft:
    """What the operations of a post come to, before anything of it is written."""

    def __init__(self, plan: CustomPlan, state: CustomState, parts: Parts) -> None:
        self._plan = plan
        self._parts = parts
        self._state = state
        self._before: dict[str, Steered | None] = {}
        self._after: dict[str, Steered] = {}
        self._points: dict[int, Point] = {}
        self._shutdown: Shutdown | None = None
        self._adds = False

    def take(self, place: str, asked: Asked) -> None:
        """Take one operation more. Raises PostRefused."""
        if self._shutdown is not None and not isinstance(asked, ProgressAsked):
            raise PostRefused(f"{place}: {asked.kind} comes after a shutdown; expected nothing")
        match asked:
            case CreateAsked():
                self._create(place, asked)
            case ValidateAfterAsked(request_id=request_id, length=length):
                self._validate_after(place, request_id, length)
            case CloseAsked(request_id=request_id):
                trial = self._trial(place, request_id)
                if trial.closed:
                    raise PostRefused(f"{place}: trial {request_id} is closed already")
                self._after[request_id] = trial._replace(closed=True)
            case ShutdownAsked(failure=failure, cancel=cancel):
                self._shutdown = Shutdown(failure=failure, cancel=cancel)
            case ProgressAsked(progress=progress):
                self._state = evolve(self._state, progress=progress)

    def settled(self, acknowledged: int) -> CustomState:
        """The state after all operations. Raises PostRefused where too much would wait."""
        state = self._state
        waiting = state.newest - acknowledged + len(self._points)
        most = waiting + state.running * _EVENTS_OF_OPEN + state.awaited
        if self._adds and most > EVENTS_MAX:
            raise PostRefused(
                f"operations: {most} events could come to wait, of {state.running} open trials and "
                f"{waiting} unacknowledged ones; at most {EVENTS_MAX} may: acknowledge events or "
                "close trials first"
            )
        return state

    def written(self) -> Sequence[Operation]:
        """Write what changed; what is to be done."""
        for number, point in self._points.items():
            keep(self._parts, number, point)
        operations: list[Operation] = []
        for request_id, after in self._after.items():
            _write(self._parts, request_id, after)
            operations += _operations(self._before[request_id], after)
        return operations if self._shutdown is None else [*operations, self._shutdown]

    def _create(self, place: str, asked: CreateAsked) -> None:
        known = self._found(asked.request_id)
        if known is not None:
            if self._point(known.number).hparams != asked.hparams:
                raise PostRefused(
                    f"{place}: request id {asked.request_id} is that of another trial, with other "
                    "hyperparameters; give each trial its own"
                )
            return
        if self._plan.unit in ("records", "epochs"):
            _check_batch_size(place, asked, self._plan.unit)
        state = self._state
        if state.trials == TRIALS_MAX:
            raise PostRefused(f"{place}: there are {TRIALS_MAX} trials, and no more are allowed")
        self._points[state.trials] = Point(asked.hparams, asked.request_id)
        self._before[asked.request_id] = None
        self._after[asked.request_id] = Steered(state.trials)
        self._state = evolve(state, trials=state.trials + 1, running=state.running + 1)
        self._adds = True

    def _validate_after(self, place: str, request_id: str, length: int) -> None:
        trial = self._trial(place, request_id)
        if trial.closed:
            raise PostRefused(f"{place}: trial {request_id} is closed and trains no further")
        if length <= trial.last:
            raise PostRefused(
                f"{place}.length: got {length}; expected more than {trial.last}, which trial "
                f"{request_id} was asked for before"
            )
        if len(trial.lengths) == LENGTHS_MAX:
            raise PostRefused(
                f"{place}: trial {request_id} has still to validate at {LENGTHS_MAX} lengths, "
                "and no more may wait"
            )
        if trial.ended:
            # It did so while this was on its way, and the method is told.
            return
        self._after[request_id] = trial._replace(last=length, lengths=(*trial.lengths, length))
        self._state = evolve(self._state, awaited=self._state.awaited + 1)
        self._adds = True

    def _trial(self, place: str, request_id: str) -> Steered:
        found = self._found(request_id)
        if found is None:
            raise PostRefused(
                f"{place}.request_id: there is no trial {request_id}; create it first"
            )
        return found

    def _found(self, request_id: str) -> Steered | None:
        if request_id not in self._after:
            found = _read(self._parts, request_id)
            if found is None:
                return None
            self._before[request_id] = found
            self._after[request_id] = found
        return self._after[request_id]

    def _point(self, number: int) -> Point:
        return self._points.get(number) or kept(self._parts, number)


def _operations(before: Steered | None, after: Steered) -> list[Operation]:
    """What a change of a trial asks for: the next length when it is its turn, and the end with
    the last one.
    """
    number = after.number
    if before is None:
        length = after.lengths[0] if after.lengths else None
        return [Create(1, "Kept", number, length, closed=after.is_finishing)]
    found: list[Operation] = []
    if after.ended:
        return found
    if after.lengths and after.lengths[:1] != before.lengths[:1]:
        found.append(TrainTo(number, after.lengths[0]))
    if after.is_finishing and not before.is_finishing:
        found.append(Close(number))
    return found


def _check_order(state: CustomState, posted: Posted) -> None:
    if posted.post == state.post:
        raise PostRefused(
            f"post {posted.post} was taken with other operations: another process drives this "
            "search",
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


def _check_batch_size(place: str, asked: CreateAsked, unit: Unit) -> None:
    size = asked.hparams.get("global_batch_size")
    if type(size) is not int or size < 1:
        raise PostRefused(
            f"{place}.hparams: global_batch_size must be an integer of at least 1, to count "
            f"{unit} in batches"
        )


def _digest(posted: Posted) -> str:
    text = json.dumps(asdict(posted), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _read(parts: Parts, request_id: str) -> Steered | None:
    piece = parts.read(f"request/{request_id}")
    if piece is None:
        return None
    number, last, lengths, closed, ended, units, told = json.loads(piece)
    return Steered(number, last, tuple(lengths), closed, ended, units, told)


def _write(parts: Parts, request_id: str, trial: Steered) -> None:
    parts.write(f"request/{request_id}", json.dumps(trial, separators=(",", ":")).encode())
