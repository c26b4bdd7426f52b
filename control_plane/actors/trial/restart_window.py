"""The count of failures against `max_restarts`, within `restart_window` if the setting exists."""

from control_plane.actors.trial.state import TrialState
from control_plane.evolve import evolve


def count_failure(state: TrialState, now_ms: int) -> TrialState:
    """Count a failure of the training code, and return the state.

    With a window, the time of the failure is added to `failure_times`. Earlier times outside the
    window are dropped. So are all but the latest `max_restarts`, because more failures end the
    trial anyway.
    """
    state = evolve(state, restarts=state.restarts + 1)
    if state.settings.restart_window_ms is None:
        return state
    recent = recent_failure_times(state, now_ms)
    kept = recent[max(0, len(recent) - state.settings.max_restarts) :]
    # A time from a host with a fast clock would stay in the window too long.
    times = (*(min(time_ms, now_ms) for time_ms in kept), now_ms)
    return evolve(state, failure_times=times)


def counted_failures(state: TrialState, now_ms: int) -> int:
    """Return the number of failures that count against `max_restarts` at the time `now_ms`."""
    if state.settings.restart_window_ms is None:
        return state.restarts
    return len(recent_failure_times(state, now_ms))


def recent_failure_times(state: TrialState, now_ms: int) -> tuple[int, ...]:
    """Return the times of failures within the window before `now_ms`, in epoch ms.

    Empty without a window. A failure as long ago as the window does not count.
    """
    window_ms = state.settings.restart_window_ms
    if window_ms is None:
        return ()
    return tuple(time_ms for time_ms in state.failure_times if time_ms > now_ms - window_ms)


def window_text(state: TrialState) -> str:
    """Return the suffix " within restart_window" of a count, or "" without a window."""
    return "" if state.settings.restart_window_ms is None else " within restart_window"
