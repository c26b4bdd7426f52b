"""The periods of quiet hours in the time zones of the rules.

Clock times follow the time zone when its clocks change. A time that the change skips moves to the
moment of the change. Of a repeated time, quiet hours begin at the first occurrence and end at the
last.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, time, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

from control_plane.cron_times import find_zone
from control_plane.scheduling.quiet_hours import QuietHours, QuietPeriod

PERIODS_KEPT = 4
"""The most periods that a pool stores."""
LONGEST_MS = 8 * 86_400_000
"""No quiet hours may last as long: a pool without other hours would never start work."""
_DAYS_BEFORE = 9
_DAYS_AFTER = 10
_MINUTES_PER_DAY = 24 * 60


class AlwaysQuiet(ValueError):
    """Quiet hours without an end."""


def upcoming_periods(rules: Sequence[QuietHours], now_ms: int) -> tuple[QuietPeriod, ...]:
    """Return the present and the next periods of the rules, sorted, at most PERIODS_KEPT.

    Periods do not overlap. Where rules overlap, running work is preempted if any rule says so, and
    a job must be urgent for all rules.

    Raises:
        ZoneUnknown: a time zone does not exist.
        AlwaysQuiet: the quiet hours have no end.
    """
    intervals = [interval for rule in rules for interval in _intervals(rule, now_ms)]
    periods = [period for period in _merge(intervals) if period.until_ms > now_ms]
    if periods and _run_length_ms(periods) >= LONGEST_MS:
        raise AlwaysQuiet("cover the whole week, so that no work would ever start")
    return tuple(periods[:PERIODS_KEPT])


def renewed_periods(
    rules: Sequence[QuietHours], stored: Sequence[QuietPeriod], now_ms: int
) -> tuple[QuietPeriod, ...]:
    """Return `stored` until the first stored period has ended, and then the upcoming periods.

    Stored periods from a host with a wrong clock are replaced at once. Raises ZoneUnknown and
    AlwaysQuiet as `upcoming_periods` does.
    """
    upcoming = upcoming_periods(rules, now_ms)
    return tuple(stored) if tuple(stored[:1]) == upcoming[:1] else upcoming


def _intervals(rule: QuietHours, now_ms: int) -> Iterator[QuietPeriod]:
    """Yield the periods of a single rule around the time `now_ms`, in order. They may overlap."""
    zone = find_zone(rule.time_zone)
    today = datetime.fromtimestamp(now_ms // 1000, UTC).astimezone(zone).date()
    for offset in range(-_DAYS_BEFORE, _DAYS_AFTER):
        day = today + timedelta(days=offset)
        if day.weekday() not in rule.days:
            continue
        end = rule.end if rule.end > rule.begin else rule.end + _MINUTES_PER_DAY
        midnight = datetime.combine(day, time())
        from_ms = _moment_ms(midnight + timedelta(minutes=rule.begin), zone, fold=0)
        until_ms = _moment_ms(midnight + timedelta(minutes=end), zone, fold=1)
        if from_ms < until_ms:
            yield QuietPeriod(from_ms, until_ms, rule.checkpoints, rule.urgent_priority)


def _moment_ms(local: datetime, zone: ZoneInfo, fold: int) -> int:
    """Return the moment of a time of the zone's clocks, in epoch ms.

    Args:
        local: the time without a time zone.
        zone: the time zone.
        fold: 0 for the first and 1 for the last occurrence of a repeated time.
    """
    first, last = (_utc_seconds(local, zone, which) for which in (0, 1))
    if first <= last:
        return (last if fold else first) * 1000
    # The clocks skip the time. The change is between both moments.
    before, after = last, first
    while after - before > 1:
        middle = (before + after) // 2
        if _offset(middle, zone) == _offset(before, zone):
            before = middle
        else:
            after = middle
    return after * 1000


def _utc_seconds(local: datetime, zone: ZoneInfo, fold: int) -> int:
    return int(local.replace(tzinfo=zone, fold=fold).timestamp())


def _offset(seconds: int, zone: ZoneInfo) -> timedelta | None:
    return datetime.fromtimestamp(seconds, UTC).astimezone(zone).utcoffset()


def _merge(intervals: Sequence[QuietPeriod]) -> list[QuietPeriod]:
    """Return periods without overlaps, in order. Adjacent periods of equal kinds are one."""
    bounds = sorted({time for each in intervals for time in (each.from_ms, each.until_ms)})
    merged: list[QuietPeriod] = []
    for from_ms, until_ms in pairwise(bounds):
        covering = [
            each for each in intervals if each.from_ms <= from_ms and each.until_ms >= until_ms
        ]
        if not covering:
            continue
        checkpoints = any(each.checkpoints for each in covering)
        urgent = _common_priority(each.urgent_priority for each in covering)
        period = QuietPeriod(from_ms, until_ms, checkpoints, urgent)
        if merged and _continues(merged[-1], period):
            period = replace(period, from_ms=merged.pop().from_ms)
        merged.append(period)
    return merged


def _continues(last: QuietPeriod, period: QuietPeriod) -> bool:
    """Return whether `period` follows `last` without a gap, with equal rules for work."""
    kinds = [(each.checkpoints, each.urgent_priority) for each in (last, period)]
    return last.until_ms == period.from_ms and kinds[0] == kinds[1]


def _common_priority(priorities: Iterable[int | None]) -> int | None:
    """Return the priority up to which jobs pass all rules. None if a rule lets no job pass."""
    return min((priority or 0 for priority in priorities), default=0) or None


def _run_length_ms(periods: Sequence[QuietPeriod]) -> int:
    """Return the length of the first period, with all periods that follow without a gap, in ms."""
    end_ms = periods[0].until_ms
    for period in periods[1:]:
        if period.from_ms == end_ms:
            end_ms = period.until_ms
    return end_ms - periods[0].from_ms
