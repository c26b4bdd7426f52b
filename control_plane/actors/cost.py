"""Amounts of money, the rates that slots cost, and rows of usage.

Amounts are whole micro-dollars, rates micro-dollars an hour: sums are exact, and every division
rounds down, so that the parts of something never cost more than all of it.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal

from control_plane.actors.records import Place
from control_plane.actors.step import StepContext
from control_plane.fleet.records import instances_partition

MICROS_PER_DOLLAR = 1_000_000
MS_PER_HOUR = 3_600_000


@dataclass(frozen=True, slots=True)
class Usage:
    """The cost of an ended allocation: a row of its pool's usage partition, by the time of its end.

    Written in the commit that ends the allocation, which happens once.
    """

    experiment: int
    trial: int
    epoch: int
    started_ms: int
    ended_ms: int
    micros: int


def to_micros(dollars: float) -> int:
    """An amount of dollars in micro-dollars, exactly: 0.1 is 100,000."""
    return int(Decimal(str(dollars)) * MICROS_PER_DOLLAR)


def render_dollars(micros: int) -> str:
    """An amount as text like $12.40, with four decimals where it is less than a dollar."""
    dollars = Decimal(micros) / MICROS_PER_DOLLAR
    if micros and abs(micros) < MICROS_PER_DOLLAR:
        return f"${dollars.quantize(Decimal('0.0001'))}"
    return f"${dollars.quantize(Decimal('0.01'))}"


def cost_of(rate_micros: int, duration_ms: int) -> int:
    """The cost of `duration_ms` at a rate an hour; a negative duration costs nothing."""
    return rate_micros * max(0, duration_ms) // MS_PER_HOUR


def usage_partition(pool: str) -> str:
    """The partition of a pool's usage rows."""
    return f"usage#{pool}"


def usage_sort_key(usage: Usage) -> str:
    """The sort key of a usage row."""
    return f"{usage.ended_ms:015d}.{usage.trial}.{usage.epoch}"


def encode_usage(usage: Usage) -> bytes:
    """The body of a usage row."""
    fields = (usage.experiment, usage.trial, usage.epoch, usage.started_ms, usage.ended_ms)
    return json.dumps([*fields, usage.micros]).encode()


def decode_usage(body: bytes) -> Usage:
    """Decode the body of a usage row."""
    return Usage(*json.loads(body))


def place_rates(places: Iterable[Place], pool: str, context: StepContext) -> tuple[int, ...]:
    """The hourly rate of each place: its share of its instance's price by slots. Empty where no
    place belongs to an instance with a row: such agents were started by hand.
    """
    rates = [_place_rate(place, pool, context) for place in places]
    return () if all(rate is None for rate in rates) else tuple(rate or 0 for rate in rates)


def _place_rate(place: Place, pool: str, context: StepContext) -> int | None:
    row = context.row(instances_partition(pool), place.agent)
    if not row.body:
        return None
    offering = json.loads(row.body)["offering"]
    price, slots = to_micros(offering.get("price_per_hour", 0)), offering["slots"]
    return price * min(len(place.slots), slots) // slots if slots else 0
