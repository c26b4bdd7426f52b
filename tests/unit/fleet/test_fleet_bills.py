"""The daily costs of ended and running instances."""

from datetime import date
from pathlib import Path

from control_plane.fleet.bills import (
    bill_total,
    bills_partition,
    day_start_ms,
    encode_bill,
    instance_bill,
    month_cost_micros,
    pool_bill,
)
from control_plane.fleet.records import InstanceRow, InstanceState, Market, Offering
from control_plane.state.sqlite import SqliteTable
from control_plane.state.table import Expect, Key, Put

HOUR_MS = 3_600_000
DOLLAR = 1_000_000
FIRST, SECOND = date(2026, 11, 30), date(2026, 12, 1)
GPU = Offering("gpu", "g5.xlarge", "a", Market.SPOT, 1, price_per_hour=0.3)


def instance(launched_ms: int, ended_ms: int | None = None) -> InstanceRow:
    return InstanceRow(
        id="i-1",
        pool="gpus",
        offering=GPU,
        state=InstanceState.RUNNING if ended_ms is None else InstanceState.ENDED,
        launched_ms=launched_ms,
        intent="n-1",
        ended_ms=ended_ms,
    )


def test_bill_splits_the_running_time_by_day() -> None:
    midnight = day_start_ms(SECOND)
    # an hour on the first day, half an hour on the second: 0.30 and 0.15 dollars
    row = instance(midnight - HOUR_MS, midnight + HOUR_MS // 2)
    assert instance_bill(row, midnight + 9 * HOUR_MS) == {FIRST: 300_000, SECOND: 150_000}


def test_running_instance_costs_until_now() -> None:
    midnight = day_start_ms(SECOND)
    assert instance_bill(instance(midnight), midnight + 2 * HOUR_MS) == {SECOND: 600_000}


def test_instance_without_a_price_has_no_bill() -> None:
    local = Offering("local", "process", "here", Market.ON_DEMAND, 2)
    row = InstanceRow("i-1", "gpus", local, InstanceState.RUNNING, 0, "n-1")
    assert instance_bill(row, HOUR_MS) == {}


def test_daily_costs_add_up_to_the_total() -> None:
    # A thousandth of a second costs less than a micro-dollar: no cost is rounded twice.
    start = day_start_ms(FIRST) + 86_399_999
    row = instance(start, start + 2)
    assert sum(instance_bill(row, start + 10).values()) == 300_000 * 2 // HOUR_MS


def test_pool_bill_adds_stored_sums_and_running_instances(tmp_path: Path) -> None:
    table = SqliteTable(tmp_path / "state.db", synchronous="NORMAL")
    november = Put(
        Key(bills_partition("gpus"), "2026-11"), 1, encode_bill({FIRST: DOLLAR}), Expect.ABSENT
    )
    december = Put(
        Key(bills_partition("gpus"), "2026-12"), 1, encode_bill({SECOND: 2 * DOLLAR}), Expect.ABSENT
    )
    table.commit((november, december))
    now_ms = day_start_ms(SECOND) + HOUR_MS
    both = {FIRST: DOLLAR, SECOND: 2 * DOLLAR}
    assert pool_bill(table, "gpus", FIRST, SECOND, now_ms) == both
    assert pool_bill(table, "gpus", SECOND, SECOND, now_ms) == {SECOND: 2 * DOLLAR}
    assert month_cost_micros(table, "gpus", now_ms) == 2 * DOLLAR
    table.close()


def test_bills_are_added_by_day() -> None:
    assert bill_total([{SECOND: 1}, {FIRST: 2, SECOND: 3}]) == {FIRST: 2, SECOND: 4}
