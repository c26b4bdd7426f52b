"""The periods of quiet hours, also where clocks change."""

from dataclasses import replace
from datetime import datetime

import pytest

from control_plane.cron_times import ZoneUnknown
from control_plane.quiet_times import (
    LONGEST_MS,
    PERIODS_KEPT,
    AlwaysQuiet,
    renewed_periods,
    upcoming_periods,
)
from control_plane.scheduling.quiet_hours import QuietHours, QuietPeriod

EVERY_DAY = tuple(range(7))
NIGHT = QuietHours(EVERY_DAY, 22 * 60, 6 * 60, "Europe/Berlin")
HOUR_MS = 3_600_000


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp()) * 1_000


def spans(*rules: QuietHours, now: str) -> list[tuple[int, int]]:
    periods = upcoming_periods(rules, ms(now))
    return [(period.from_ms, period.until_ms) for period in periods]


def test_night_ends_on_the_next_day() -> None:
    assert spans(NIGHT, now="2026-01-01T12:00+01:00")[:2] == [
        (ms("2026-01-01T22:00+01:00"), ms("2026-01-02T06:00+01:00")),
        (ms("2026-01-02T22:00+01:00"), ms("2026-01-03T06:00+01:00")),
    ]


def test_present_period_is_first_until_its_end() -> None:
    present = (ms("2026-01-01T22:00+01:00"), ms("2026-01-02T06:00+01:00"))
    assert spans(NIGHT, now="2026-01-01T22:00+01:00")[0] == present
    assert spans(NIGHT, now="2026-01-02T05:59:59+01:00")[0] == present
    assert spans(NIGHT, now="2026-01-02T06:00+01:00")[0] != present


def test_days_are_the_days_of_the_begin() -> None:
    # 2 January 2026 is a Friday, index 4.
    friday = replace(NIGHT, days=(4,))
    assert spans(friday, now="2026-01-01T00:00+01:00")[0] == (
        ms("2026-01-02T22:00+01:00"),
        ms("2026-01-03T06:00+01:00"),
    )


def test_adjacent_days_are_one_period() -> None:
    # A weekend from Saturday 00:00 to Sunday 24:00.
    weekend = QuietHours((5, 6), 0, 24 * 60, "UTC")
    assert spans(weekend, now="2026-01-01T00:00+00:00")[0] == (
        ms("2026-01-03T00:00+00:00"),
        ms("2026-01-05T00:00+00:00"),
    )
    # The begin stays when most of the period is over.
    assert spans(weekend, now="2026-01-04T23:00+00:00")[0][0] == ms("2026-01-03T00:00+00:00")


@pytest.mark.parametrize(
    ("now", "begin", "end"),
    [
        # On 29 March 2026 in Berlin, 02:00 is followed by 03:00, so that a night has seven hours.
        ("2026-03-28T12:00+01:00", "2026-03-28T22:00+01:00", "2026-03-29T06:00+02:00"),
        # On 25 October 2026 in Berlin, the hour from 02:00 is repeated.
        ("2026-10-24T12:00+02:00", "2026-10-24T22:00+02:00", "2026-10-25T06:00+01:00"),
    ],
)
def test_night_follows_the_clocks(now: str, begin: str, end: str) -> None:
    assert spans(NIGHT, now=now)[0] == (ms(begin), ms(end))


def test_skipped_times_move_to_the_change() -> None:
    rule = replace(NIGHT, begin=60, end=150)
    change = ms("2026-03-29T03:00+02:00")
    assert spans(rule, now="2026-03-29T00:00+01:00")[0] == (ms("2026-03-29T01:00+01:00"), change)
    later = replace(NIGHT, begin=150, end=240)
    assert spans(later, now="2026-03-29T00:00+01:00")[0] == (change, ms("2026-03-29T04:00+02:00"))
    # Both times are skipped on this day.
    skipped = replace(NIGHT, begin=130, end=170)
    assert spans(skipped, now="2026-03-29T00:00+01:00")[0][0] == ms("2026-03-30T02:10+02:00")


def test_repeated_times_begin_first_and_end_last() -> None:
    rule = replace(NIGHT, begin=150, end=160)
    assert spans(rule, now="2026-10-25T00:00+02:00")[0] == (
        ms("2026-10-25T02:30+02:00"),
        ms("2026-10-25T02:40+01:00"),
    )


def test_overlap_has_the_strictest_rules() -> None:
    day = QuietHours(EVERY_DAY, 8 * 60, 12 * 60, "UTC", urgent_priority=20)
    strict = QuietHours(EVERY_DAY, 10 * 60, 14 * 60, "UTC", checkpoints=True, urgent_priority=5)
    start = ms("2026-01-01T00:00+00:00")
    periods = upcoming_periods((day, strict), start)
    hours = [start + hour * HOUR_MS for hour in (8, 10, 14)]
    assert periods[:2] == (
        QuietPeriod(hours[0], hours[1], urgent_priority=20),
        QuietPeriod(hours[1], hours[2], checkpoints=True, urgent_priority=5),
    )
    closed = replace(strict, urgent_priority=None)
    assert upcoming_periods((day, closed), start)[1].urgent_priority is None


def test_few_periods_are_kept() -> None:
    assert len(spans(NIGHT, now="2026-01-01T12:00+01:00")) == PERIODS_KEPT
    assert len(spans(replace(NIGHT, days=(3,)), now="2026-01-01T12:00+01:00")) == 2


def test_hours_without_an_end_are_refused() -> None:
    whole = QuietHours(EVERY_DAY, 0, 24 * 60, "UTC")
    with pytest.raises(AlwaysQuiet, match="cover the whole week"):
        upcoming_periods((whole,), 0)
    halves = (replace(whole, end=12 * 60), replace(whole, begin=12 * 60))
    with pytest.raises(AlwaysQuiet):
        upcoming_periods(halves, 0)
    six_days = replace(whole, days=(0, 1, 2, 3, 4, 5))
    # 5 January 1970 is the first Monday.
    assert upcoming_periods((six_days,), 4 * 24 * HOUR_MS)[0].until_ms == 10 * 24 * HOUR_MS


@pytest.mark.parametrize("zone", ["Mars/Olympus", "../etc/passwd", "", "Europe"])
def test_unknown_time_zone_is_refused(zone: str) -> None:
    with pytest.raises(ZoneUnknown):
        upcoming_periods((replace(NIGHT, time_zone=zone),), 0)


def test_stored_periods_stay_until_the_first_has_ended() -> None:
    now_ms = ms("2026-01-01T12:00+01:00")
    stored = upcoming_periods((NIGHT,), now_ms)
    assert renewed_periods((NIGHT,), stored, stored[0].until_ms - 1) == stored
    later = renewed_periods((NIGHT,), stored, stored[0].until_ms)
    assert later[:3] == stored[1:]
    assert len(later) == PERIODS_KEPT


def test_stored_periods_of_a_fast_clock_are_replaced() -> None:
    now_ms = ms("2026-01-01T12:00+01:00")
    early = upcoming_periods((NIGHT,), now_ms + LONGEST_MS)
    assert renewed_periods((NIGHT,), early, now_ms) == upcoming_periods((NIGHT,), now_ms)
