"""The daily sums of the costs and the use of a pool's slots.

A usage row is written in the commit that ends an allocation, and never changes. A day is closed
when no further allocation can end on the day. The sums of a closed day are computed from the usage
rows alone and committed together, once. Days are UTC days; amounts are whole micro-dollars.
"""

import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, timedelta
from typing import Final, NamedTuple

from control_plane.actors.cost import Usage, decode_usage, usage_partition
from control_plane.fleet.bills import day_start_ms, utc_day
from control_plane.rows import fleet_rows
from control_plane.state.row_ranges import read_rows
from control_plane.state.table import Conflict, Expect, Key, Put, StateTable

log = logging.getLogger(__name__)

CLOSED_AFTER_MS: Final = 86_400_000
"""The time from the end of a day until the day is closed.

A usage row has the time of its commit, also for a machine that was lost hours before. So only a
function whose clock is a day late could write a row of a closed day.
"""
DAYS_PER_PASS: Final = 31
"""The most days that a pass sums up, for pools with usage rows of earlier versions."""
ROW_BYTES: Final = 300_000
"""The most bytes of the body of a row of sums."""
ROWS_MAX: Final = 8
"""The most rows of a day. The rows of a day fit into a commit."""


class DayUse(NamedTuple):
    """The use of allocations on a day. The use is spread evenly over each run."""

    slot_ms: int = 0
    """The time of the slots, in ms."""
    measured_ms: int = 0
    """The slot time for which the use is known."""
    busy_ms: int = 0
    """The measured slot time, weighted with the share of computation."""
    low_ms: int = 0
    """The measured slot time with less than 5 % of computation."""
    memory_ms: int = 0
    """The measured slot time, weighted with the share of memory."""
    low_micros: int = 0
    """The cost of the time of low use, in micro-dollars."""

    def plus(self, other: "DayUse") -> "DayUse":
        """Return the sum of two uses."""
        return DayUse(*(left + right for left, right in zip(self, other, strict=True)))


NO_DAY_USE: Final = DayUse()


class DayCosts(NamedTuple):
    """The cost and the use of all allocations of an experiment that ended on a day."""

    experiment: int
    """The id of the experiment."""
    days: Mapping[date, int]
    """The cost in micro-dollars on each day of the allocations' runs."""
    uses: Mapping[date, DayUse] = {}
    """The use on each day of the runs. Empty in sums of earlier releases."""


class SummedDays(NamedTuple):
    """The stored sums of a pool."""

    costs: tuple[DayCosts, ...]
    """The sums, with an entry for each experiment and each day on which an allocation ended."""
    unsummed_from: date
    """The first day whose usage rows are not summed up."""


def usage_days_partition(pool: str) -> str:
    """Return the partition of a pool's daily sums."""
    return fleet_rows.USAGE_DAY.partition_of(pool)


def cost_until(usage: Usage, time_ms: int) -> int:
    """Return the micro-dollars that the allocation had cost by a time, spread evenly over the
    run.
    """
    return _part_until(usage.micros, usage, time_ms)


def use_until(usage: Usage, time_ms: int) -> DayUse:
    """Return the use of an allocation by a time, spread evenly over the run.

    Rows of earlier releases have no use.
    """
    whole = (usage.slot_ms, usage.measured_ms, usage.busy_ms, usage.low_ms, usage.memory_ms)
    amounts = (*whole, usage.low_micros)
    return DayUse(*(_part_until(amount, usage, time_ms) for amount in amounts))


def split_by_day(usage: Usage) -> dict[date, int]:
    """Return the cost of an allocation on each day of the run. Days without a cost are left out.

    The days add up to the whole cost.
    """
    days: dict[date, int] = {}
    day, last, before = utc_day(usage.started_ms), utc_day(usage.ended_ms), 0
    while day <= last:
        until = cost_until(usage, day_start_ms(day + timedelta(days=1)))
        if until > before:
            days[day] = until - before
        day, before = day + timedelta(days=1), until
    return days


def split_use_by_day(usage: Usage) -> dict[date, DayUse]:
    """Return the use of an allocation on each day of the run. The days add up to the whole use.

    Return {} for a row of an earlier release, which has no use.
    """
    days: dict[date, DayUse] = {}
    day, last, before = utc_day(usage.started_ms), utc_day(usage.ended_ms), NO_DAY_USE
    while day <= last and usage.slots:
        until = use_until(usage, day_start_ms(day + timedelta(days=1)))
        days[day] = DayUse(*(after - start for after, start in zip(until, before, strict=True)))
        day, before = day + timedelta(days=1), until
    return days


def sum_closed_days(table: StateTable, pool: str, now_ms: int) -> int:
    """Store the missing sums of the pool's closed days, and return the number of new days.

    Days are summed in order, at most DAYS_PER_PASS in a call. Days without usage have no sums. If
    the sums of a day exceed ROWS_MAX rows, log the day and leave all further days unsummed: reports
    then read the usage rows. Raises TableError.
    """
    for number in range(DAYS_PER_PASS):
        day = _first_unsummed_day(table, pool)
        if day is None or day_start_ms(day + timedelta(days=1)) + CLOSED_AFTER_MS > now_ms:
            return number
        bodies = encode_day(sum_usages(_usages_of_day(table, pool, day)))
        if len(bodies) > ROWS_MAX:
            log.warning("the usage of pool %s on %s is too large for sums", pool, day)
            return number
        try:
            table.commit([_put(pool, day, part, body) for part, body in enumerate(bodies)])
        except Conflict:
            # Another pass has stored the same sums.
            continue
    return DAYS_PER_PASS


def read_summed_days(table: StateTable, pool: str, since: date) -> SummedDays:
    """Read the sums of allocations that ended on the day `since` or later. Raises TableError."""
    rows = list(read_rows(table, usage_days_partition(pool), since.isoformat()))
    costs = tuple(cost for row in rows for cost in decode_day(row.body))
    return SummedDays(costs, _day_of(rows[-1].key) + timedelta(days=1) if rows else since)


def sum_usages(usages: Iterable[Usage]) -> list[DayCosts]:
    """Return the sums of the allocations of each experiment, in the order of the ids."""
    sums: dict[int, tuple[dict[date, int], dict[date, DayUse]]] = {}
    for usage in usages:
        costs, uses = sums.setdefault(usage.experiment, ({}, {}))
        for day, micros in split_by_day(usage).items():
            costs[day] = costs.get(day, 0) + micros
        for day, use in split_use_by_day(usage).items():
            uses[day] = uses.get(day, NO_DAY_USE).plus(use)
    return [DayCosts(experiment, *days) for experiment, days in sorted(sums.items())]


def encode_day(costs: Iterable[DayCosts]) -> list[bytes]:
    """Encode the sums of a day as the bodies of rows of at most ROW_BYTES each."""
    parts: list[list[str]] = [[]]
    size = 0
    for experiment, days, uses in costs:
        values: list[object] = [experiment, {day.isoformat(): days[day] for day in days}]
        if uses:
            values.append({day.isoformat(): use for day, use in uses.items()})
        entry = json.dumps(values, separators=(",", ":"))
        if parts[-1] and size + len(entry) + 2 > ROW_BYTES:
            parts.append([])
            size = 0
        parts[-1].append(entry)
        size += len(entry) + 1
    return [f"[{','.join(part)}]".encode() for part in parts]


def decode_day(body: bytes) -> list[DayCosts]:
    """Decode the body of a row of sums. Values that newer versions append are ignored.

    Raises ValueError for a body that is not JSON.
    """
    return [
        DayCosts(
            experiment,
            {date.fromisoformat(day): micros for day, micros in days.items()},
            {date.fromisoformat(day): _decode_use(use) for day, use in _first_value(more).items()},
        )
        for experiment, days, *more in json.loads(body)
    ]


def _part_until(amount: int, usage: Usage, time_ms: int) -> int:
    """Return the part of an amount that falls into the run before a time, rounded down."""
    if time_ms >= usage.ended_ms:
        return amount
    elapsed_ms = max(0, time_ms - usage.started_ms)
    return amount * elapsed_ms // max(1, usage.ended_ms - usage.started_ms)


def _decode_use(values: Sequence[int]) -> DayUse:
    """Decode the use of a day. Values that newer versions append are ignored."""
    return DayUse(*values[: len(NO_DAY_USE)])


def _first_value(values: Sequence[Mapping[str, Sequence[int]]]) -> Mapping[str, Sequence[int]]:
    """Return the first value, or {} without values."""
    return values[0] if values else {}


def _first_unsummed_day(table: StateTable, pool: str) -> date | None:
    """Return the day of the first usage row after the stored sums. None without such a row."""
    sums = table.query(usage_days_partition(pool), " ", "\x7f", limit=1, descending=True).rows
    first = _usage_sort(_day_of(sums[0].key) + timedelta(days=1)) if sums else " "
    rows = table.query(usage_partition(pool), first, "\x7f", limit=1).rows
    return utc_day(decode_usage(rows[0].body).ended_ms) if rows else None


def _usages_of_day(table: StateTable, pool: str, day: date) -> Iterator[Usage]:
    """Yield the usage of the allocations that ended on a day."""
    first, last = _usage_sort(day), _usage_sort(day + timedelta(days=1))
    for row in read_rows(table, usage_partition(pool), first, last):
        yield decode_usage(row.body)


def _usage_sort(day: date) -> str:
    """Return the sort key before all usage rows of allocations that ended on the day or later."""
    return f"{day_start_ms(day):015d}"


def _day_of(key: Key) -> date:
    """Return the day of a row of sums."""
    return date.fromisoformat(key.sort.partition(".")[0])


def _put(pool: str, day: date, part: int, body: bytes) -> Put:
    """Build the Put of a part of a day's sums, which must not exist."""
    key = Key(usage_days_partition(pool), f"{day.isoformat()}.{part:03d}")
    return Put(key, 1, body, Expect.ABSENT)
