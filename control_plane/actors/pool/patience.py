"""Jobs with several preferred pools: the pool releases a job that has waited long enough.

The pool sends a WaitEnded to the job's experiment, and only the experiment moves the job.
scheduling/pool_choice.py has the rule. Each wait has a timer for the end of the job's patience, so
that no pass has to search for such waits.
"""

from itertools import islice

from control_plane.actors import addresses
from control_plane.actors.messages.experiment import WaitEnded
from control_plane.actors.messages.pool import PatienceEnded, SchedulingContinued
from control_plane.actors.pool.groups import Group
from control_plane.actors.pool.state import PoolState, job_queue_of, settings_of
from control_plane.actors.step import StepContext
from control_plane.clock_skew import is_from_future
from control_plane.evolve import evolve
from control_plane.scheduling.pool_choice import PoolWait, leave_time_ms
from control_plane.scheduling.quiet_hours import is_held_back, period_at, quiet_text

# The most jobs that a commit releases. Each job may be in a different part.
RELEASED_MAX = 12
_SECONDS_MAX = 120


def end_patience(state: PoolState, message: PatienceEnded, context: StepContext) -> PoolState:
    """Release a job that has waited long enough in this pool, or set a timer to check again.

    A release sends the job's experiment a WaitEnded. A timer of an earlier wait, or of a job
    without a wait, changes nothing.
    """
    group = job_queue_of(context).group(message.group)
    since_ms = group.stays_since_ms
    if since_ms is None or since_ms != message.since_ms:
        return state
    now_ms, closed = context.now_ms, _closed_reason_of(state, group, context)
    leaves_ms = leave_time_ms(_wait_of(state, message.group, group, closed))
    if leaves_ms is not None and leaves_ms <= now_ms:
        waited = f"nothing of it started in pool {state.name} for {_time_text(now_ms - since_ms)}"
        _release_job(message.group, group, "; ".join(filter(None, (waited, closed))), context)
        return state
    patience_ms = group.row.patience_ms or 0
    if leaves_ms is None or is_from_future(leaves_ms, now_ms, leaves_ms - since_ms):
        leaves_ms = now_ms + patience_ms
    context.set_timer(leaves_ms, message)
    return state


def release_waiting_jobs(state: PoolState, context: StepContext) -> PoolState:
    """Release the due jobs to which the pool cannot provide slots, each job once.

    Their experiments get a WaitEnded. A pool that can provide slots releases none here: timers of
    the jobs do. At most RELEASED_MAX jobs are released. If more are due, the pool sends itself a
    SchedulingContinued.
    """
    if not (closed_reason(state, context) or quiet_reason(state, context)):
        return state
    due = (
        (number, group, closed)
        for number, group in job_queue_of(context).groups_at_work()
        if group.stays_since_ms is not None
        and not group.released
        and (closed := _closed_reason_of(state, group, context))
        and (leaves_ms := leave_time_ms(_wait_of(state, number, group, closed))) is not None
        and leaves_ms <= context.now_ms
    )
    due_jobs = list(islice(due, RELEASED_MAX + 1))
    for number, group, closed in due_jobs[:RELEASED_MAX]:
        _release_job(number, group, closed, context)
    if len(due_jobs) <= RELEASED_MAX:
        return state
    context.send(context.address, SchedulingContinued())
    return evolve(state, needs_scheduling=True)


def closed_reason(state: PoolState, context: StepContext) -> str:
    """Return why the pool cannot provide slots: draining, the budget, no agents, or no instances.

    Return "" if the pool may provide slots.
    """
    settings = settings_of(context)
    if settings.draining:
        return f"pool {state.name} is draining"
    if settings.over_budget:
        return f"the budget of pool {state.name} is used up"
    if not settings.provider:
        return "" if state.agents else f"pool {state.name} has no agents and launches none"
    if context.now_ms < state.no_supply_until_ms:
        return f"pool {state.name} gets no instances: {state.no_supply_reason}"
    return ""


def quiet_reason(state: PoolState, context: StepContext) -> str:
    """Return the sentence about the pool's present quiet hours, or "" at other times."""
    return quiet_text(state.name, settings_of(context).quiet_periods, context.now_ms)


def _closed_reason_of(state: PoolState, group: Group, context: StepContext) -> str:
    """Return why the pool cannot provide slots to a job, or "". Urgent jobs have no quiet hours."""
    if closed := closed_reason(state, context):
        return closed
    settings = settings_of(context)
    period = period_at(settings.quiet_periods, context.now_ms)
    if period is None or not is_held_back(period, group.priority_or(settings.default_priority)):
        return ""
    return quiet_reason(state, context)


def _wait_of(state: PoolState, number: int, group: Group, closed: str) -> PoolWait:
    """Return a job's wait in this pool as a PoolWait, for the rule in pool_choice.py.

    `closed`: why the pool cannot provide slots, "" if the pool may.
    """
    reservation = state.reservation
    return PoolWait(
        group.stays_since_ms or 0,
        group.row.patience_ms or 0,
        group.row.rounds,
        closed=bool(closed),
        is_held=reservation is not None and reservation.group == number,
    )


def _release_job(number: int, group: Group, reason: str, context: StepContext) -> None:
    """Mark a job as released, and send the job's experiment a WaitEnded with the reason."""
    job_queue_of(context).mark_released(number)
    pool = context.address.partition("#")[2]
    ended = WaitEnded(pool, group.row.stay, group.stays_since_ms or 0, reason)
    context.send(addresses.experiment(number), ended)
    context.add_reason(f"job {number} may leave: {reason}")


def _time_text(time_ms: int) -> str:
    """Render a duration in seconds, or in minutes from two minutes on."""
    seconds = time_ms // 1000
    return f"{seconds} s" if seconds < _SECONDS_MAX else f"{seconds // 60} min"
