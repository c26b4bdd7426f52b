"""The check of a pool's quiet hours, which the tick runs together with the check of budgets.

The check announces the begin and the end of quiet hours, and computes the next periods. It reads
nothing: the caller has read the settings for the budget.
"""

from control_plane.actors import addresses
from control_plane.actors.messages.pool import PoolSettings, QuietHoursChecked
from control_plane.engine.engine import Engine
from control_plane.scheduling.quiet_hours import period_at


def check_quiet_hours(engine: Engine, pool: str, settings: PoolSettings) -> bool:
    """Post a QuietHoursChecked to a pool after the begin, the end or a change of quiet hours.

    Return whether the message was posted. A pool without quiet hours gets no message.

    Raises:
        ZoneUnknown: the machine lacks a time zone of the rules.
    """
    rules, stored = settings.quiet_hours, settings.quiet_periods
    if not rules:
        return False
    # Few pools have quiet hours, and the import slows the start of the tick
    # (bench/gcp_cold_starts.py).
    from control_plane.quiet_times import renewed_periods

    now_ms = engine.clock()
    periods = renewed_periods(rules, stored, now_ms)
    is_quiet = period_at(periods, now_ms) is not None
    if periods == stored and is_quiet == settings.is_quiet:
        return False
    message = QuietHoursChecked(rules, periods)
    engine.post_message(addresses.pool(pool), message, sender=f"quiet#{pool}")
    return True
