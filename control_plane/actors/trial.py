"""The trial: owns its target, its restarts, its latest checkpoint and its one allocation.

An allocation is named by the trial's epoch, which counts them. A message of an older epoch
changes nothing, so a zombie's reports, a late loss and a repeated exit are harmless. The trial
wants slots exactly while its experiment is ACTIVE and it has unfinished work; a failure beyond
`max_restarts` ends it, a loss of its machine never does.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from sys import float_info
from typing import assert_never

from control_plane.actors import addresses
from control_plane.actors.messages import (
    AllocationExited,
    AllocationLost,
    CheckpointRef,
    CheckpointReported,
    ContainerStateReported,
    EarlyExitReported,
    ExperimentStatusChanged,
    LengthReported,
    PreemptionRequested,
    SlotsAssigned,
    SlotsReleased,
    SlotsRequested,
    Status,
    TrialCreated,
    TrialEnded,
    TrialLengthReached,
    TrialMessage,
    TrialSettings,
    TrialValidated,
    ValidationReported,
    WorkAssigned,
)
from control_plane.actors.step import Turn
from control_plane.evolve import evolve
from control_plane.searchers.method import ExitReason

CHECKPOINTS = "checkpoints"
# Times in a row that a trial may give up its slots unasked without having trained a batch.
STALLS_MAX = 20


class AllocationState(StrEnum):
    """How far an allocation has come; it never goes back."""

    PENDING = "PENDING"
    ASSIGNED = "ASSIGNED"
    PULLING = "PULLING"
    STARTING = "STARTING"
    RUNNING = "RUNNING"


_PROGRESS = tuple(AllocationState)


class Wish(StrEnum):
    """What the trial wants of its running allocation."""

    RUN = "run"
    PREEMPT = "preempt"
    KILL = "kill"


@dataclass(frozen=True)
class Allocation:
    """Slots asked for or held, for training from batch `from_steps` on. `ticket` is its place in
    the pool's queue; `agent` is "" while queued.
    """

    ticket: str
    state: AllocationState = AllocationState.PENDING
    agent: str = ""
    slots: tuple[int, ...] = ()
    wish: Wish = Wish.RUN
    wish_reason: str = ""
    from_steps: int = 0


@dataclass(frozen=True)
class TrialState:
    """The head. Lengths are in batches except `length_units`; `revision` counts changes of
    directives; `metric` is of the last validation, at `metric_steps`.
    """

    trial_id: int
    experiment_id: int
    number: int
    hparams: Mapping[str, object]
    seed: int
    settings: TrialSettings
    created_ms: int
    experiment_status: Status
    status: Status = Status.ACTIVE
    length_units: int | None = None
    length: int | None = None
    closed: bool = False
    reached: int = 0
    answered: int = 0
    steps: int = 0
    metric: float | None = None
    metric_steps: int | None = None
    best_metric: float | None = None
    restarts: int = 0
    losses: int = 0
    stalls: int = 0
    checkpoint: CheckpointRef | None = None
    epoch: int = 0
    revision: int = 1
    allocation: Allocation | None = None
    early_exit: str = ""
    ended_ms: int | None = None
    message: str = ""


@dataclass(frozen=True, slots=True)
class CheckpointRecord:
    """A complete checkpoint, kept as a part `checkpoint/UUID` of its trial."""

    checkpoint: CheckpointRef
    size_bytes: int
    files: int
    metric: float | None
    created_ms: int
    metadata: Mapping[str, object] = field(default_factory=dict)


def step(state: TrialState | None, message: TrialMessage, turn: Turn) -> TrialState | None:
    """Folds one message."""
    if isinstance(message, TrialCreated):
        return _created(message, turn) if state is None else state
    if state is None or state.status.final:
        return state
    match message:
        case WorkAssigned():
            return _work_assigned(state, message, turn)
        case ExperimentStatusChanged():
            return _experiment_changed(state, message.status, turn)
        case _ if message.epoch != state.epoch or state.allocation is None:
            return state
        case SlotsAssigned() | PreemptionRequested() | AllocationLost():
            return _by_pool(state, state.allocation, message, turn)
        case ContainerStateReported() | EarlyExitReported() | AllocationExited():
            return _by_agent(state, state.allocation, message, turn)
        case ValidationReported() | LengthReported() | CheckpointReported():
            return _by_training(state, message, turn)
        case _:
            assert_never(message)


def fallback(state: TrialState | None, message: object, turn: Turn) -> TrialState | None:
    """A trial that cannot take a message ends in ERROR, and its experiment learns it."""
    if state is None:
        if not isinstance(message, TrialCreated):
            return None
        state = _initial(message, turn)
    if state.status.final:
        return state
    text = f"internal error: {type(message).__name__} could not be processed"
    return _ended(evolve(state, message=text), Status.ERROR, ExitReason.ERRORED, turn)


def wants_slots(state: TrialState) -> bool:
    """Whether the trial should run if there are slots for it."""
    if state.status is not Status.ACTIVE or state.experiment_status is not Status.ACTIVE:
        return False
    return state.length is not None and state.length > state.reached


def _initial(message: TrialCreated, turn: Turn) -> TrialState:
    return TrialState(
        trial_id=message.trial_id,
        experiment_id=message.experiment_id,
        number=message.number,
        hparams=message.hparams,
        seed=message.seed,
        settings=message.settings,
        created_ms=turn.now_ms,
        experiment_status=message.experiment_status,
        length_units=message.length,
        length=_batches(message.settings, message.hparams, message.length),
        closed=message.closed,
    )


def _created(message: TrialCreated, turn: Turn) -> TrialState:
    state = _initial(message, turn)
    if state.experiment_status.stopping:
        return _ended(state, Status.CANCELED, ExitReason.USER_CANCELED, turn)
    return _next(state, turn)


def _work_assigned(state: TrialState, message: WorkAssigned, turn: Turn) -> TrialState:
    """The search has spoken about everything reached so far."""
    state = evolve(
        state,
        closed=state.closed or message.closed,
        answered=state.reached,
        revision=state.revision + 1,
    )
    if message.length is not None:
        length = _batches(state.settings, state.hparams, message.length)
        state = evolve(state, length_units=message.length, length=length)
    return _next(state, turn)


def _experiment_changed(state: TrialState, status: Status, turn: Turn) -> TrialState:
    state = evolve(state, experiment_status=status)
    return _next(state, turn)


def _next(state: TrialState, turn: Turn) -> TrialState:
    """What the trial wants now, given its experiment's status and its own work: the one place
    that decides.
    """
    allocation = state.allocation
    if allocation is None:
        if state.experiment_status.stopping:
            return _ended(state, Status.CANCELED, ExitReason.USER_CANCELED, turn)
        if state.closed and (state.length is None or state.reached >= state.length):
            return _ended(state, Status.COMPLETED, None, turn)
        return _requested(state, turn) if wants_slots(state) else state
    if state.experiment_status is Status.ACTIVE:
        return state
    if allocation.state is AllocationState.PENDING:
        turn.because("withdrawn from the queue")
        return _released(state, allocation, turn)
    killed = state.experiment_status in (Status.STOPPING_KILLED, Status.STOPPING_ERROR)
    wish = Wish.KILL if killed else Wish.PREEMPT
    return _wishing(state, allocation, wish, f"the experiment is {state.experiment_status}")


def _requested(state: TrialState, turn: Turn) -> TrialState:
    epoch = state.epoch + 1
    # Job submission, then request time, then the trial: the queue's order as a string.
    submitted = state.settings.submitted_ms
    ticket = f"{submitted:014d}.{turn.now_ms:014d}.{state.trial_id:012d}"
    turn.send(
        addresses.pool(state.settings.pool),
        SlotsRequested(state.trial_id, epoch, state.settings.slots, ticket),
    )
    return evolve(
        state,
        epoch=epoch,
        revision=1,
        early_exit="",
        allocation=Allocation(ticket, from_steps=state.steps),
    )


def _by_pool(
    state: TrialState,
    allocation: Allocation,
    message: SlotsAssigned | PreemptionRequested | AllocationLost,
    turn: Turn,
) -> TrialState:
    match message:
        case SlotsAssigned():
            return _assigned(state, allocation, message)
        case PreemptionRequested(reason=reason):
            return _wishing(state, allocation, Wish.PREEMPT, reason)
        case AllocationLost(reason=reason):
            turn.because(f"allocation {state.trial_id}.{state.epoch} was lost: {reason}")
            return _released(evolve(state, losses=state.losses + 1), allocation, turn)


def _by_agent(
    state: TrialState,
    allocation: Allocation,
    message: ContainerStateReported | EarlyExitReported | AllocationExited,
    turn: Turn,
) -> TrialState:
    match message:
        case ContainerStateReported(state=container):
            return _container(state, allocation, container)
        case EarlyExitReported(reason=reason):
            return evolve(state, early_exit=reason)
        case AllocationExited():
            return _exited(state, allocation, message, turn)


def _by_training(
    state: TrialState,
    message: ValidationReported | LengthReported | CheckpointReported,
    turn: Turn,
) -> TrialState:
    match message:
        case ValidationReported():
            return _validated(state, message, turn)
        case LengthReported():
            return _reached(state, message, turn)
        case CheckpointReported():
            return _checkpointed(state, message, turn)


def _assigned(state: TrialState, allocation: Allocation, message: SlotsAssigned) -> TrialState:
    if allocation.agent:
        return state
    placed = evolve(
        allocation,
        agent=message.agent,
        slots=message.slots,
        state=_furthest(allocation.state, AllocationState.ASSIGNED),
    )
    return evolve(state, allocation=placed)


def _container(state: TrialState, allocation: Allocation, container: str) -> TrialState:
    if container not in AllocationState.__members__:
        return state
    furthest = _furthest(allocation.state, AllocationState(container))
    return evolve(state, allocation=evolve(allocation, state=furthest))


def _furthest(one: AllocationState, other: AllocationState) -> AllocationState:
    return max(one, other, key=_PROGRESS.index)


def _wishing(state: TrialState, allocation: Allocation, wish: Wish, reason: str) -> TrialState:
    if allocation.wish is Wish.KILL or allocation.wish is wish:
        return state
    wishing = evolve(allocation, wish=wish, wish_reason=reason)
    return evolve(state, allocation=wishing, revision=state.revision + 1)


def _validated(state: TrialState, message: ValidationReported, turn: Turn) -> TrialState:
    steps = max(state.steps, message.steps)
    best = state.best_metric
    if message.metric is not None:
        smaller = state.settings.smaller_is_better
        if best is None or (message.metric < best if smaller else message.metric > best):
            best = message.metric
    _measure_checkpoint(state, message, turn)
    validated = TrialValidated(state.number, _units(state, message.steps), message.metric)
    turn.send(addresses.experiment(state.experiment_id), validated)
    return evolve(
        state,
        steps=steps,
        metric=message.metric,
        metric_steps=message.steps,
        best_metric=best,
    )


def _measure_checkpoint(state: TrialState, message: ValidationReported, turn: Turn) -> None:
    """A checkpoint's metric is that of the validation at its step, which may come after it."""
    if state.checkpoint is None or state.checkpoint.steps_completed != message.steps:
        return
    name = f"checkpoint/{state.checkpoint.uuid}"
    record = turn.part(name, CheckpointRecord)
    if record is not None:
        turn.write_part(name, dataclasses.replace(record, metric=message.metric))


def _reached(state: TrialState, message: LengthReported, turn: Turn) -> TrialState:
    """The operation is done, once: after a rollback the search does not see it again."""
    if state.length is None or message.length != state.length or message.length <= state.reached:
        return state
    assert state.length_units is not None
    metric = message.metric
    if metric is None:
        metric = float_info.max if state.settings.smaller_is_better else -float_info.max
    reached = TrialLengthReached(state.number, state.length_units, metric, state.closed)
    turn.send(addresses.experiment(state.experiment_id), reached)
    return evolve(state, reached=message.length, steps=max(state.steps, message.length))


def _checkpointed(state: TrialState, message: CheckpointReported, turn: Turn) -> TrialState:
    checkpoint = message.checkpoint
    metric = state.metric if state.metric_steps == checkpoint.steps_completed else None
    record = CheckpointRecord(
        checkpoint, message.size_bytes, message.files, metric, turn.now_ms, message.metadata
    )
    turn.write_part(f"checkpoint/{checkpoint.uuid}", record)
    turn.write_row(CHECKPOINTS, checkpoint.uuid, b"%d" % state.trial_id)
    newest = state.checkpoint
    if newest is not None and newest.steps_completed > checkpoint.steps_completed:
        return state
    return evolve(state, checkpoint=checkpoint, steps=max(state.steps, checkpoint.steps_completed))


def _exited(
    state: TrialState, allocation: Allocation, message: AllocationExited, turn: Turn
) -> TrialState:
    turn.because(f"allocation {state.trial_id}.{state.epoch} exited: {message.reason}")
    if state.early_exit in (ExitReason.INVALID_HP, ExitReason.INIT_INVALID_HP):
        state = evolve(state, message=message.message or "the hyperparameters were refused")
        return _ended(state, Status.COMPLETED, ExitReason(state.early_exit), turn)
    if message.reason == "stop_requested":
        return _ended(state, Status.COMPLETED, ExitReason.USER_REQUESTED_STOP, turn)
    if message.reason == "completed":
        return _ended(evolve(state, closed=True), Status.COMPLETED, None, turn)
    if message.reason in ("preempted", "idle"):
        return _yielded(state, allocation, turn)
    if allocation.wish is Wish.KILL and state.experiment_status.stopping:
        return _ended(state, Status.CANCELED, ExitReason.USER_CANCELED, turn)
    if message.reason in ("lost", "killed"):
        # Nobody here asked for a kill: its agent was stopped.
        return _released(evolve(state, losses=state.losses + 1), allocation, turn)
    return _failed(state, allocation, message, turn)


def _yielded(state: TrialState, allocation: Allocation, turn: Turn) -> TrialState:
    """It gave its slots up. One that does so unasked, with work left and none done, is not let run
    for ever."""
    worked = state.steps > allocation.from_steps
    idle = not worked and allocation.wish is Wish.RUN and wants_slots(state)
    state = evolve(state, stalls=state.stalls + 1 if idle else 0)
    if state.stalls > STALLS_MAX:
        text = f"it gave up its slots {state.stalls} times in a row without training a batch"
        return _ended(evolve(state, message=text), Status.ERROR, ExitReason.ERRORED, turn)
    return _released(state, allocation, turn)


def _failed(
    state: TrialState, allocation: Allocation, message: AllocationExited, turn: Turn
) -> TrialState:
    if state.closed and state.length is not None and state.reached >= state.length:
        # It had nothing left to do but to say so.
        return _ended(state, Status.COMPLETED, None, turn)
    text = message.message or f"the trial's process failed ({message.reason})"
    if allocation.wish is not Wish.RUN:
        # It was asked to stop and did not make it: no failure of its own.
        return _released(evolve(state, message=text), allocation, turn)
    state = evolve(state, restarts=state.restarts + 1, message=text)
    if state.restarts > state.settings.max_restarts:
        return _ended(state, Status.ERROR, ExitReason.ERRORED, turn)
    return _released(state, allocation, turn)


def _released(state: TrialState, allocation: Allocation, turn: Turn) -> TrialState:
    """Gives the slots back, rolls back to the latest checkpoint and goes on to what comes next."""
    _release(state, allocation, turn)
    steps = state.checkpoint.steps_completed if state.checkpoint else 0
    return _next(evolve(state, allocation=None, steps=min(state.steps, steps)), turn)


def _release(state: TrialState, allocation: Allocation, turn: Turn) -> None:
    turn.send(
        addresses.pool(state.settings.pool),
        SlotsReleased(state.trial_id, state.epoch, allocation.ticket, allocation.agent),
    )


def _ended(
    state: TrialState, status: Status, early_exit: ExitReason | None, turn: Turn
) -> TrialState:
    if state.allocation is not None:
        _release(state, state.allocation, turn)
    ended = TrialEnded(
        number=state.number,
        status=status,
        early_exit=early_exit or "",
        message=state.message if status is Status.ERROR else "",
    )
    turn.send(addresses.experiment(state.experiment_id), ended)
    return evolve(state, status=status, allocation=None, ended_ms=turn.now_ms)


def _batches(
    settings: TrialSettings, hparams: Mapping[str, object], length: int | None
) -> int | None:
    return None if length is None else settings.lengths.batches(length, hparams)


def _units(state: TrialState, batches: int) -> float:
    return state.settings.lengths.units(batches, state.hparams)
