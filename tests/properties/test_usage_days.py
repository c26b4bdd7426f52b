"""Sums of closed days and rows of open days cost as much as all usage rows."""

from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from control_plane.actors.cost import Usage, encode_usage, usage_partition, usage_sort_key
from control_plane.fleet.bills import day_start_ms, utc_day
from control_plane.fleet.usage_days import (
    CLOSED_AFTER_MS,
    DayCosts,
    read_summed_days,
    sum_closed_days,
)
from control_plane.queries.cost import DaySpan, costs, usages
from control_plane.state.table import Expect, Key, Put
from tests.unit.api.cluster import NOW_MS, Cluster, build_cluster

DAY_MS = 86_400_000
HOUR_MS = 3_600_000
TODAY = utc_day(NOW_MS)

# The hours from the end to now, the hours of the run, the experiment and the micro-dollars.
ALLOCATIONS = st.lists(
    st.tuples(
        st.integers(0, 24 * 20), st.integers(0, 24 * 5), st.integers(1, 3), st.integers(1, 10**7)
    ),
    max_size=12,
)


@given(allocations=ALLOCATIONS, passes=st.lists(st.integers(0, 20), max_size=3), days=st.data())
@settings(deadline=None, max_examples=30)
def test_sums_and_open_days_cost_as_much_as_all_rows(
    allocations: list[tuple[int, int, int, int]], passes: list[int], days: st.DataObject
) -> None:
    with TemporaryDirectory() as folder:
        cluster = build_cluster(Path(folder))
        store(cluster, usages_of(allocations))
        table = cluster.services.table
        # Passes at earlier times leave later days open.
        for ago in sorted(passes, reverse=True):
            sum_closed_days(table, "default", NOW_MS - ago * DAY_MS)
        first, length = days.draw(st.tuples(st.integers(0, 25), st.integers(0, 25)))
        since = TODAY - timedelta(days=first)
        span = DaySpan(since, since + timedelta(days=length))
        for experiment in (1, 2, 3):
            assert sum(
                span.cost_within(cost)
                for cost in costs(cluster.services, "default", since)
                if cost.experiment == experiment
            ) == sum(
                span.cost_within(usage)
                for usage in usages(cluster.services, "default", since)
                if usage.experiment == experiment
            )


@given(allocations=ALLOCATIONS)
@settings(deadline=None, max_examples=15)
def test_only_days_that_ended_a_day_ago_have_sums(
    allocations: list[tuple[int, int, int, int]],
) -> None:
    with TemporaryDirectory() as folder:
        cluster = build_cluster(Path(folder))
        store(cluster, found := usages_of(allocations))
        table = cluster.services.table
        sum_closed_days(table, "default", NOW_MS)
        assert sum_closed_days(table, "default", NOW_MS) == 0
        since = TODAY - timedelta(days=40)
        summed = read_summed_days(table, "default", since)
        ends = [utc_day(usage.ended_ms) for usage in found]
        closed = [
            day for day in ends if day_start_ms(day + timedelta(days=1)) + CLOSED_AFTER_MS <= NOW_MS
        ]
        assert summed.unsummed_from == (max(closed) + timedelta(days=1) if closed else since)
        assert total(summed.costs) == sum(
            usage.micros for usage, day in zip(found, ends, strict=True) if day in closed
        )


def usages_of(allocations: list[tuple[int, int, int, int]]) -> list[Usage]:
    return [
        Usage(
            experiment,
            trial,
            1,
            NOW_MS - (ended + run) * HOUR_MS,
            NOW_MS - ended * HOUR_MS,
            micros,
        )
        for trial, (ended, run, experiment, micros) in enumerate(allocations, 1)
    ]


def store(cluster: Cluster, found: list[Usage]) -> None:
    for usage in found:
        key = Key(usage_partition("default"), usage_sort_key(usage))
        cluster.services.table.commit([Put(key, 1, encode_usage(usage), Expect.ABSENT)])


def total(costs: tuple[DayCosts, ...]) -> int:
    return sum(micros for cost in costs for micros in cost.days.values())
