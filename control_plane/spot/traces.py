"""Traces of spot machines: when they were available, and their prices. Read from a file or
generated.

The generator's parameters:

- Wu et al., "Can't Be Late" (NSDI 2024), section 2: availability differs by zone and jumps from all
  to nothing within hours; gaps last from minutes to days; the price of a spot machine varies by
  5 % in a week; 94 % of the time either all machines of a cluster are there or none, so that one
  bit says it. The zones of its traces are available 4 to 95 % of the time.
- Its traces (github.com/skypilot-org/spot-traces). In the first twelve days of
  availability/1-node/aws-02-15-2023/us-west-2a_v100_1.json a spot machine was to be had 83 % of the
  time, in some 34 periods: 7 h on the average, half of them below 2 h, with gaps of 1.4 h on the
  average, half of them below half an hour. A lognormal distribution whose mean is 3 times its
  median has the sigma sqrt(2 ln 3) = 1.5. A period and its gap make 8.4 h.
- A V100 (p3.2xlarge) cost 3.06 an hour on-demand and 0.97 as a spot machine then: 0.32 of it.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from statistics import NormalDist

from control_plane.searchers.randomness import Generator

MINUTE_MS = 60_000
TICK_MS = 5 * MINUTE_MS
CYCLE_MS = 8 * 60 * MINUTE_MS
SIGMA = 1.5
PRICE = 0.32
PRICE_SPREAD = 0.05
PRICE_HOLDS_MS = 24 * 60 * MINUTE_MS
TICKS_MAX = 1_000_000


class TraceInvalid(ValueError):
    """A file that is no trace; the message says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class SpotTrace:
    """The availability and price of spot machines at each tick, which hold until the next. Prices
    are shares of the on-demand price.
    """

    tick_ms: int
    available: tuple[bool, ...]
    prices: tuple[float, ...]

    @property
    def length_ms(self) -> int:
        """The time that the trace covers."""
        return self.tick_ms * len(self.available)


def availability(trace: SpotTrace, until_ms: int) -> float:
    """The share of the ticks before `until_ms`, at least one, in which there were spot machines."""
    ticks = max(1, min(until_ms // trace.tick_ms, len(trace.available)))
    return sum(trace.available[:ticks]) / ticks


def generate_trace(availability: float, length_ms: int, seed: int) -> SpotTrace:
    """Generate a trace that lasts for `length_ms` or a little longer, of a zone with that
    availability.

    `availability` is between 0 and 1 and that of the zone in the long run: a trace of few periods
    has another. Equal arguments give an equal trace.
    """
    generator = Generator.from_seed(seed)
    ticks = -(-length_ms // TICK_MS)
    return SpotTrace(
        TICK_MS,
        _generate_availability(generator, availability, ticks),
        _generate_prices(generator, ticks),
    )


def read_trace(text: str) -> SpotTrace:
    """Parse a trace in the format of github.com/skypilot-org/spot-traces; raises TraceInvalid.

    `{"metadata": {"gap_seconds": 300}, "data": [1, 0, ...]}`: the number of machines at each tick.
    `"prices"`, shares of the on-demand price, one for each tick, is our addition.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TraceInvalid(f"is not JSON: {error}") from None
    metadata = document.get("metadata") if isinstance(document, dict) else None
    seconds = metadata.get("gap_seconds") if isinstance(metadata, dict) else None
    if not isinstance(seconds, int | float) or not 1 <= seconds <= 86_400:
        raise TraceInvalid("metadata.gap_seconds must be a number of seconds between 1 and 86400")
    data = _parse_numbers(document, "data")
    prices = _parse_numbers(document, "prices") if "prices" in document else [PRICE] * len(data)
    if len(prices) != len(data):
        raise TraceInvalid(f"prices has {len(prices)} entries, but data has {len(data)}")
    if not all(price > 0 for price in prices):
        raise TraceInvalid("prices must be greater than 0, as shares of the on-demand price")
    return SpotTrace(round(1000 * seconds), tuple(n >= 1 for n in data), tuple(prices))


def _generate_availability(
    generator: Generator, availability: float, ticks: int
) -> tuple[bool, ...]:
    if not 0 < availability < 1:
        return (availability > 0,) * ticks
    is_up = generator.draw_uniform() < availability
    found: list[bool] = []
    # The start lies within a period: what is before it is drawn and left out.
    before = 3 * CYCLE_MS // TICK_MS
    while len(found) < before + ticks:
        mean_ms = CYCLE_MS * (availability if is_up else 1 - availability)
        length = max(1, round(_sample_lognormal(generator, mean_ms) / TICK_MS))
        found += [is_up] * min(length, before + ticks - len(found))
        is_up = not is_up
    return tuple(found[before:])


def _generate_prices(generator: Generator, ticks: int) -> tuple[float, ...]:
    found: list[float] = []
    while len(found) < ticks:
        price = PRICE * (1 + PRICE_SPREAD * (2 * generator.draw_uniform() - 1))
        found += [round(price, 4)] * (PRICE_HOLDS_MS // TICK_MS)
    return tuple(found[:ticks])


def _sample_lognormal(generator: Generator, mean: float) -> float:
    # The inverse of the distribution is not defined at 0, which is drawn once in 2^53.
    normal = NormalDist().inv_cdf(max(generator.draw_uniform(), 2**-53))
    return mean * math.exp(SIGMA * normal - SIGMA**2 / 2)


def _parse_numbers(document: dict[str, object], name: str) -> list[float]:
    found = document.get(name)
    if not isinstance(found, list) or not found or len(found) > TICKS_MAX:
        raise TraceInvalid(f"{name} must be a list of 1 to {TICKS_MAX} numbers, one for each tick")
    if not all(isinstance(number, int | float) and math.isfinite(number) for number in found):
        raise TraceInvalid(f"{name} must hold nothing but finite numbers")
    return found
