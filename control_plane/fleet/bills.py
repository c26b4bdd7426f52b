"""The daily costs of a pool's instances.

The costs of ended instances are stored as daily sums. The commit that ends an instance also adds
its cost, so each instance counts exactly once. The costs of live instances are computed from their
rows. Days are UTC days; amounts are whole micro-dollars.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, date, datetime, time, timedelta

from control_plane.actors.cost import cost_of, to_micros
from control_plane.fleet.records import InstanceRow
from control_plane.fleet.rows import read_instances
from control_plane.rows import fleet_rows
from control_plane.state.row_ranges import read_rows
from control_plane.state.table import Key, StateTable

Bill = Mapping[date, int]
"""The cost of each UTC day in micro-dollars."""
MONTH = len("2026-11")
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")


def bills_partition(pool: str) -> str:
    """Return the partition of a pool's stored bills, with a row per month."""
    return fleet_rows.BILL.partition_of(pool)


def split_by_month(pool: str, bill: Bill) -> dict[Key, dict[date, int]]:
    """Split a bill into months; return the days of each month by the key of the month's row."""
    months: dict[Key, dict[date, int]] = {}
    for day, micros in bill.items():
        key = Key(bills_partition(pool), day.isoformat()[:MONTH])
        months.setdefault(key, {})[day] = micros
    return months


def encode_bill(bill: Bill, before: bytes | None = None) -> bytes:
    """Encode a bill as the body of a row: JSON with ISO dates.

    Args:
        bill: the bill.
        before: the body of the row that is replaced, with fields of newer versions to keep.
    """
    days = {day.isoformat(): micros for day, micros in bill.items()}
    stored = json.loads(before) if before else {}
    newer = {name: value for name, value in stored.items() if not _DAY.fullmatch(name)}
    return json.dumps(days | newer).encode()


def decode_bill(body: bytes) -> dict[date, int]:
    """Decode the body of a bill's row. Fields of newer versions are ignored."""
    return {
        date.fromisoformat(day): int(micros)
        for day, micros in json.loads(body).items()
        if _DAY.fullmatch(day)
    }


def instance_bill(row: InstanceRow, now_ms: int) -> dict[date, int]:
    """Return the cost of an instance on each day from the launch to the end, or to `now_ms`.

    The days add up to the cost of the whole time. Return no days for an instance without a price.
    """
    rate = to_micros(row.offering.price_per_hour)
    end_ms = now_ms if row.ended_ms is None else row.ended_ms
    bill: dict[date, int] = {}
    if not rate:
        return bill
    for day in _days(row.launched_ms, end_ms):
        first_ms, last_ms = day_start_ms(day), day_start_ms(day + timedelta(days=1))
        until = cost_of(rate, min(last_ms, end_ms) - row.launched_ms)
        bill[day] = until - cost_of(rate, first_ms - row.launched_ms)
    return bill


def bill_total(bills: Iterable[Bill]) -> dict[date, int]:
    """Return the sum of several bills for each day, in the order of the days."""
    total: dict[date, int] = {}
    for bill in bills:
        for day, micros in bill.items():
            total[day] = total.get(day, 0) + micros
    return dict(sorted(total.items()))


def pool_bill(
    table: StateTable, pool: str, since: date, until: date, now_ms: int
) -> dict[date, int]:
    """Return the daily cost of the pool's instances, from `since` to `until` inclusive.

    Live instances count until `now_ms`. Days without costs are absent.
    """
    # Live instances are read first: an instance that ends meanwhile counts twice instead of never.
    live = [instance_bill(row, now_ms) for row in read_instances(table, pool)]
    first, last = since.isoformat()[:MONTH], until.isoformat()[:MONTH]
    # The range excludes the end, so the end must sort after the last month.
    rows = read_rows(table, bills_partition(pool), first, f"{last}~")
    ended = [decode_bill(row.body) for row in rows]
    total = bill_total([*ended, *live])
    return {day: micros for day, micros in total.items() if since <= day <= until}


def month_cost_micros(table: StateTable, pool: str, now_ms: int) -> int:
    """Return the cost of the pool's instances from the start of the month until `now_ms`."""
    today = utc_day(now_ms)
    return sum(pool_bill(table, pool, today.replace(day=1), today, now_ms).values())


def hourly_cost_micros(table: StateTable, pool: str) -> int:
    """Return the cost per hour of the pool's live instances, in micro-dollars."""
    return sum(to_micros(row.offering.price_per_hour) for row in read_instances(table, pool))


def utc_day(time_ms: int) -> date:
    """Return the UTC day of a time in epoch milliseconds."""
    return datetime.fromtimestamp(time_ms / 1000, UTC).date()


def day_start_ms(day: date) -> int:
    """Return the start of a UTC day in epoch milliseconds."""
    return int(datetime.combine(day, time(), UTC).timestamp()) * 1000


def _days(from_ms: int, until_ms: int) -> Iterator[date]:
    """Yield the UTC days from `from_ms` to `until_ms`, both included."""
    day, last = utc_day(from_ms), utc_day(until_ms)
    while day <= last:
        yield day
        day += timedelta(days=1)
