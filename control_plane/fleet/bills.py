"""What the instances of a pool cost on each day: those that have ended as sums that stay.

A sum moves in the commit in which an instance ends, so each of them counts once. Days are those of
UTC; amounts are whole micro-dollars.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, date, datetime, time, timedelta

from control_plane.actors.cost import cost_of, micros_of
from control_plane.fleet.records import InstanceRow
from control_plane.fleet.rows import instances, read_all
from control_plane.state.table import Key, StateTable

Bill = Mapping[date, int]
MONTH = len("2026-11")


def bills_of(pool: str) -> str:
    """The partition of a pool's sums, one row for each month."""
    return f"bills#{pool}"


def by_month(pool: str, bill: Bill) -> dict[Key, dict[date, int]]:
    """The sums of days, by the rows that they are in."""
    found: dict[Key, dict[date, int]] = {}
    for day, micros in bill.items():
        key = Key(bills_of(pool), day.isoformat()[:MONTH])
        found.setdefault(key, {})[day] = micros
    return found


def written_bill(bill: Bill) -> bytes:
    """A row's body."""
    return json.dumps({day.isoformat(): micros for day, micros in bill.items()}).encode()


def read_bill(body: bytes) -> dict[date, int]:
    """The way back."""
    return {date.fromisoformat(day): int(micros) for day, micros in json.loads(body).items()}


def instance_bill(row: InstanceRow, now_ms: int) -> dict[date, int]:
    """What an instance cost on each day until it ended, or until now. The days come to what all of
    its time costs.
    """
    rate = micros_of(row.offering.price_per_hour)
    end_ms = now_ms if row.ended_ms is None else row.ended_ms
    found: dict[date, int] = {}
    if not rate:
        return found
    for day in _days(row.launched_ms, end_ms):
        first_ms, last_ms = start_ms(day), start_ms(day + timedelta(days=1))
        until = cost_of(rate, min(last_ms, end_ms) - row.launched_ms)
        found[day] = until - cost_of(rate, first_ms - row.launched_ms)
    return found


def added(bills: Iterable[Bill]) -> dict[date, int]:
    """The sums, by day."""
    total: dict[date, int] = {}
    for bill in bills:
        for day, micros in bill.items():
            total[day] = total.get(day, 0) + micros
    return dict(sorted(total.items()))


def pool_bill(
    table: StateTable, pool: str, since: date, until: date, now_ms: int
) -> dict[date, int]:
    """What the pool's instances cost on each day of that time, both days included."""
    # Live ones first: one that ends meanwhile counts twice for a moment, rather than not at all.
    live = [instance_bill(row, now_ms) for row in instances(table, pool)]
    first, last = since.isoformat()[:MONTH], until.isoformat()[:MONTH]
    # A range ends before its last key.
    rows = read_all(table, bills_of(pool), first, f"{last}~")
    ended = [read_bill(row.body) for row in rows]
    found = added([*ended, *live])
    return {day: micros for day, micros in found.items() if since <= day <= until}


def month_micros(table: StateTable, pool: str, now_ms: int) -> int:
    """What they cost in the month of `now_ms` so far."""
    today = day_of(now_ms)
    return sum(pool_bill(table, pool, today.replace(day=1), today, now_ms).values())


def rate_micros(table: StateTable, pool: str) -> int:
    """What they cost an hour."""
    return sum(micros_of(row.offering.price_per_hour) for row in instances(table, pool))


def day_of(time_ms: int) -> date:
    """The day of a moment."""
    return datetime.fromtimestamp(time_ms / 1000, UTC).date()


def start_ms(day: date) -> int:
    """When a day begins."""
    return int(datetime.combine(day, time(), UTC).timestamp()) * 1000


def _days(from_ms: int, until_ms: int) -> Iterator[date]:
    day, last = day_of(from_ms), day_of(until_ms)
    while day <= last:
        yield day
        day += timedelta(days=1)
