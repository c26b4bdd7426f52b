"""Notices of instances, which agents and the cloud send repeatedly and which expire."""

from control_plane.engine import due_rows
from control_plane.engine.engine import Engine
from control_plane.fleet.notices import NOTICE_TTL_MS, InstanceNotice, read_notices, record_notice
from control_plane.state.memory import MemoryTable
from tests.engine_timing import UNHURRIED

END = InstanceNotice("i-1", 120_000)
ADVICE = InstanceNotice("i-1")


def test_first_notice_of_an_instance_is_kept() -> None:
    table = MemoryTable()
    assert record_notice(table, END, 1_000)
    assert not record_notice(table, InstanceNotice("i-1", 121_000), 2_000)
    assert record_notice(table, InstanceNotice("i-2", 150_000), 2_000)
    assert list(read_notices(table)) == [END, InstanceNotice("i-2", 150_000)]


def test_notice_of_an_end_follows_advice() -> None:
    table = MemoryTable()
    assert record_notice(table, ADVICE, 1_000)
    assert record_notice(table, END, 2_000)
    assert list(read_notices(table)) == [END, ADVICE]


def test_notice_expires() -> None:
    table = MemoryTable()
    now_ms = [1_000]
    engine = Engine(table, lambda: now_ms[0], UNHURRIED)
    record_notice(table, END, now_ms[0])
    now_ms[0] += NOTICE_TTL_MS - 1
    due_rows.process_due_rows(engine)
    assert list(read_notices(table)) == [END]
    now_ms[0] += 1
    due_rows.process_due_rows(engine)
    assert list(read_notices(table)) == []
