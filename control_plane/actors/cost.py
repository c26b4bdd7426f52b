"""Amounts of money, the rates of slots, and usage rows.

Amounts are integers of micro-dollars, and rates are micro-dollars per hour, so that sums are exact.
Every division rounds down, so that the parts never cost more than the whole.
"""

import json
from collections.abc import Iterable
from dataclasses import astuple, dataclass, fields
from decimal import Decimal

from control_plane.actors.records import Place
from control_plane.actors.step import StepContext
from control_plane.actors.use import Use
from control_plane.fleet.records import instances_partition
from control_plane.rows import pool_rows

MICROS_PER_DOLLAR = 1_000_000
MS_PER_HOUR = 3_600_000


@dataclass(frozen=True, slots=True)
class Usage:
    """The cost and the use of an ended allocation: a row in the usage partition of the pool.

    The row is written once, in the commit that ends the allocation. Rows of earlier releases lack
    the fields after `micros`.
    """

    experiment: int
    """The id of the experiment."""
    trial: int
    """The id of the trial."""
    epoch: int
    """The epoch of the allocation."""
    started_ms: int
    """The start of the allocation, in epoch ms."""
    ended_ms: int
    """The end of the allocation, in epoch ms."""
    micros: int
    """The cost in micro-dollars."""
    slots: float = 0
    """The number of slots: below 1 for an allocation that shares a slot. 0: not known."""
    measured_ms: int = 0
    """The slot time in ms for which the use is known."""
    busy_ms: int = 0
    """The measured slot time, weighted with the share of computation."""
    low_ms: int = 0
    """The measured slot time with less than 5 % of computation."""
    memory_ms: int = 0
    """The measured slot time, weighted with the share of memory."""

    @property
    def slot_ms(self) -> int:
        """Return the time of the allocation multiplied by the number of slots, in ms."""
        return round(self.slots * max(0, self.ended_ms - self.started_ms))

    @property
    def use(self) -> Use:
        """Return the measured use."""
        return Use(self.measured_ms, self.busy_ms, self.low_ms, self.memory_ms)

    @property
    def low_micros(self) -> int:
        """Return the cost of the time of low use in micro-dollars, rounded down.

        Time that was not measured counts as used.
        """
        low_ms = min(self.low_ms, self.slot_ms)
        return self.micros * low_ms // self.slot_ms if self.slot_ms else 0


_USAGE_VALUES = len(fields(Usage))
_COST_VALUES = 6


def to_micros(dollars: float) -> int:
    """Convert dollars to micro-dollars, by the decimal text of the number.

    0.1 becomes exactly 100,000. More than six decimals are cut off. Infinity and NaN raise
    OverflowError and ValueError.
    """
    return int(Decimal(str(dollars)) * MICROS_PER_DOLLAR)


def render_dollars(micros: int) -> str:
    """Render an amount of micro-dollars as dollars, for example $12.40.

    Other amounts than 0 of less than a dollar have four decimals.
    """
    dollars = Decimal(micros) / MICROS_PER_DOLLAR
    if micros and abs(micros) < MICROS_PER_DOLLAR:
        return f"${dollars.quantize(Decimal('0.0001'))}"
    return f"${dollars.quantize(Decimal('0.01'))}"


def cost_of(rate_micros: int, duration_ms: int) -> int:
    """Return the cost of `duration_ms` in micro-dollars, rounded down.

    The rate is in micro-dollars per hour. A negative duration costs 0.
    """
    return rate_micros * max(0, duration_ms) // MS_PER_HOUR


def usage_partition(pool: str) -> str:
    """Return the partition of a pool's usage rows."""
    return pool_rows.USAGE.partition_of(pool)


def usage_sort_key(usage: Usage) -> str:
    """Return the sort key of a usage row. Rows sort by the end of the allocation."""
    return f"{usage.ended_ms:015d}.{usage.trial}.{usage.epoch}"


def encode_usage(usage: Usage) -> bytes:
    """Encode a usage row as a JSON list, in the order of the fields.

    A row without slots ends with the cost, as in earlier releases: their journals compare rows.
    """
    values = astuple(usage)
    return json.dumps(values if usage.slots else values[:_COST_VALUES]).encode()


def decode_usage(body: bytes) -> Usage:
    """Decode the body of a usage row. Values that newer versions append are ignored, and values
    that earlier versions lack get their defaults.

    Raises:
        TypeError: a value is missing.
        ValueError: the body is not JSON.
    """
    # As text, so that the decoder does not guess the encoding.
    return Usage(*json.loads(body.decode())[:_USAGE_VALUES])


def place_rates(
    places: Iterable[Place], pool: str, sharers: int, context: StepContext
) -> tuple[int, ...]:
    """Return the rate of each place in micro-dollars per hour. Read the row of each agent's
    instance.

    The rate is the slots' share of the price of the instance. A place on an agent without an
    instance row, such as one that was started by hand, has rate 0. If no place has an instance row,
    return an empty tuple.

    Args:
        sharers: the number of trials that may share a slot. Each pays this part of the slot.
    """
    rates = [_place_rate(place, pool, context) for place in places]
    if all(rate is None for rate in rates):
        return ()
    return tuple((rate or 0) // sharers for rate in rates)


def _place_rate(place: Place, pool: str, context: StepContext) -> int | None:
    """Return the rate of a place in micro-dollars per hour, 0 for an instance without a price or
    slots.

    Return None if the agent has no instance row.
    """
    row = context.row(instances_partition(pool), place.agent)
    if not row.body:
        return None
    offering = json.loads(row.body)["offering"]
    price, slots = to_micros(offering.get("price_per_hour", 0)), offering["slots"]
    return price * min(len(place.slots), slots) // slots if slots else 0
