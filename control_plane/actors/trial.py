"""The trial: owns its target, its restarts, its latest checkpoint and its one allocation.

An allocation is named by the trial's epoch, which counts them. A message of an older epoch
changes nothing, so a zombie's reports, a late loss and a repeated exit are harmless. The trial
wants slots exactly while its experiment is ACTIVE and it has unfinished work; a failure beyond
`max_restarts` ends it, a loss of its machine never does.
"""

from dataclasses import replace
from typing import assert_never

from control_plane.actors import addresses
from control_plane.actors.messages import (
    AllocationExited,
    AllocationLost,
    CheckpointFilesDeleted,
    CheckpointReported,
    CheckpointsUnwanted,
    ContainerStateReported,
    EarlyExitReported,
    ExperimentStatusChanged,
    LengthReported,
    PreemptionRequested,
    SlotsAssigned,
    SlotsLimited,
    SlotsReleased,
    SlotsRequested,
    Status,
    TerminationOverdue,
    TrialContinued,
    TrialCreated,
    TrialDeleted,
    TrialEnded,
    TrialKillRequested,
    TrialMessage,
    ValidationReported,
    WorkAssigned,
)
from control_plane.actors.step import Refused, Turn
from control_plane.actors.trial_checkpoints import CHECKPOINTS as CHECKPOINTS
from control_plane.actors.trial_checkpoints import CheckpointRecord as CheckpointRecord
from control_plane.actors.trial_checkpoints import condemned, files_deleted
from control_plane.actors.trial_state import Allocation as Allocation
from control_plane.actors.trial_state import AllocationState as AllocationState
from control_plane.actors.trial_state import TrialState as TrialState
from control_plane.actors.trial_state import Wish as Wish
from control_plane.actors.trial_training import batches_of, reported
from control_plane.evolve import evolve
from control_plane.searchers.method import ExitReason

# Times in a row that a trial may give up its slots unasked without having trained a batch.
STALLS_MAX = 20

_PROGRESS = tuple(AllocationState)
_WORSE = (
    Status.STOPPING_COMPLETED,
    Status.STOPPING_CANCELED,
    Status.STOPPING_KILLED,
    Status.STOPPING_ERROR,
)


AllocationMessage = (
    SlotsAssigned
    | PreemptionRequested
    | AllocationLost
    | ContainerStateReported
    | EarlyExitReported
    | AllocationExited
    | ValidationReported
    | LengthReported
    | CheckpointReported
    | TerminationOverdue
)


def step(state: TrialState | None, message: TrialMessage, turn: Turn) -> TrialState | None:
    """Folds one message."""
    if isinstance(message, TrialCreated):
        return _created(message, turn) if state is None else state
    if state is None or state.deleted:
        return _gone(state, message)
    match message:
        case CheckpointsUnwanted():
            return condemned(state, message, turn)
        case CheckpointFilesDeleted():
            return files_deleted(state, message, turn)
        case TrialKillRequested():
            return _killed(state, turn)
        case TrialContinued():
            return _continued(state, message, turn)
        case TrialDeleted():
            return _deleted(state)
        case _:
            return state if state.status.final else _while_open(state, message, turn)


def _while_open(
    state: TrialState,
    message: WorkAssigned | ExperimentStatusChanged | SlotsLimited | AllocationMessage,
    turn: Turn,
) -> TrialState:
    match message:
        case WorkAssigned():
            return _work_assigned(state, message, turn)
        case ExperimentStatusChanged():
            return _experiment_changed(state, message, turn)
        case SlotsLimited():
            settings = replace(state.settings, max_slots=message.max_slots)
            return evolve(state, settings=settings)
        case _:
            return _of_allocation(state, message, turn)


def _of_allocation(state: TrialState, message: AllocationMessage, turn: Turn) -> TrialState:
    if message.epoch != state.epoch or state.allocation is None:
        return state
    match message:
        case SlotsAssigned() | PreemptionRequested() | AllocationLost():
            return _by_pool(state, state.allocation, message, turn)
        case ContainerStateReported() | EarlyExitReported() | AllocationExited():
            return _by_agent(state, state.allocation, message, turn)
        case ValidationReported() | LengthReported() | CheckpointReported():
            _mind_termination(state, message, turn)
            return reported(state, message, turn)
        case TerminationOverdue():
            return _overdue(state, state.allocation)
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
    if state.killed:
        return False
    return state.length is not None and state.length > state.reached


def _gone(state: TrialState | None, message: TrialMessage) -> TrialState | None:
    if state is not None and isinstance(message, TrialKillRequested):
        raise Refused("not_found", f"trial {state.trial_id} was deleted with its experiment")
    return state


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
        length=batches_of(message.settings, message.hparams, message.length),
        closed=message.closed,
        life=message.life,
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
        length = batches_of(state.settings, state.hparams, message.length)
        state = evolve(state, length_units=message.length, length=length)
    return _next(state, turn)


def _experiment_changed(
    state: TrialState, message: ExperimentStatusChanged, turn: Turn
) -> TrialState:
    """Follows its experiment; what is stopping already only takes what is worse."""
    if _is_followed(state.experiment_status, message.status):
        state = evolve(state, experiment_status=message.status)
    return _next(evolve(state, killed=state.killed or message.forced), turn)


def _is_followed(before: Status, status: Status) -> bool:
    if not before.stopping:
        return not status.final
    return status.stopping and _WORSE.index(status) > _WORSE.index(before)


def _killed(state: TrialState, turn: Turn) -> TrialState:
    """Ends this trial alone; one that has ended is left as it is."""
    turn.reply = state.trial_id
    if state.status.final or state.killed:
        return state
    turn.because("killed")
    return _next(evolve(state, killed=True), turn)


def _continued(state: TrialState, message: TrialContinued, turn: Turn) -> TrialState:
    """Goes on from the latest checkpoint, in a later life of the experiment than it ended in."""
    if not state.status.final or message.life <= state.life:
        return state
    turn.because(f"{state.status} to {Status.ACTIVE}: the experiment goes on")
    state = evolve(
        state,
        status=Status.ACTIVE,
        experiment_status=Status.ACTIVE,
        settings=message.settings,
        life=message.life,
        restarts=0,
        stalls=0,
        killed=False,
        early_exit="",
        ended_ms=None,
        message="",
        steps=state.checkpoint.steps_completed if state.checkpoint else 0,
    )
    if message.length is not None:
        length = batches_of(state.settings, state.hparams, message.length)
        state = evolve(state, length_units=message.length, length=length)
    return _next(state, turn)


def _deleted(state: TrialState) -> TrialState:
    """Leaves a head that says that there was such a trial; one that still runs is none of it."""
    if not state.status.final:
        return state
    return evolve(state, deleted=True, hparams={}, checkpoint=None, message="")


def _next(state: TrialState, turn: Turn) -> TrialState:
    """What the trial wants now, given its experiment's status and its own work: the one place
    that decides.
    """
    allocation = state.allocation
    if allocation is None:
        if state.killed or state.experiment_status.stopping:
            return _ended(state, Status.CANCELED, ExitReason.USER_CANCELED, turn)
        if state.closed and (state.length is None or state.reached >= state.length):
            return _ended(state, Status.COMPLETED, None, turn)
        return _requested(state, turn) if wants_slots(state) else state
    if state.experiment_status is Status.ACTIVE and not state.killed:
        return state
    if allocation.state is AllocationState.PENDING:
        turn.because("withdrawn from the queue")
        return _released(state, allocation, turn)
    killed = state.experiment_status in (Status.STOPPING_KILLED, Status.STOPPING_ERROR)
    if state.killed or killed:
        reason = "killed" if state.killed else f"the experiment is {state.experiment_status}"
        return _wishing(state, allocation, Wish.KILL, reason)
    reason = f"the experiment is {state.experiment_status}"
    return _wishing(state, allocation, Wish.PREEMPT, reason)


def _requested(state: TrialState, turn: Turn) -> TrialState:
    epoch = state.epoch + 1
    # Job submission, then request time, then the trial: the queue's order as a string.
    submitted = state.settings.submitted_ms
    ticket = f"{submitted:014d}.{turn.now_ms:014d}.{state.trial_id:012d}"
    turn.send(
        addresses.pool(state.settings.pool),
        SlotsRequested(
            trial_id=state.trial_id,
            epoch=epoch,
            slots=state.settings.slots,
            ticket=ticket,
            group=state.experiment_id,
            max_slots=state.settings.max_slots,
        ),
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
        case AllocationLost():
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


def _mind_termination(state: TrialState, message: AllocationMessage, turn: Turn) -> None:
    """One that has saved its work after it was told to stop has nothing left to do but end."""
    allocation, patience_ms = state.allocation, state.settings.terminate_ms
    if allocation is None or allocation.wish is not Wish.PREEMPT or patience_ms is None:
        return
    if isinstance(message, CheckpointReported):
        turn.set_timer(turn.now_ms + patience_ms, TerminationOverdue(state.epoch))


def _overdue(state: TrialState, allocation: Allocation) -> TrialState:
    if allocation.wish is not Wish.PREEMPT:
        return state
    return _wishing(state, allocation, Wish.KILL, "it did not end when it was told to")


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


def _exited(
    state: TrialState, allocation: Allocation, message: AllocationExited, turn: Turn
) -> TrialState:
    if state.early_exit in (ExitReason.INVALID_HP, ExitReason.INIT_INVALID_HP):
        state = evolve(state, message=message.message or "the hyperparameters were refused")
        return _ended(state, Status.COMPLETED, ExitReason(state.early_exit), turn)
    if message.reason == "stop_requested":
        return _ended(state, Status.COMPLETED, ExitReason.USER_REQUESTED_STOP, turn)
    if message.reason == "completed":
        return _ended(evolve(state, closed=True), Status.COMPLETED, None, turn)
    if message.reason in ("preempted", "idle"):
        return _yielded(state, allocation, turn)
    if allocation.wish is Wish.KILL and (state.killed or state.experiment_status.stopping):
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
    allowed = state.settings.max_restarts
    if state.restarts > allowed:
        turn.because(f"it failed more often than its {allowed} restarts allow")
        return _ended(state, Status.ERROR, ExitReason.ERRORED, turn)
    turn.because(f"restart {state.restarts} of {allowed}")
    return _released(state, allocation, turn)


def _released(state: TrialState, allocation: Allocation, turn: Turn) -> TrialState:
    """Gives the slots back, rolls back to the latest checkpoint and goes on to what comes next."""
    _release(state, allocation, turn)
    steps = state.checkpoint.steps_completed if state.checkpoint else 0
    return _next(evolve(state, allocation=None, steps=min(state.steps, steps)), turn)


def _release(state: TrialState, allocation: Allocation, turn: Turn) -> None:
    turn.send(
        addresses.pool(state.settings.pool),
        SlotsReleased(
            state.trial_id,
            state.epoch,
            allocation.ticket,
            allocation.agent,
            group=state.experiment_id,
        ),
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
        life=state.life,
    )
    turn.send(addresses.experiment(state.experiment_id), ended)
    return evolve(state, status=status, allocation=None, ended_ms=turn.now_ms)
