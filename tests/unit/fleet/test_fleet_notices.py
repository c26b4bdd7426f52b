"""Announcements come from agents and from the cloud, each more than once, and go by themselves."""

from control_plane.dispatch import due
from control_plane.dispatch.engine import Engine
from control_plane.fleet.notices import KEPT_MS, Announcement, announce, announcements
from control_plane.state.memory import MemoryTable

END = Announcement("i-1", 120_000)
ADVICE = Announcement("i-1")


def test_what_was_announced_is_kept_as_it_was_first_said() -> None:
    table = MemoryTable()
    assert announce(table, END, 1_000)
    assert not announce(table, Announcement("i-1", 121_000), 2_000)
    assert announce(table, Announcement("i-2", 150_000), 2_000)
    assert list(announcements(table)) == [END, Announcement("i-2", 150_000)]


def test_an_end_follows_advice() -> None:
    table = MemoryTable()
    assert announce(table, ADVICE, 1_000)
    assert announce(table, END, 2_000)
    assert list(announcements(table)) == [END, ADVICE]


def test_an_announcement_goes_once_it_matters_to_nobody() -> None:
    table = MemoryTable()
    now_ms = [1_000]
    engine = Engine(table, lambda: now_ms[0])
    announce(table, END, now_ms[0])
    now_ms[0] += KEPT_MS - 1
    due.drive(engine)
    assert list(announcements(table)) == [END]
    now_ms[0] += 1
    due.drive(engine)
    assert list(announcements(table)) == []
