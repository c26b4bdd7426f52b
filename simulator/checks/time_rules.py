"""The checks of the rules about time: quiet hours, limits of trials, and restart windows."""

from control_plane.actors.messages.pool import PoolSettings
from control_plane.actors.pool.actor import PoolState, agents_of, job_queue_of
from control_plane.actors.step import StepContext
from control_plane.actors.trial.state import TrialState
from control_plane.actors.trial.time_limit import remaining_time_ms
from control_plane.scheduling.quiet_hours import is_held_back, period_at


def check_quiet_hours(
    known: PoolState | None, after: PoolState, now_ms: int, context: StepContext
) -> None:
    """Check that a commit in quiet hours starts urgent jobs only. Raises AssertionError.

    Args:
        known: the state before the commit.
        after: the state after the commit.
        now_ms: the time of the fold in epoch ms.
        context: the reader of the pool's parts after the commit.
    """
    started = 0 if known is None else known.started
    settings = context.part("settings", PoolSettings) or PoolSettings()
    period = period_at(settings.quiet_periods, now_ms)
    if period is None or after.started == started:
        return
    queue, default = job_queue_of(context), settings.default_priority
    for _, agent in agents_of(context).items():
        for allocation, part in agent.parts.items():
            priority = queue.group(part.group).priority_or(default)
            is_new = part.start > started
            assert not (is_new and is_held_back(period, priority)), (
                f"{after.name} starts {allocation} in the quiet hours {period}"
            )


def check_time_limit(address: str, known: TrialState, after: TrialState) -> None:
    """Check that a trial without time left begins no run, and that used time is never forgotten.

    Raises AssertionError.
    """
    if after.epoch > known.epoch:
        assert remaining_time_ms(after) != 0, f"{address} runs beyond its max_trial_duration"
    continues = after.run_generation > known.run_generation
    assert continues or after.used_ms >= known.used_ms, f"{address} forgets used time"


def check_restart_window(address: str, known: TrialState, after: TrialState) -> None:
    """Check that a trial with too many failures within the window ends. Raises AssertionError."""
    settings = after.settings
    if settings.restart_window_ms is None or after.restarts == known.restarts:
        return
    times = after.failure_times
    is_allowed = len(times) <= settings.max_restarts
    assert after.status.is_final or is_allowed, f"{address} restarts after failures at {times}"
    window_ms = settings.restart_window_ms
    assert all(times[-1] - time_ms < window_ms for time_ms in times), f"{address} keeps {times}"
