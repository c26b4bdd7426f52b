"""The limit of an experiment's cost, `max_cost`.

The rate of what runs is known, and so is the time at which the limit would be reached. STOP_MS
before that the experiment is paused, which lets its trials save their work and starts no other;
what still runs shortly before the limit is stopped. Where the limit lasts for less than four times
STOP_MS, the pause comes a quarter of that time before it.
"""

from dataclasses import replace

from control_plane.actors import addresses
from control_plane.actors.cost import MS_PER_HOUR, render_dollars
from control_plane.actors.experiment.bill import apply_metered, running_meters
from control_plane.actors.experiment.state import ExperimentState, settings_of
from control_plane.actors.experiment.status import change_status
from control_plane.actors.experiment.trial_summaries import summary_of
from control_plane.actors.messages.experiment import CostCheckDue, TrialMetered
from control_plane.actors.messages.trial import PreemptionRequested
from control_plane.actors.records import Status
from control_plane.actors.step import CommandRefused, StepContext
from control_plane.evolve import evolve

# The time before the limit at which trials are asked to stop; at a quarter of it, they are killed.
STOP_MS = 60_000
QUARTER = 4


def apply_cost_message(
    state: ExperimentState, message: TrialMetered | CostCheckDue, context: StepContext
) -> ExperimentState:
    """Record what a trial costs, and enforce the limit."""
    if state.status.is_deleting:
        return state
    if isinstance(message, CostCheckDue):
        # A timer that comes before the next check leaves that check where it is.
        is_next = state.bill.look_ms <= context.now_ms
        bill = replace(state.bill, look_ms=0) if is_next else state.bill
        return enforce_limit(evolve(state, bill=bill), context)
    bill = apply_metered(state.bill, message, context)
    return state if bill is state.bill else enforce_limit(evolve(state, bill=bill), context)


def enforce_limit(state: ExperimentState, context: StepContext) -> ExperimentState:
    """Stop what would exceed the limit, or set a timer to check it again in time."""
    limit = settings_of(context).max_cost_micros
    if limit is None or state.status.is_final:
        return state
    bill = state.bill
    left = limit - bill.spent_micros(context.now_ms)
    if not bill.rate_micros:
        return _pause_at_limit(state, limit, context) if left <= 0 else state
    left_ms = left * MS_PER_HOUR // bill.rate_micros
    stop_ms = min(STOP_MS, limit * MS_PER_HOUR // bill.rate_micros // QUARTER)
    kill_ms = stop_ms // QUARTER
    if left_ms <= stop_ms:
        state = _pause_at_limit(state, limit, context)
    if left_ms <= kill_ms:
        return _kill_running_trials(state, context)
    next_ms = context.now_ms + left_ms - (kill_ms if left_ms <= stop_ms else stop_ms)
    return _schedule_check(state, next_ms, context)


def apply_changed_limit(state: ExperimentState, context: StepContext) -> ExperimentState:
    """Enforce a changed limit; an experiment below it may be activated again."""
    was_limited = state.bill.is_limited
    bill = replace(state.bill, is_limited=False, look_ms=0)
    state = enforce_limit(evolve(state, bill=bill), context)
    return evolve(state, message="") if was_limited and not state.bill.is_limited else state


def check_affordable(state: ExperimentState, context: StepContext) -> None:
    """Raise CommandRefused, conflict, for an experiment that has reached its limit."""
    limit = settings_of(context).max_cost_micros
    if limit is not None and (
        state.bill.is_limited or state.bill.spent_micros(context.now_ms) >= limit
    ):
        raise CommandRefused("conflict", _limit_text(state, limit, context))


def _schedule_check(state: ExperimentState, next_ms: int, context: StepContext) -> ExperimentState:
    """Set a timer for the next check, unless one comes earlier, which then sets the next."""
    if 0 < state.bill.look_ms <= next_ms:
        return state
    context.set_timer(next_ms, CostCheckDue())
    return evolve(state, bill=replace(state.bill, look_ms=next_ms))


def _pause_at_limit(state: ExperimentState, limit: int, context: StepContext) -> ExperimentState:
    if not state.bill.is_limited:
        state = evolve(state, bill=replace(state.bill, is_limited=True))
    if state.status is not Status.ACTIVE:
        return state
    text = _limit_text(state, limit, context)
    context.add_reason(text)
    return change_status(evolve(state, message=text), Status.PAUSED, context)


def _kill_running_trials(state: ExperimentState, context: StepContext) -> ExperimentState:
    """Immediately stop the trials that still run; they can continue later."""
    reason = "the experiment has come to its max_cost"
    for number, meter in running_meters(state.trials, context):
        summary = summary_of(number, context)
        if summary is not None:
            stop = PreemptionRequested(meter.epoch, reason, forced=True)
            context.send(addresses.trial(summary.trial_id), stop)
    return state


def _limit_text(state: ExperimentState, limit: int, context: StepContext) -> str:
    spent = render_dollars(state.bill.spent_micros(context.now_ms))
    number = state.experiment_id
    return (
        f"the experiment has come to its max_cost of {render_dollars(limit)} (spent: {spent}):"
        f" raise it with `detcloud experiment set max-cost {number} AMOUNT`, then activate it"
    )
