"""The limit of an experiment's cost, `max_cost`.

The present rate determines the time at which the limit will be reached. STOP_MS before that time,
the experiment is paused: trials save their work, and no other trial starts. A quarter of STOP_MS
before that time, trials that still run are stopped. If the whole limit lasts for less than four
times STOP_MS, a quarter of that duration replaces STOP_MS.
"""

from dataclasses import replace

from control_plane.actors import addresses
from control_plane.actors.cost import MS_PER_HOUR, render_dollars
from control_plane.actors.experiment.bill import apply_metered, running_meters
from control_plane.actors.experiment.events import raise_limit_event
from control_plane.actors.experiment.state import ExperimentState, settings_of
from control_plane.actors.experiment.status import change_status
from control_plane.actors.experiment.trial_summaries import summary_of
from control_plane.actors.messages.experiment import CostCheckDue, TrialMetered
from control_plane.actors.messages.trial import PreemptionRequested
from control_plane.actors.records import Status
from control_plane.actors.step import CommandRefused, StepContext
from control_plane.evolve import evolve

# Trials are asked to stop this long before the limit. At a quarter of this time, they are killed.
STOP_MS = 60_000
QUARTER = 4


def apply_cost_message(
    state: ExperimentState, message: TrialMetered | CostCheckDue, context: StepContext
) -> ExperimentState:
    """Record the cost of a trial, or handle a due check. Then enforce the cost limit
    (`enforce_limit`).

    A repeated or late TrialMetered changes nothing. An experiment that is being deleted, was
    deleted or failed to be deleted ignores both messages.
    """
    if state.status.is_deleting:
        return state
    if isinstance(message, CostCheckDue):
        # A timer that arrives before the next check does not cancel that check.
        is_next = state.bill.next_check_ms <= context.now_ms
        bill = replace(state.bill, next_check_ms=0) if is_next else state.bill
        return enforce_limit(evolve(state, bill=bill), context)
    bill = apply_metered(state.bill, message, context)
    return state if bill is state.bill else enforce_limit(evolve(state, bill=bill), context)


def enforce_limit(state: ExperimentState, context: StepContext) -> ExperimentState:
    """Pause the experiment if the cost limit is near. Otherwise set a timer for the next check.

    From STOP_MS before the expected time of the limit, an active experiment is paused with a
    message for users. From a quarter of STOP_MS before the time, running trials get a forced
    PreemptionRequested. If nothing runs, only a reached limit pauses the experiment. Without a
    limit, and after the end of the experiment, nothing happens.
    """
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
    """Enforce a new cost limit (`enforce_limit`), and return the updated state.

    If the cost is now below the limit, the experiment's message is removed if it was about the old
    limit. An experiment that the old limit paused stays paused until a user activates it.
    """
    was_limited = state.bill.is_limited
    bill = replace(state.bill, is_limited=False, next_check_ms=0)
    state = enforce_limit(evolve(state, bill=bill), context)
    return evolve(state, message="") if was_limited and not state.bill.is_limited else state


def check_affordable(state: ExperimentState, context: StepContext) -> None:
    """Check that the experiment's cost has not reached the limit. Without a limit, every cost is
    allowed.

    Raises:
        CommandRefused: conflict; the limit was reached.
    """
    limit = settings_of(context).max_cost_micros
    if limit is not None and (
        state.bill.is_limited or state.bill.spent_micros(context.now_ms) >= limit
    ):
        raise CommandRefused("conflict", _limit_text(state, limit, context))


def _schedule_check(state: ExperimentState, next_ms: int, context: StepContext) -> ExperimentState:
    """Set a CostCheckDue timer at `next_ms`, and return the state with `next_check_ms`.

    Return `state` unchanged if an earlier check is scheduled, which schedules the next.
    """
    if 0 < state.bill.next_check_ms <= next_ms:
        return state
    context.set_timer(next_ms, CostCheckDue())
    return evolve(state, bill=replace(state.bill, next_check_ms=next_ms))


def _pause_at_limit(state: ExperimentState, limit: int, context: StepContext) -> ExperimentState:
    """Mark the bill as limited, and pause an active experiment with a message for users.

    The open trials get the status PAUSED, and webhooks announce the limit. An experiment that is
    not ACTIVE is only marked. `limit` is in micro-dollars.
    """
    if not state.bill.is_limited:
        state = evolve(state, bill=replace(state.bill, is_limited=True))
    if state.status is not Status.ACTIVE:
        return state
    text = _limit_text(state, limit, context)
    context.add_reason(text)
    state = raise_limit_event(evolve(state, message=text), "max_cost", text, context)
    return change_status(state, Status.PAUSED, context)


def _kill_running_trials(state: ExperimentState, context: StepContext) -> ExperimentState:
    """Send every trial with a rate above 0 a forced PreemptionRequested. Return `state` unchanged.

    The rate is the present cost of the trial's slots. The message stops the allocation immediately,
    without saving work. The trial does not end, and can continue later.
    """
    reason = "the experiment has come to its max_cost"
    for number, meter in running_meters(state.trials, context):
        summary = summary_of(number, context)
        if summary is not None:
            stop = PreemptionRequested(meter.epoch, reason, forced=True)
            context.send(addresses.trial(summary.trial_id), stop)
    return state


def _limit_text(state: ExperimentState, limit: int, context: StepContext) -> str:
    """Render the message for users about a reached limit, with the command that raises the limit.

    The message names the limit and the cost so far. `limit` is in micro-dollars.
    """
    spent = render_dollars(state.bill.spent_micros(context.now_ms))
    number = state.experiment_id
    return (
        f"the experiment has come to its max_cost of {render_dollars(limit)} (spent: {spent}):"
        f" raise it with `detcloud experiment set max-cost {number} AMOUNT`, then activate it"
    )
