"""The times of cron expressions, also where clocks change."""

from datetime import datetime
from itertools import islice

import pytest

from control_plane.cron_times import CronInvalid, CronTimes, ZoneUnknown

BERLIN = "Europe/Berlin"


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp()) * 1_000


def times(cron: str, after: str, count: int, zone: str = BERLIN) -> list[int]:
    return list(islice(CronTimes(cron, zone).times_after(ms(after)), count))


@pytest.mark.parametrize(
    ("cron", "expected"),
    [
        ("30 3 * * *", "2026-01-01T03:30+01:00"),
        ("*/20 * * * *", "2026-01-01T00:20+01:00"),
        ("5,10-12 4 * * *", "2026-01-01T04:05+01:00"),
        # 1 January 2026 is a Thursday.
        ("0 9 * * mon-fri", "2026-01-01T09:00+01:00"),
        ("0 9 * * SUN", "2026-01-04T09:00+01:00"),
        ("0 9 * * 7", "2026-01-04T09:00+01:00"),
        ("0 0 1 feb *", "2026-02-01T00:00+01:00"),
        ("@daily", "2026-01-02T00:00+01:00"),
        ("@HOURLY", "2026-01-01T01:00+01:00"),
        ("@weekly", "2026-01-04T00:00+01:00"),
        ("@monthly", "2026-02-01T00:00+01:00"),
        ("@yearly", "2027-01-01T00:00+01:00"),
    ],
)
def test_expressions_have_the_times_of_cron(cron: str, expected: str) -> None:
    assert CronTimes(cron, BERLIN).next_time(ms("2026-01-01T00:00+01:00")) == ms(expected)


def test_skipped_time_runs_after_the_change() -> None:
    # On 29 March 2026 in Berlin, 02:00 is followed by 03:00.
    assert times("30 2 * * *", "2026-03-28T12:00+01:00", 2) == [
        ms("2026-03-29T03:00+02:00"),
        ms("2026-03-30T02:30+02:00"),
    ]


@pytest.mark.parametrize(
    "after", ["2026-10-24T12:00+02:00", "2026-10-25T02:00+02:00", "2026-10-25T02:29:59+02:00"]
)
def test_repeated_time_runs_once(after: str) -> None:
    # On 25 October 2026 in Berlin, the hour from 02:00 is repeated.
    assert times("30 2 * * *", after, 2) == [
        ms("2026-10-25T02:30+02:00"),
        ms("2026-10-26T02:30+01:00"),
    ]


@pytest.mark.parametrize(
    "after", ["2026-10-25T02:30+02:00", "2026-10-25T02:50+02:00", "2026-10-25T02:10+01:00"]
)
def test_repeated_time_does_not_run_again(after: str) -> None:
    assert times("30 2 * * *", after, 1) == [ms("2026-10-26T02:30+01:00")]


def test_hourly_times_include_the_repeated_hour() -> None:
    found = times("0 * * * *", "2026-10-25T01:30+02:00", 3)
    assert found == [
        ms("2026-10-25T02:00+02:00"),
        ms("2026-10-25T02:00+01:00"),
        ms("2026-10-25T03:00+01:00"),
    ]


@pytest.mark.parametrize(
    "cron",
    [
        *("", "* * * *", "* * * * * *", "60 * * * *", "* 24 * * *", "* * 0 * *", "* * * 13 *"),
        *("* * * * 8", "*/0 * * * *", "5-1 * * * *", "a * * * *", "1, * * * *", "-1 * * * *"),
        *("٣ * * * *", "0 0 30 2 *", "@reboot", "@", "0 0 * * ²L", "0 0 1#2/3 * *"),
    ],
)
def test_invalid_expressions_are_refused(cron: str) -> None:
    with pytest.raises(CronInvalid):
        CronTimes(cron, "UTC")


@pytest.mark.parametrize("zone", ["", "Berlin", "Europe", "../../etc/passwd", "/etc/passwd", "\0"])
def test_unknown_time_zones_are_refused(zone: str) -> None:
    with pytest.raises(ZoneUnknown):
        CronTimes("@daily", zone)
