"""No experiment costs more than its `max_cost`.

What runs costs at a rate that is known, so it is known when the limit would be reached. STOP_MS
before that the experiment is paused, which lets its trials save their work and starts no other;
what still runs shortly before is stopped. Small limits have shorter times: a quarter of what they
last for.
"""

from dataclasses import replace

from control_plane.actors import addresses
from control_plane.actors.cost import MS_PER_HOUR, dollars_text
from control_plane.actors.experiment_bill import billed, running
from control_plane.actors.experiment_messages import CostLookDue, TrialMetered
from control_plane.actors.experiment_state import ExperimentState, settings_of
from control_plane.actors.experiment_status import with_status
from control_plane.actors.experiment_summaries import summary_of
from control_plane.actors.records import Status
from control_plane.actors.step import Refused, Turn
from control_plane.actors.trial_messages import PreemptionRequested
from control_plane.evolve import evolve

# Before the limit would be reached: trials are asked to stop, and a quarter of it before, made to.
STOP_MS = 60_000
QUARTER = 4


def metered(
    state: ExperimentState, message: TrialMetered | CostLookDue, turn: Turn
) -> ExperimentState:
    """Takes note of what a trial costs, and looks at the limit."""
    if state.status.deleting:
        return state
    if isinstance(message, CostLookDue):
        # One that was needed earlier leaves the next one where it is: each would ask for another.
        is_next = state.bill.look_ms <= turn.now_ms
        bill = replace(state.bill, look_ms=0) if is_next else state.bill
        return limited(evolve(state, bill=bill), turn)
    bill = billed(state.bill, message, turn)
    return state if bill is state.bill else limited(evolve(state, bill=bill), turn)


def limited(state: ExperimentState, turn: Turn) -> ExperimentState:
    """Stops what would exceed the limit, or sees to it that this is looked at again in time."""
    limit = settings_of(turn).max_cost_micros
    if limit is None or state.status.final:
        return state
    bill = state.bill
    left = limit - bill.spent_micros(turn.now_ms)
    if not bill.rate_micros:
        return _stopped(state, limit, turn) if left <= 0 else state
    left_ms = left * MS_PER_HOUR // bill.rate_micros
    stop_ms = min(STOP_MS, limit * MS_PER_HOUR // bill.rate_micros // QUARTER)
    kill_ms = stop_ms // QUARTER
    if left_ms <= stop_ms:
        state = _stopped(state, limit, turn)
    if left_ms <= kill_ms:
        return _killed(state, turn)
    next_ms = turn.now_ms + left_ms - (kill_ms if left_ms <= stop_ms else stop_ms)
    return _looking(state, next_ms, turn)


def relimited(state: ExperimentState, turn: Turn) -> ExperimentState:
    """The same under another limit: one that it has not come to lets it be activated again."""
    was_limited = state.bill.is_limited
    bill = replace(state.bill, is_limited=False, look_ms=0)
    state = limited(evolve(state, bill=bill), turn)
    return evolve(state, message="") if was_limited and not state.bill.is_limited else state


def check_affordable(state: ExperimentState, turn: Turn) -> None:
    """Raises Refused for an experiment that may cost nothing more."""
    limit = settings_of(turn).max_cost_micros
    if limit is not None and (
        state.bill.is_limited or state.bill.spent_micros(turn.now_ms) >= limit
    ):
        raise Refused("conflict", _why(state, limit, turn))


def _looking(state: ExperimentState, next_ms: int, turn: Turn) -> ExperimentState:
    """A timer is never revoked: one that comes too early looks again."""
    if 0 < state.bill.look_ms <= next_ms:
        return state
    turn.set_timer(next_ms, CostLookDue())
    return evolve(state, bill=replace(state.bill, look_ms=next_ms))


def _stopped(state: ExperimentState, limit: int, turn: Turn) -> ExperimentState:
    if not state.bill.is_limited:
        state = evolve(state, bill=replace(state.bill, is_limited=True))
    if state.status is not Status.ACTIVE:
        return state
    text = _why(state, limit, turn)
    turn.because(text)
    return with_status(evolve(state, message=text), Status.PAUSED, turn)


def _killed(state: ExperimentState, turn: Turn) -> ExperimentState:
    """Takes their slots from the trials that have not stopped; they can go on later."""
    reason = "the experiment has come to its max_cost"
    for number, meter in running(state.trials, turn):
        summary = summary_of(number, turn)
        if summary is not None:
            stop = PreemptionRequested(meter.epoch, reason, forced=True)
            turn.send(addresses.trial(summary.trial_id), stop)
    return state


def _why(state: ExperimentState, limit: int, turn: Turn) -> str:
    spent = dollars_text(state.bill.spent_micros(turn.now_ms))
    number = state.experiment_id
    return (
        f"the experiment has come to its max_cost of {dollars_text(limit)} (spent: {spent}): raise"
        f" it with `detcloud experiment set max-cost {number} AMOUNT`, then activate it"
    )
