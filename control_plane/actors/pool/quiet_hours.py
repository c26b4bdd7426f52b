"""The quiet hours of a pool, in which the pool starts no work.

The pool stores the present and the next periods, and compares them with the time of each fold.
Therefore no work starts after the begin of a period, even before the maintenance has announced the
begin. The announcement preempts running work, and the announcement of the end starts work.
"""

from dataclasses import replace

from control_plane.actors.messages.pool import PoolSettings, QuietHoursChecked
from control_plane.actors.pool.state import PoolState, settings_of
from control_plane.actors.step import StepContext
from control_plane.evolve import evolve
from control_plane.scheduling.quiet_hours import (
    QuietPeriod,
    moment_text,
    next_quiet_ms,
    period_at,
    quiet_text,
)


def apply_quiet_hours(
    state: PoolState, message: QuietHoursChecked, context: StepContext
) -> PoolState:
    """Store the periods of a check in the part `settings`, and return the state.

    The fold ends with a pass of the scheduler. A check of other rules, and a check without a
    change, return `state` itself.
    """
    settings = settings_of(context)
    if message.rules != settings.quiet_hours:
        return state
    after = with_periods(settings, message.periods, context.now_ms)
    if after == settings:
        return state
    context.write_part("settings", after)
    begins_ms = next_quiet_ms(after.quiet_periods, context.now_ms)
    if text := quiet_text(state.name, after.quiet_periods, context.now_ms):
        context.add_reason(text)
    elif begins_ms is not None:
        context.add_reason(f"the next quiet hours begin at {moment_text(begins_ms)}")
    return evolve(state, needs_scheduling=True, settings_changed=True)


def with_periods(
    settings: PoolSettings, periods: tuple[QuietPeriod, ...], now_ms: int
) -> PoolSettings:
    """Return the settings with the periods, and with the end of the last stored period.

    Stored periods that end early, because the rules were changed, end now.
    """
    is_quiet = period_at(periods, now_ms) is not None
    ended_ms = quiet_ended_ms(settings, now_ms)
    if period_at(settings.quiet_periods, now_ms) is not None and not is_quiet:
        ended_ms = now_ms
    return replace(settings, quiet_periods=periods, is_quiet=is_quiet, quiet_ended_ms=ended_ms)


def quiet_ended_ms(settings: PoolSettings, now_ms: int) -> int:
    """Return the end of the last quiet hours before `now_ms`, in epoch ms. Return 0 without any.

    Ends that the maintenance has not announced yet count, too. A later end is from a host with a
    fast clock, and is ignored.
    """
    ends_ms = (settings.quiet_ended_ms, *(period.until_ms for period in settings.quiet_periods))
    return max((end_ms for end_ms in ends_ms if end_ms <= now_ms), default=0)
