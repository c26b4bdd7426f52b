"""The hours of the week that belong to people."""

from __future__ import annotations

import pytest

from detcloud.agent.people.hours import DAYS, HoursInvalid, parse_hours

MON, FRI, SAT, SUN = 0, 4, 5, 6


@pytest.mark.parametrize(
    ("text", "day", "clock", "covered"),
    [
        ("mon-fri 09:00-18:00", MON, "09:00", True),
        ("mon-fri 09:00-18:00", FRI, "17:59", True),
        ("mon-fri 09:00-18:00", FRI, "18:00", False),
        ("mon-fri 09:00-18:00", SAT, "12:00", False),
        ("sat,sun 10:00-12:00", SUN, "11:00", True),
        ("08:00-24:00", SUN, "23:59", True),
        # The hours of Friday end on Saturday.
        ("fri 22:00-06:00", FRI, "23:00", True),
        ("fri 22:00-06:00", SAT, "05:59", True),
        ("fri 22:00-06:00", SAT, "22:00", False),
        ("fri 22:00-06:00", FRI, "05:00", False),
        ("sun 22:00-06:00", MON, "01:00", True),
        # Equal times are a whole day.
        ("sat 00:00-00:00", SAT, "23:59", True),
        ("sat 00:00-00:00", SUN, "00:00", False),
        # A range may pass the end of the week.
        ("sat-mon 09:00-10:00", SUN, "09:30", True),
        (" MON-Fri  9:00 - 18:00 ", MON, "09:00", True),
    ],
)
def test_hours_cover_minutes(text: str, day: int, clock: str, covered: bool) -> None:
    hour, minute = clock.split(":")
    assert parse_hours(text).cover(day, int(hour) * 60 + int(minute)) is covered


def test_hours_keep_their_text_for_users() -> None:
    assert parse_hours(" mon-fri   09:00-18:00 ").text == "mon-fri 09:00-18:00"
    assert parse_hours("01:00-02:00").days == frozenset(range(len(DAYS)))


@pytest.mark.parametrize(
    "text",
    [
        *("", "mon", "9-18", "mon-fri", "mon-xyz 09:00-18:00", "mo 1:00-2:00"),
        *("mon- 09:00-18:00", "09:00-18:00 mon"),
        *("25:00-26:00", "09:60-10:00", "24:00-01:00", "09:00-24:01"),
    ],
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(HoursInvalid, match=r"^must "):
        parse_hours(text)
