"""Money, and what slots cost.

Amounts are whole micro-dollars, rates micro-dollars an hour: sums are exact, and whoever rounds
rounds down, so that the parts of something never cost more than all of it.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal

from control_plane.actors.records import Place
from control_plane.actors.step import Turn
from control_plane.fleet.records import instances_of

MICROS_PER_DOLLAR = 1_000_000
MS_PER_HOUR = 3_600_000


@dataclass(frozen=True, slots=True)
class Usage:
    """What an allocation cost that has ended: a row of `usage_of` its pool, by the time of its end.

    It is written in the commit that ends the allocation, which happens once.
    """

    experiment: int
    trial: int
    epoch: int
    started_ms: int
    ended_ms: int
    micros: int


def micros_of(dollars: float) -> int:
    """An amount as people write it, exactly: 0.1 is a hundred thousand."""
    return int(Decimal(str(dollars)) * MICROS_PER_DOLLAR)


def dollars_text(micros: int) -> str:
    """Such as $12.40, with more digits where there is less than a dollar."""
    dollars = Decimal(micros) / MICROS_PER_DOLLAR
    if micros and abs(micros) < MICROS_PER_DOLLAR:
        return f"${dollars.quantize(Decimal('0.0001'))}"
    return f"${dollars.quantize(Decimal('0.01'))}"


def cost_of(rate_micros: int, duration_ms: int) -> int:
    """What something of that rate costs in that time."""
    return rate_micros * max(0, duration_ms) // MS_PER_HOUR


def usage_of(pool: str) -> str:
    """The partition of what was used of a pool."""
    return f"usage#{pool}"


def usage_sort(usage: Usage) -> str:
    """The sort key of a row there."""
    return f"{usage.ended_ms:015d}.{usage.trial}.{usage.epoch}"


def written_usage(usage: Usage) -> bytes:
    """The row's body."""
    fields = (usage.experiment, usage.trial, usage.epoch, usage.started_ms, usage.ended_ms)
    return json.dumps([*fields, usage.micros]).encode()


def read_usage(body: bytes) -> Usage:
    """The way back."""
    return Usage(*json.loads(body))


def rates_of(places: Iterable[Place], pool: str, turn: Turn) -> tuple[int, ...]:
    """What each place costs: its share of its instance's slots. Empty where no place is of an
    instance that has a row, as agents are that were started by hand.
    """
    found = [_rate(place, pool, turn) for place in places]
    return () if all(rate is None for rate in found) else tuple(rate or 0 for rate in found)


def _rate(place: Place, pool: str, turn: Turn) -> int | None:
    seen = turn.row(instances_of(pool), place.agent)
    if not seen.body:
        return None
    offering = json.loads(seen.body)["offering"]
    price, slots = micros_of(offering.get("price_per_hour", 0)), offering["slots"]
    return price * min(len(place.slots), slots) // slots if slots else 0
