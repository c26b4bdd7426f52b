"""The limit of a trial's time with slots, `max_trial_duration`.

The time of all runs counts, from the assignment of slots to the release. Waits in the queue and
pauses do not count. A run at the limit is preempted, so that the trial saves a checkpoint. The
trial is then canceled instead of requesting slots again. Each continuation of the experiment has
the whole time again.
"""

from control_plane.actors.trial.state import Allocation, TrialState
from control_plane.evolve import evolve

TIME_REASON = "it has come to its max_trial_duration"


def remaining_time_ms(state: TrialState) -> int | None:
    """Return the time that the trial may still hold slots, at least 0.

    The present run counts as if it had just begun. Return None without a limit.
    """
    limit_ms = state.settings.trial_duration_ms
    return None if limit_ms is None else max(0, limit_ms - state.used_ms)


def count_used_time(state: TrialState, allocation: Allocation, now_ms: int) -> TrialState:
    """Add the time of an ended allocation to `used_ms`, and return the state.

    Without a limit, or for an allocation that never had slots, return `state` itself. A run that
    was stopped at the limit uses up all time, even if `now_ms` is of a host with a slow clock.
    """
    limit_ms = state.settings.trial_duration_ms
    if limit_ms is None or not allocation.places:
        return state
    used_ms = state.used_ms + max(0, now_ms - allocation.placed_ms)
    if allocation.has_come_to_limit:
        used_ms = max(used_ms, limit_ms)
    return evolve(state, used_ms=used_ms)


def run_end_ms(state: TrialState) -> int | None:
    """Return the time at which the present run reaches the limit, in epoch ms.

    Return None without a limit, and for a trial without slots.
    """
    allocation = state.allocation
    if allocation is None or not allocation.places:
        return None
    remaining_ms = remaining_time_ms(state)
    return None if remaining_ms is None else allocation.placed_ms + remaining_ms
