"""The largest message about the quiet hours of a pool."""

from control_plane.actors.messages.pool import QuietHoursChecked
from control_plane.config.quiet_hours import RULES_MAX
from control_plane.quiet_times import PERIODS_KEPT
from control_plane.scheduling.quiet_hours import QuietHours, QuietPeriod

NOW_MS = 1_800_000_000_000
# The longest name of a time zone.
ZONE = "z" * 64


def largest_quiet_hours() -> QuietHoursChecked:
    rule = QuietHours(tuple(range(7)), 1_439, 1_440, ZONE, True, 99)
    period = QuietPeriod(NOW_MS, NOW_MS + 1, True, 99)
    return QuietHoursChecked((rule,) * RULES_MAX, (period,) * PERIODS_KEPT)
