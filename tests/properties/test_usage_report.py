"""Reports of use: all groupings have the same sums, and used and wasted money is what was paid."""

from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from control_plane.actors.cost import Usage, encode_usage, usage_partition, usage_sort_key
from control_plane.actors.use import Use
from control_plane.fleet.bills import bills_partition, encode_bill, split_by_month, utc_day
from control_plane.fleet.usage_days import split_by_day, sum_closed_days
from control_plane.queries.cost import DaySpan, costs, usages
from control_plane.queries.usage import UsageGrouping, UsageReport, usage_report, use_within
from control_plane.state.table import Expect, Key, Put
from tests.unit.api.cluster import NOW_MS, Cluster, build_cluster

DAY_MS = 86_400_000
HOUR_MS = 3_600_000
TODAY = utc_day(NOW_MS)
POOL = "default"

# The hours from the end to now, the hours of the run, the experiment, the micro-dollars, the slots,
# and the shares of measured, busy, low and memory time in percent. 0 slots: an old row.
ALLOCATIONS = st.lists(
    st.tuples(
        st.integers(0, 24 * 20),
        st.integers(0, 24 * 5),
        st.integers(1, 3),
        st.integers(0, 10**7),
        st.integers(0, 4),
        st.tuples(*[st.integers(0, 100)] * 4),
    ),
    max_size=10,
)
Drawn = list[tuple[int, int, int, int, int, tuple[int, int, int, int]]]


@given(allocations=ALLOCATIONS, idle=st.integers(0, 10**7), passes=st.lists(st.integers(0, 20)))
@settings(deadline=None, max_examples=25)
def test_groupings_conserve_amounts(allocations: Drawn, idle: int, passes: list[int]) -> None:
    with TemporaryDirectory() as folder:
        cluster = build_cluster(Path(folder))
        found = usages_of(allocations)
        store(cluster, found, idle)
        for ago in sorted(passes[:3], reverse=True):
            sum_closed_days(cluster.services.table, POOL, NOW_MS - ago * DAY_MS)
        since = TODAY - timedelta(days=60)
        reports = [usage_report(cluster.services, by, since, TODAY) for by in UsageGrouping]
        for report in reports:
            check_sums(report)
        total = reports[0].total
        assert total.slot_hours * HOUR_MS == pytest.approx(sum(one.slot_ms for one in found))
        paid = sum(one.micros for one in found) + idle
        assert total.instance_cost == pytest.approx(paid / 1e6)
        used = total.cost - total.low_cost
        assert used + total.wasted == pytest.approx(paid / 1e6)
        assert total.low_cost <= total.cost


@given(allocations=ALLOCATIONS, day=st.integers(0, 25))
@settings(deadline=None, max_examples=25)
def test_sums_of_days_have_the_use_of_all_rows(allocations: Drawn, day: int) -> None:
    with TemporaryDirectory() as folder:
        cluster = build_cluster(Path(folder))
        store(cluster, usages_of(allocations), 0)
        sum_closed_days(cluster.services.table, POOL, NOW_MS)
        since = TODAY - timedelta(days=day)
        for span in (DaySpan(since, TODAY), DaySpan(since, since)):
            summed, rows = (
                [tuple(use_within(cost, span)) for cost in read(cluster.services, POOL, since)]
                for read in (costs, usages)
            )
            assert [sum(one) for one in zip(*summed, strict=True)] == [
                sum(one) for one in zip(*rows, strict=True)
            ]


def check_sums(report: UsageReport) -> None:
    """Check that the lines of a report add up to the total."""
    for name in ("slot_hours", "measured_hours", "cost", "low_cost"):
        parts = sum(getattr(item, name) for item in report.items)
        assert parts == pytest.approx(getattr(report.total, name)), (report.by, name)
    if report.by in ("pool", "day", "pool-day"):
        for name in ("instance_cost", "idle_cost", "wasted"):
            parts = sum(getattr(item, name) or 0 for item in report.items)
            assert parts == pytest.approx(getattr(report.total, name)), (report.by, name)


def usages_of(allocations: Drawn) -> list[Usage]:
    found = []
    for trial, (ended, run, experiment, micros, slots, shares) in enumerate(allocations, 1):
        start_ms, end_ms = NOW_MS - (ended + run) * HOUR_MS, NOW_MS - ended * HOUR_MS
        usage = Usage(experiment, trial, 1, start_ms, end_ms, micros if run else 0, slots)
        measured = usage.slot_ms * shares[0] // 100
        use = Use(measured, *(measured * share // 100 for share in shares[1:]))
        values = (use.measured_ms, use.busy_ms, use.low_ms, use.memory_ms)
        found.append(Usage(experiment, trial, 1, start_ms, end_ms, usage.micros, slots, *values))
    return found


def store(cluster: Cluster, found: list[Usage], idle: int) -> None:
    """Store the rows, and a bill of all allocations and of idle slots of today."""
    bill = {TODAY: idle}
    for usage in found:
        key = Key(usage_partition(POOL), usage_sort_key(usage))
        cluster.services.table.commit([Put(key, 1, encode_usage(usage), Expect.ABSENT)])
        for day, micros in split_by_day(usage).items():
            bill[day] = bill.get(day, 0) + micros
    for key, days in split_by_month(POOL, bill).items():
        assert key.partition == bills_partition(POOL)
        cluster.services.table.commit([Put(key, 1, encode_bill(days), Expect.ABSENT)])
