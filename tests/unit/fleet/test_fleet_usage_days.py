"""The daily sums of usage: closed days, parts of rows, concurrent passes and bounded reads."""

import logging
from collections.abc import Callable, Sequence
from datetime import timedelta

import pytest

from control_plane.actors.cost import Usage, encode_usage, usage_partition, usage_sort_key
from control_plane.fleet import usage_days
from control_plane.fleet.bills import day_start_ms, utc_day
from control_plane.fleet.usage_days import (
    DayCosts,
    decode_day,
    encode_day,
    read_summed_days,
    sum_closed_days,
    usage_days_partition,
)
from control_plane.queries import cost as cost_queries
from control_plane.state.row_ranges import read_rows
from control_plane.state.table import Expect, Key, Page, Put, StateTable, Write
from tests.unit.api.cluster import NOW_MS, Cluster

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
DOLLAR = 1_000_000
TODAY = utc_day(NOW_MS)
MIDNIGHT_MS = day_start_ms(TODAY)
YEAR_AGO = TODAY - timedelta(days=365)


def store(table: StateTable, usages: Sequence[Usage]) -> None:
    puts = [
        Put(
            Key(usage_partition("default"), usage_sort_key(usage)),
            1,
            encode_usage(usage),
            Expect.ABSENT,
        )
        for usage in usages
    ]
    for n in range(0, len(puts), 100):
        table.commit(puts[n : n + 100])


def stored_sorts(table: StateTable) -> list[str]:
    return [row.key.sort for row in read_rows(table, usage_days_partition("default"))]


def test_allocation_over_midnight_is_stored_on_the_day_of_its_end(cluster: Cluster) -> None:
    table = cluster.services.table
    # The allocation ran for an hour on each side of the midnight two days ago.
    midnight = MIDNIGHT_MS - 2 * DAY_MS
    store(table, [Usage(1, 1, 1, midnight - HOUR_MS, midnight + HOUR_MS, 3 * DOLLAR)])
    day = TODAY - timedelta(days=2)
    assert sum_closed_days(table, "default", NOW_MS) == 1
    assert stored_sorts(table) == [f"{day.isoformat()}.000"]
    halves = {day - timedelta(days=1): 1_500_000, day: 1_500_000}
    assert read_summed_days(table, "default", day).costs == (DayCosts(1, halves),)


def test_day_stays_open_for_a_day_after_its_end(cluster: Cluster) -> None:
    table = cluster.services.table
    store(table, [Usage(1, 1, 1, MIDNIGHT_MS - HOUR_MS, MIDNIGHT_MS - 1, DOLLAR)])
    assert sum_closed_days(table, "default", MIDNIGHT_MS + DAY_MS - 1) == 0
    assert sum_closed_days(table, "default", MIDNIGHT_MS + DAY_MS) == 1


def test_concurrent_passes_store_the_same_sums_once(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = cluster.services.table
    ended_ms = MIDNIGHT_MS - 5 * DAY_MS
    store(table, [Usage(1, 1, 1, ended_ms - HOUR_MS, ended_ms, DOLLAR)])
    commit: Callable[[Sequence[Write]], None] = table.commit

    def lose_race(writes: Sequence[Write]) -> None:
        monkeypatch.setattr(table, "commit", commit)
        sum_closed_days(table, "default", NOW_MS)
        commit(writes)

    monkeypatch.setattr(table, "commit", lose_race)
    sum_closed_days(table, "default", NOW_MS)
    (summed,) = read_summed_days(table, "default", YEAR_AGO).costs
    assert sum(summed.days.values()) == DOLLAR


def test_sums_of_a_day_are_divided_among_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage_days, "ROW_BYTES", 100)
    # An entry such as [17,{"2027-01-15":1}] has 21 bytes: a row has room for four.
    costs = [DayCosts(number, {TODAY: 1}) for number in range(10, 20)]
    bodies = encode_day(costs)
    assert [len(decode_day(body)) for body in bodies] == [4, 4, 2]
    assert all(len(body) <= 100 for body in bodies)
    assert [cost for body in bodies for cost in decode_day(body)] == costs


def test_too_large_day_is_logged_and_stays_open(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(usage_days, "ROWS_MAX", 0)
    table = cluster.services.table
    ended_ms = MIDNIGHT_MS - 5 * DAY_MS
    store(table, [Usage(1, 1, 1, ended_ms - HOUR_MS, ended_ms, DOLLAR)])
    with caplog.at_level(logging.WARNING):
        assert sum_closed_days(table, "default", NOW_MS) == 0
    assert "the usage of pool default on 2027-01-10 is too large for sums" in caplog.text
    (cost,) = cost_queries.costs(cluster.services, "default", YEAR_AGO)
    assert isinstance(cost, Usage)


def test_report_on_a_year_reads_few_usage_rows(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = cluster.services.table
    # 10,000 allocations over 365 days, which are about 27 a day.
    step_ms = 365 * DAY_MS // 10_000
    ends = [NOW_MS - n * step_ms for n in range(10_000)]
    store(
        table,
        [Usage(n % 40 + 1, n + 1, 1, end - HOUR_MS, end, 10_000) for n, end in enumerate(ends)],
    )
    while sum_closed_days(table, "default", NOW_MS):
        pass
    read: list[str] = []
    query = table.query

    def count(partition: str, first: str, last: str, **options: int) -> Page:
        page = query(partition, first, last, **options)  # type: ignore[arg-type]
        read.extend(partition for _ in page.rows)
        return page

    monkeypatch.setattr(table, "query", count)
    costs = cost_queries.costs(cluster.services, "default", YEAR_AGO)
    span = cost_queries.DaySpan(YEAR_AGO - timedelta(days=1), TODAY)
    assert sum(span.cost_within(cost) for cost in costs) == 10_000 * 10_000
    # Each closed day has a row, and only the last two days are read by allocation.
    assert read.count(usage_days_partition("default")) <= 365
    assert read.count(usage_partition("default")) <= 2 * 28


def test_deleted_experiment_keeps_its_cost(cluster: Cluster) -> None:
    table = cluster.services.table
    ended_ms = MIDNIGHT_MS - 5 * DAY_MS
    # The experiment of the usage does not exist.
    store(table, [Usage(7, 1, 1, ended_ms - HOUR_MS, ended_ms, DOLLAR)])
    before = [cluster.get(f"/cost?by={by}").json for by in ("experiment", "user", "pool", "day")]
    assert sum_closed_days(table, "default", NOW_MS) == 1
    after = [cluster.get(f"/cost?by={by}").json for by in ("experiment", "user", "pool", "day")]
    assert after == before
    assert after[0]["total"]["cost"] == 1.0
