"""The daily costs of a pool's instances: those that have ended as stored sums.

A sum changes in the commit in which an instance ends, so each of them counts once. Days are those
of UTC; amounts are whole micro-dollars.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, date, datetime, time, timedelta

from control_plane.actors.cost import cost_of, to_micros
from control_plane.fleet.records import InstanceRow
from control_plane.fleet.rows import read_instances, read_rows
from control_plane.state.table import Key, StateTable

Bill = Mapping[date, int]
MONTH = len("2026-11")


def bills_partition(pool: str) -> str:
    """The partition of a pool's sums, one row for each month."""
    return f"bills#{pool}"


def split_by_month(pool: str, bill: Bill) -> dict[Key, dict[date, int]]:
    """The daily sums, by the keys of the rows that they are in."""
    found: dict[Key, dict[date, int]] = {}
    for day, micros in bill.items():
        key = Key(bills_partition(pool), day.isoformat()[:MONTH])
        found.setdefault(key, {})[day] = micros
    return found


def encode_bill(bill: Bill) -> bytes:
    """Encode a row's body."""
    return json.dumps({day.isoformat(): micros for day, micros in bill.items()}).encode()


def decode_bill(body: bytes) -> dict[date, int]:
    """Decode a row's body."""
    return {date.fromisoformat(day): int(micros) for day, micros in json.loads(body).items()}


def instance_bill(row: InstanceRow, now_ms: int) -> dict[date, int]:
    """The cost of an instance on each day until it ended, or until now. The days add up to the cost
    of all of its time.
    """
    rate = to_micros(row.offering.price_per_hour)
    end_ms = now_ms if row.ended_ms is None else row.ended_ms
    found: dict[date, int] = {}
    if not rate:
        return found
    for day in _days(row.launched_ms, end_ms):
        first_ms, last_ms = day_start_ms(day), day_start_ms(day + timedelta(days=1))
        until = cost_of(rate, min(last_ms, end_ms) - row.launched_ms)
        found[day] = until - cost_of(rate, first_ms - row.launched_ms)
    return found


def bill_total(bills: Iterable[Bill]) -> dict[date, int]:
    """The sums of several bills, by day."""
    total: dict[date, int] = {}
    for bill in bills:
        for day, micros in bill.items():
            total[day] = total.get(day, 0) + micros
    return dict(sorted(total.items()))


def pool_bill(
    table: StateTable, pool: str, since: date, until: date, now_ms: int
) -> dict[date, int]:
    """The cost of the pool's instances on each day of that time, both days included."""
    # Live ones first: one that ends meanwhile counts twice for a moment, rather than not at all.
    live = [instance_bill(row, now_ms) for row in read_instances(table, pool)]
    first, last = since.isoformat()[:MONTH], until.isoformat()[:MONTH]
    # A range ends before its last key.
    rows = read_rows(table, bills_partition(pool), first, f"{last}~")
    ended = [decode_bill(row.body) for row in rows]
    found = bill_total([*ended, *live])
    return {day: micros for day, micros in found.items() if since <= day <= until}


def month_cost_micros(table: StateTable, pool: str, now_ms: int) -> int:
    """The cost of the pool's instances in the month of `now_ms` so far."""
    today = utc_day(now_ms)
    return sum(pool_bill(table, pool, today.replace(day=1), today, now_ms).values())


def hourly_cost_micros(table: StateTable, pool: str) -> int:
    """The cost of the pool's live instances an hour."""
    return sum(to_micros(row.offering.price_per_hour) for row in read_instances(table, pool))


def utc_day(time_ms: int) -> date:
    """The day of a moment."""
    return datetime.fromtimestamp(time_ms / 1000, UTC).date()


def day_start_ms(day: date) -> int:
    """The begin of a day in epoch ms."""
    return int(datetime.combine(day, time(), UTC).timestamp()) * 1000


def _days(from_ms: int, until_ms: int) -> Iterator[date]:
    day, last = utc_day(from_ms), utc_day(until_ms)
    while day <= last:
        yield day
        day += timedelta(days=1)
