"""What is remembered of each offering, and which are worth a try now.

An offering that failed is not asked again before its back-off ends, with full jitter: evenly
between nothing and a limit that doubles with each error in a row. What time heals is tried for
ever; of other errors so many in a row are enough.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

from control_plane.fleet.records import ErrorKind, Market, Offering, OfferingHealth
from provisioner.model import MINUTE_MS, ProvisionerSettings

FRESH = OfferingHealth()
# An offering whose instances were taken away comes after its like for so long.
AVOIDED_MS = 10 * MINUTE_MS
PAUSE_MS_MIN = 1_000

_HEALED_BY_TIME = frozenset({ErrorKind.CAPACITY, ErrorKind.THROTTLED})
# Where the back-off begins, and what it never exceeds.
_BACKOFF_MS = {
    ErrorKind.CAPACITY: (30_000, 10 * MINUTE_MS),
    ErrorKind.THROTTLED: (5_000, 2 * MINUTE_MS),
    ErrorKind.QUOTA: (2 * MINUTE_MS, 30 * MINUTE_MS),
    ErrorKind.AUTH: (MINUTE_MS, 30 * MINUTE_MS),
    ErrorKind.CONFIGURATION: (MINUTE_MS, 30 * MINUTE_MS),
    ErrorKind.BOOT: (30_000, 10 * MINUTE_MS),
    ErrorKind.UNKNOWN: (15_000, 10 * MINUTE_MS),
}


class Failure(NamedTuple):
    """An error at `time_ms`."""

    kind: ErrorKind
    message: str
    time_ms: int


def failed(
    health: OfferingHealth, failure: Failure, limit: int, draw: Callable[[], float]
) -> OfferingHealth:
    """After one more error; `limit` as in ProvisionerSettings, `draw` gives 0 to below 1."""
    first_ms, most_ms = _BACKOFF_MS[failure.kind]
    ceiling_ms = min(most_ms, first_ms << min(health.errors, 20))
    pause_ms = max(PAUSE_MS_MIN, int(draw() * ceiling_ms))
    faults = health.faults + (failure.kind not in _HEALED_BY_TIME)
    return replace(
        health,
        errors=health.errors + 1,
        faults=faults,
        kind=failure.kind,
        message=failure.message,
        failed_ms=failure.time_ms,
        retry_ms=failure.time_ms + pause_ms,
        given_up=0 < limit <= faults,
    )


def launched(health: OfferingHealth) -> OfferingHealth:
    """After an instance was had. Whether it is good for anything its agent will show."""
    if health.kind is ErrorKind.BOOT:
        return health
    return replace(health, errors=0, kind=None, message="", failed_ms=0, retry_ms=0)


def connected(health: OfferingHealth) -> OfferingHealth:
    """After the agent of an instance came."""
    return OfferingHealth(interrupted_ms=health.interrupted_ms)


def priced(named: tuple[Offering, ...], known: tuple[Offering, ...]) -> tuple[Offering, ...]:
    """The offerings that the settings name, with what the cloud knows of their prices where they
    say none; without any, what the cloud itself offers.
    """
    prices = {it.name: it.price_per_hour for it in known}
    found = (
        replace(it, price_per_hour=it.price_per_hour or prices.get(it.name, 0)) for it in named
    )
    return tuple(found) or known


def usable(
    settings: ProvisionerSettings,
    offerings: tuple[Offering, ...],
    health: Mapping[str, OfferingHealth],
    now_ms: int,
) -> tuple[tuple[Offering, ...], tuple[Offering, ...]]:
    """What may be asked for now, the best first, and of these what is on demand.

    While the cloud throttles us that is nothing: its limit is on our calls, not on an offering.
    """
    if any(it.kind is ErrorKind.THROTTLED and it.retry_ms > now_ms for it in health.values()):
        return (), ()

    def is_avoided(offering: Offering) -> bool:
        taken_ms = health.get(offering.name, FRESH).interrupted_ms
        return taken_ms > 0 and now_ms - taken_ms < AVOIDED_MS

    able = [it for it in offerings if _may_be_tried(health.get(it.name, FRESH), now_ms)]
    spot = sorted((it for it in able if it.market is Market.SPOT), key=is_avoided)
    on_demand = tuple(it for it in able if it.market is Market.ON_DEMAND)
    has_spot = any(it.market is Market.SPOT for it in offerings)
    falls_back = settings.on_demand_fallback or not has_spot
    return (*spot, *(on_demand if falls_back else ())), on_demand


def described(
    offerings: tuple[Offering, ...], health: Mapping[str, OfferingHealth], now_ms: int
) -> str:
    """Why none of them can be had now, for people; "" where one can."""
    said = []
    for offering in offerings:
        known = health.get(offering.name, FRESH)
        if _may_be_tried(known, now_ms):
            continue
        until = f"tried again in {max(0, known.retry_ms - now_ms) // 1000} s"
        if known.given_up:
            until = f"given up after {known.faults} errors; it is tried again once the pool changes"
        said.append(f"{offering.name}: {known.kind}: {known.message} ({until})")
    return "; ".join(said)


def _may_be_tried(health: OfferingHealth, now_ms: int) -> bool:
    return not health.given_up and health.retry_ms <= now_ms
