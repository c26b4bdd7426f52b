"""Traces of spot machines, read from a file or generated: availability and prices over time.

The sources of the generator's parameters:

- Wu et al., "Can't Be Late" (NSDI 2024), section 2. Availability differs by zone and changes from
  all machines to no machines within hours. Gaps last from minutes to days. Spot prices vary by 5 %
  in a week. For 94 % of the time, either all machines of a cluster are available or none, so that a
  single bit is enough. The zones of the paper's traces are available 4 to 95 % of the time.
- The traces of that paper (github.com/skypilot-org/spot-traces). In the first twelve days of
  availability/1-node/aws-02-15-2023/us-west-2a_v100_1.json, a spot machine was available 83 % of
  the time, in about 34 periods. Periods last 7 h on average, with a median below 2 h. Gaps last
  1.4 h on average, with a median below half an hour. A lognormal distribution whose mean is 3 times
  its median has the sigma sqrt(2 ln 3) = 1.5. A period and a gap together last 8.4 h.
- A V100 (p3.2xlarge) then cost 3.06 an hour on-demand and 0.97 as a spot machine: a fraction of
  0.32.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from statistics import NormalDist

from control_plane.searchers.randomness import Generator

MINUTE_MS = 60_000
TICK_MS = 5 * MINUTE_MS
"""The tick of generated traces."""
CYCLE_MS = 8 * 60 * MINUTE_MS
"""The mean length of a period of availability and a gap together."""
SIGMA = 1.5
"""The sigma of the lognormal lengths of periods and gaps."""
PRICE = 0.32
"""The mean spot price, as a fraction of the on-demand price."""
PRICE_SPREAD = 0.05
"""The largest deviation of a generated price, as a fraction of `PRICE`."""
PRICE_HOLDS_MS = 24 * 60 * MINUTE_MS
"""The time for which a generated price is constant."""
TICKS_MAX = 1_000_000
"""The longest list that `read_trace` accepts."""


class TraceInvalid(ValueError):
    """The text is not a valid trace. The message describes the error."""


@dataclass(frozen=True, slots=True)
class SpotTrace:
    """The availability and price of spot machines at each tick."""

    tick_ms: int
    available: tuple[bool, ...]
    """Whether spot machines are available, from each tick to the next."""
    prices: tuple[float, ...]
    """The spot price from each tick to the next, as a fraction of the on-demand price."""

    @property
    def length_ms(self) -> int:
        """The time that the trace covers."""
        return self.tick_ms * len(self.available)


def availability(trace: SpotTrace, until_ms: int) -> float:
    """Return the fraction of the ticks before `until_ms` in which spot machines were available.

    At least the first tick counts.
    """
    ticks = max(1, min(until_ms // trace.tick_ms, len(trace.available)))
    return sum(trace.available[:ticks]) / ticks


def generate_trace(availability: float, length_ms: int, seed: int) -> SpotTrace:
    """Generate a trace of at least `length_ms`, rounded up to whole ticks.

    Equal arguments give an equal trace.

    Args:
        availability: the long-run availability of the zone, between 0 and 1. A trace with few
            periods has another availability.
    """
    generator = Generator.from_seed(seed)
    ticks = -(-length_ms // TICK_MS)
    return SpotTrace(
        TICK_MS,
        _generate_availability(generator, availability, ticks),
        _generate_prices(generator, ticks),
    )


def read_trace(text: str) -> SpotTrace:
    """Parse a trace in the format of github.com/skypilot-org/spot-traces. Raises TraceInvalid.

    The format is `{"metadata": {"gap_seconds": 300}, "data": [1, 0, ...]}`, where `data` has the
    number of machines at each tick. `"prices"` is an extension with a fraction of the on-demand
    price per tick.
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
    """Draw alternating periods and gaps, and return the availability of each tick."""
    if not 0 < availability < 1:
        return (availability > 0,) * ticks
    is_up = generator.draw_uniform() < availability
    available: list[bool] = []
    # A trace starts in the middle of a period, so earlier ticks are drawn and discarded.
    discarded = 3 * CYCLE_MS // TICK_MS
    while len(available) < discarded + ticks:
        mean_ms = CYCLE_MS * (availability if is_up else 1 - availability)
        length = max(1, round(_sample_lognormal(generator, mean_ms) / TICK_MS))
        available += [is_up] * min(length, discarded + ticks - len(available))
        is_up = not is_up
    return tuple(available[discarded:])


def _generate_prices(generator: Generator, ticks: int) -> tuple[float, ...]:
    """Draw a price per `PRICE_HOLDS_MS`, and return the price at each tick."""
    prices: list[float] = []
    while len(prices) < ticks:
        price = PRICE * (1 + PRICE_SPREAD * (2 * generator.draw_uniform() - 1))
        prices += [round(price, 4)] * (PRICE_HOLDS_MS // TICK_MS)
    return tuple(prices[:ticks])


def _sample_lognormal(generator: Generator, mean: float) -> float:
    """Draw from a lognormal distribution with this mean and `SIGMA`."""
    # The inverse of the distribution is undefined at 0, which is drawn with probability 2^-53.
    normal = NormalDist().inv_cdf(max(generator.draw_uniform(), 2**-53))
    return mean * math.exp(SIGMA * normal - SIGMA**2 / 2)


def _parse_numbers(document: dict[str, object], name: str) -> list[float]:
    """Return a list of finite numbers from the document. Raises TraceInvalid for other values."""
    numbers = document.get(name)
    if not isinstance(numbers, list) or not numbers or len(numbers) > TICKS_MAX:
        raise TraceInvalid(f"{name} must be a list of 1 to {TICKS_MAX} numbers, one for each tick")
    if not all(isinstance(number, int | float) and math.isfinite(number) for number in numbers):
        raise TraceInvalid(f"{name} must contain only finite numbers")
    return numbers
