"""The trial: owns its target, its restarts, its latest checkpoint and its one allocation.

An allocation is named by the trial's epoch, which counts them. A message of an older epoch
changes nothing, so a zombie's reports, a late loss and a repeated exit are harmless. The trial
wants slots exactly while its experiment is ACTIVE and it has unfinished work; a failure beyond
`max_restarts` ends it, a loss of its machine never does. A machine that cannot start it is no
failure of the trial either, but it is not tried for ever.
"""

from typing import assert_never

from control_plane.actors import addresses
from control_plane.actors import trial_gang as gang
from control_plane.actors.records import Status
from control_plane.actors.step import Refused, Turn
from control_plane.actors.trial_allocation import (
    advanced,
    assigned,
    counted,
    exiting_early,
    killing,
    overdue,
    preempting,
    refuses_hparams,
    saved,
)
from control_plane.actors.trial_checkpoints import condemned, files_deleted, handed_over
from control_plane.actors.trial_cost import silenced
from control_plane.actors.trial_course import (
    carried_on,
    ended,
    errored,
    is_done,
    moved,
    released,
    wants_slots,
)
from control_plane.actors.trial_messages import (
    AllocationExited,
    AllocationLost,
    AllocationMessage,
    CheckpointFilesDeleted,
    CheckpointHandedOver,
    CheckpointReported,
    CheckpointsUnwanted,
    CheckpointWanted,
    ContainerStateReported,
    EarlyExitReported,
    ExperimentStatusChanged,
    LengthReported,
    PreemptionRequested,
    RestartDue,
    SlotsAssigned,
    TerminationOverdue,
    TrialContinued,
    TrialCreated,
    TrialDeleted,
    TrialKillRequested,
    TrialMessage,
    TrialMoved,
    ValidationReported,
    WorkAssigned,
)
from control_plane.actors.trial_state import Allocation, Loss, TrialState, Wish
from control_plane.actors.trial_training import batches_of, cannot_begin, reached_already, reported
from control_plane.evolve import evolve
from control_plane.searchers.method import ExitReason

# Times in a row that a trial may end uncounted without having trained a batch: it gave up its
# slots unasked, could not be started, or vanished from a machine that is still there.
STALLS_MAX = 20
# Between two starts on machines that cannot: it doubles, and with STALLS_MAX comes to 15 minutes.
RESTART_MS_FIRST = 1_000
RESTART_MS_MAX = 60_000
LOSSES_KEPT = 5

_WORSE = (
    Status.STOPPING_COMPLETED,
    Status.STOPPING_CANCELED,
    Status.STOPPING_KILLED,
    Status.STOPPING_ERROR,
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
        case CheckpointWanted():
            handed_over(state, message, turn)
            return state
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
    message: WorkAssigned
    | CheckpointHandedOver
    | ExperimentStatusChanged
    | TrialMoved
    | RestartDue
    | AllocationMessage,
    turn: Turn,
) -> TrialState:
    match message:
        case WorkAssigned():
            return _work_assigned(state, message, turn)
        case CheckpointHandedOver():
            return _inherited(state, message, turn)
        case ExperimentStatusChanged():
            return _experiment_changed(state, message, turn)
        case TrialMoved(pool=pool):
            return moved(state, pool, turn)
        case RestartDue():
            return _restart_due(state, message, turn)
        case _:
            return _of_allocation(state, message, turn)


def _of_allocation(state: TrialState, message: AllocationMessage, turn: Turn) -> TrialState:
    allocation = state.allocation
    if message.epoch != state.epoch or allocation is None:
        return state
    match message:
        case SlotsAssigned() | PreemptionRequested() | AllocationLost():
            return _by_pool(state, allocation, message, turn)
        case ContainerStateReported() | EarlyExitReported() | AllocationExited():
            return _by_agent(state, allocation, message, turn)
        case ValidationReported() | LengthReported() | CheckpointReported():
            return _trained(state, allocation, message, turn)
        case TerminationOverdue():
            return overdue(state, allocation)
        case _:
            assert_never(message)


def fallback(state: TrialState | None, message: object, turn: Turn) -> TrialState | None:
    """A trial that cannot take a message ends in ERROR, and its experiment learns it."""
    if state is None:
        if not isinstance(message, TrialCreated):
            return None
        state = _initial(message, turn)
    if isinstance(message, CheckpointWanted):
        # Its copy waits for a word.
        turn.send(addresses.trial(message.by), CheckpointHandedOver(state.trial_id, None))
    if state.status.final:
        return state
    text = f"internal error: {type(message).__name__} could not be processed"
    return errored(state, text, turn)


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
        awaits_checkpoint=message.parent_id is not None,
    )


def _created(message: TrialCreated, turn: Turn) -> TrialState:
    state = _initial(message, turn)
    if message.parent_id is not None:
        # Asked from here: whoever answers finds this trial there.
        turn.send(addresses.trial(message.parent_id), CheckpointWanted(state.trial_id))
    return carried_on(state, turn)


def _work_assigned(state: TrialState, message: WorkAssigned, turn: Turn) -> TrialState:
    """The search has spoken about everything reached so far."""
    before = state.length_units
    state = evolve(
        state,
        closed=state.closed or message.closed,
        stopped=state.stopped or message.stopped,
        answered=state.reached,
        revision=state.revision + 1,
    )
    if message.length is not None:
        length = batches_of(state.settings, state.hparams, message.length)
        state = evolve(state, length_units=message.length, length=length)
        if before is not None and message.length > before:
            reached_already(state, turn)
    return carried_on(state, turn)


def _inherited(state: TrialState, message: CheckpointHandedOver, turn: Turn) -> TrialState:
    """Starts with the weights of another trial, without which the search cannot go on."""
    if not state.awaits_checkpoint:
        return state
    if message.checkpoint is None:
        cannot_begin(state, message.by, turn)
        return state
    return carried_on(evolve(state, awaits_checkpoint=False, inherited=message.checkpoint), turn)


def _experiment_changed(
    state: TrialState, message: ExperimentStatusChanged, turn: Turn
) -> TrialState:
    """Follows its experiment; what is stopping already only takes what is worse."""
    if _is_followed(state.experiment_status, message.status):
        # Whoever activates it does not want to wait.
        state = evolve(state, experiment_status=message.status, held_back=False)
    return carried_on(evolve(state, killed=state.killed or message.forced), turn)


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
    return carried_on(evolve(state, killed=True), turn)


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
        held_back=False,
        early_exit="",
        ended_ms=None,
        message="",
        steps=state.checkpoint.steps_completed if state.checkpoint else 0,
    )
    if message.length is not None:
        length = batches_of(state.settings, state.hparams, message.length)
        state = evolve(state, length_units=message.length, length=length)
    return carried_on(state, turn)


def _deleted(state: TrialState) -> TrialState:
    """Leaves a head that says that there was such a trial; one that still runs is none of it."""
    if not state.status.final:
        return state
    return evolve(state, deleted=True, hparams={}, checkpoint=None, message="")


def _by_pool(
    state: TrialState,
    allocation: Allocation,
    message: SlotsAssigned | PreemptionRequested | AllocationLost,
    turn: Turn,
) -> TrialState:
    match message:
        case SlotsAssigned():
            return assigned(state, allocation, message, turn)
        case PreemptionRequested(reason=reason, forced=True):
            return killing(state, allocation, reason)
        case PreemptionRequested(reason=reason):
            return preempting(state, allocation, reason, turn)
        case AllocationLost():
            return _agent_lost(state, allocation, message, turn)


def _agent_lost(
    state: TrialState, allocation: Allocation, message: AllocationLost, turn: Turn
) -> TrialState:
    silent = silenced(state, allocation, message, turn)
    state = evolve(state, allocation=silent)
    if silent.is_gang:
        return _member_gone(state, silent, gang.lost(silent, message), turn)
    gone = AllocationExited(state.epoch, gang.AGENT_LOST, message=message.reason)
    return _exited(state, silent, gone, turn)


def _trained(
    state: TrialState,
    allocation: Allocation,
    message: ValidationReported | LengthReported | CheckpointReported,
    turn: Turn,
) -> TrialState:
    after = counted(allocation, message)
    if after is None:
        return state
    saved(state, allocation, message, turn)
    running = state if after is allocation else evolve(state, allocation=after)
    return reported(running, message, turn)


def _by_agent(
    state: TrialState,
    allocation: Allocation,
    message: ContainerStateReported | EarlyExitReported | AllocationExited,
    turn: Turn,
) -> TrialState:
    match message:
        case ContainerStateReported():
            return advanced(state, allocation, message)
        case EarlyExitReported(reason=reason):
            return exiting_early(state, reason, turn)
        case AllocationExited() if message.nodes > 1:
            return _member_gone(state, allocation, gang.exited(allocation, message), turn)
        case AllocationExited():
            return _exited(state, allocation, message, turn)


def _member_gone(
    state: TrialState, before: Allocation, allocation: Allocation, turn: Turn
) -> TrialState:
    """A node of a gang is gone. Where the rest cannot go on it is stopped, so that it all begins
    again, and no slots are asked for before its own are free.
    """
    verdict = allocation.verdict
    if allocation is before or verdict is None:
        return state
    state = evolve(state, allocation=allocation)
    if gang.is_over(allocation):
        wanted = evolve(allocation, wish=gang.asked(allocation))
        return _exited(state, wanted, verdict.exit, turn)
    if not gang.is_broken(allocation) and not refuses_hparams(state):
        return state
    reason = f"node {verdict.exit.node_rank} of {verdict.exit.nodes} is gone"
    turn.because(f"the rest is stopped: {reason}")
    return killing(state, allocation, f"{reason}: {gang.cause(verdict.exit)}")


def _exited(
    state: TrialState, allocation: Allocation, message: AllocationExited, turn: Turn
) -> TrialState:
    reason = message.reason
    if reason == gang.AGENT_LOST:
        return released(_losing(state, allocation, message, turn), allocation, turn)
    if refuses_hparams(state):
        state = evolve(state, message=message.message or "the hyperparameters were refused")
        return ended(state, Status.COMPLETED, ExitReason(state.early_exit), turn)
    if reason == "stop_requested" and allocation.wish is Wish.KILL and not state.early_exit:
        # It ended well because it was killed, not by its own wish.
        reason = "killed"
    if reason == "stop_requested" or (reason == "errored" and state.early_exit):
        # Having said that it stops it may end as it likes.
        return ended(state, Status.COMPLETED, ExitReason.USER_REQUESTED_STOP, turn)
    if reason == "completed":
        return ended(evolve(state, closed=True), Status.COMPLETED, None, turn)
    if gang.is_loss(message, allocation.wish):
        # Nobody here asked for it: its machine ends, or its agent was stopped.
        return _lost(state, allocation, message, turn)
    if reason in ("preempted", "idle"):
        return _yielded(state, allocation, turn)
    if allocation.wish is not Wish.RUN:
        # It was asked to stop: however it ended, that is no failure of its own.
        return _left(state, allocation, message, turn)
    if reason == "start_failed":
        return _not_started(state, allocation, message, turn)
    return _failed(state, allocation, message, turn)


def _yielded(state: TrialState, allocation: Allocation, turn: Turn) -> TrialState:
    """It gave its slots up. One that does so unasked, with work left and none done, is not let run
    for ever."""
    worked = state.steps > allocation.from_steps
    idle = not worked and allocation.wish is Wish.RUN and wants_slots(state)
    state = evolve(state, stalls=state.stalls + 1 if idle else 0)
    if state.stalls > STALLS_MAX:
        text = f"it gave up its slots {state.stalls} times in a row without training a batch"
        return errored(state, text, turn)
    return released(state, allocation, turn)


def _left(
    state: TrialState, allocation: Allocation, message: AllocationExited, turn: Turn
) -> TrialState:
    if message.message and message.reason not in ("lost", "killed"):
        state = evolve(state, message=message.message)
    return released(state, allocation, turn)


def _lost(
    state: TrialState, allocation: Allocation, message: AllocationExited, turn: Turn
) -> TrialState:
    """Its processes are gone, which is no failure unless it never comes any further."""
    worked = state.steps > allocation.from_steps or message.reason != "lost"
    stalls = 0 if worked else state.stalls + 1
    state = _losing(evolve(state, stalls=stalls), allocation, message, turn)
    if stalls > STALLS_MAX:
        text = f"it was lost {stalls} times in a row without training a batch: {message.message}"
        return errored(state, text, turn)
    return released(state, allocation, turn)


def _losing(
    state: TrialState, allocation: Allocation, message: AllocationExited, turn: Turn
) -> TrialState:
    """Notes a loss, for people to see why the trial begins again."""
    place, cause = allocation.places[message.node_rank :][:1], gang.cause(message)
    turn.because(f"lost, which is no failure: {cause}")
    loss = Loss(turn.now_ms, place[0].agent if place else "", cause)
    recent = (*state.recent_losses, loss)[-LOSSES_KEPT:]
    return evolve(state, losses=state.losses + 1, recent_losses=recent)


def _not_started(
    state: TrialState, allocation: Allocation, message: AllocationExited, turn: Turn
) -> TrialState:
    """Its machine could not start it: it tries again, after a while and not for ever."""
    stalls = state.stalls + 1
    text = message.message or "the trial could not be started"
    if stalls > STALLS_MAX:
        text = f"it could not be started {stalls} times in a row: {text}"
        return errored(state, text, turn)
    pause_ms = min(RESTART_MS_FIRST << (stalls - 1), RESTART_MS_MAX)
    turn.set_timer(turn.now_ms + pause_ms, RestartDue(state.epoch))
    turn.because(f"it is started again in {pause_ms} ms")
    return released(evolve(state, stalls=stalls, message=text, held_back=True), allocation, turn)


def _restart_due(state: TrialState, message: RestartDue, turn: Turn) -> TrialState:
    if not state.held_back or message.epoch != state.epoch:
        return state
    return carried_on(evolve(state, held_back=False), turn)


def _failed(
    state: TrialState, allocation: Allocation, message: AllocationExited, turn: Turn
) -> TrialState:
    if state.length is not None and is_done(state):
        # It had nothing left to do but to say so.
        return ended(state, Status.COMPLETED, None, turn)
    text = message.message or f"the trial's process failed ({message.reason})"
    state = evolve(state, restarts=state.restarts + 1, stalls=0, message=text)
    allowed = state.settings.max_restarts
    if state.restarts > allowed:
        turn.because(f"it failed more often than its {allowed} restarts allow")
        return ended(state, Status.ERROR, ExitReason.ERRORED, turn)
    turn.because(f"restart {state.restarts} of {allowed}")
    return released(state, allocation, turn)
