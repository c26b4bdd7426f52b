"""The health of offerings: back-off after failures, and which offerings may be launched now.

An offering that failed is not tried again before its back-off ends: a limit that doubles with each
error in a row, half of it for certain and the rest drawn evenly. No offering is closed for ever.
After errors that cost nothing, a lack of capacity or of quota, the limit has a ceiling; after
enough others in a row the offering is given up: it is tried with one instance, once an hour at
most, until the agent of one has enrolled.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from control_plane.fleet.records import ErrorKind, Market, Offering, OfferingHealth
from provisioner.model import MINUTE_MS, Launch, ProvisionerSettings

FRESH = OfferingHealth()
# For so long an offering whose instance was interrupted comes after others of its market.
AVOID_AFTER_INTERRUPTION_MS = 10 * MINUTE_MS
# The longest time between two instances of an offering that is given up.
PROBE_PERIOD_MS = 60 * MINUTE_MS

# An attempt that fails so costs nothing, and the cloud or its administrator may end it at any time.
_TRANSIENT_KINDS = frozenset({ErrorKind.CAPACITY, ErrorKind.THROTTLED, ErrorKind.QUOTA})
# The cloud, or its administrator, has no more for now.
_SCARCE_KINDS = frozenset({ErrorKind.CAPACITY, ErrorKind.QUOTA})
# A fleet's row is written with each pass.
OFFERED_MAX = 12
# Of the cloud's words that a pool keeps.
_MESSAGE_CHARACTERS_MAX = 300
# The first and the longest back-off after each kind of error.
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
    """A launch error at `time_ms`."""

    kind: ErrorKind
    message: str
    time_ms: int


def health_after_failure(
    health: OfferingHealth, failure: Failure, limit: int, draw: Callable[[], float]
) -> OfferingHealth:
    """An offering's health after one more error; `limit` is `launch_error_limit`, `draw` gives
    numbers from 0 to below 1.
    """
    first_ms, most_ms = _BACKOFF_MS[failure.kind]
    faults = health.faults + (failure.kind not in _TRANSIENT_KINDS)
    given_up = 0 < limit <= faults
    ceiling_ms = min(most_ms, first_ms << min(health.errors, 20))
    if given_up:
        ceiling_ms = PROBE_PERIOD_MS
    pause_ms = ceiling_ms // 2 + int(draw() * (ceiling_ms // 2))
    return replace(
        health,
        errors=health.errors + 1,
        faults=faults,
        kind=failure.kind,
        message=failure.message,
        failed_ms=failure.time_ms,
        retry_ms=failure.time_ms + pause_ms,
        given_up=given_up,
    )


def health_after_failed_boot(
    health: OfferingHealth, failure: Failure, limit: int, draw: Callable[[], float]
) -> OfferingHealth:
    """An offering's health after an instance of it failed before its agent came."""
    failed = health_after_failure(health, failure, limit, draw)
    return replace(failed, boot_failed_ms=failure.time_ms)


def health_after_launch(health: OfferingHealth, now_ms: int) -> OfferingHealth:
    """An offering's health after a launch succeeded. What it is given up for, and boot errors, stay
    until an agent connects.
    """
    if health.given_up:
        return replace(health, retry_ms=now_ms + PROBE_PERIOD_MS)
    if health.boot_failed_ms and health.boot_failed_ms == health.failed_ms:
        return health
    return replace(health, errors=0, kind=None, message="", failed_ms=0, retry_ms=0)


def health_after_connection(health: OfferingHealth) -> OfferingHealth:
    """An offering's health after the agent of one of its instances connected."""
    return OfferingHealth(interrupted_ms=health.interrupted_ms)


def health_without_future(health: OfferingHealth, now_ms: int) -> OfferingHealth:
    """An offering's health with times that a clock which was ahead has set moved to now: no pause
    is longer than that between probes.
    """
    ahead_ms = max(0, health.failed_ms - now_ms)
    return replace(
        health,
        failed_ms=health.failed_ms - ahead_ms,
        retry_ms=min(health.retry_ms - ahead_ms, now_ms + PROBE_PERIOD_MS),
        boot_failed_ms=min(health.boot_failed_ms, now_ms),
        interrupted_ms=min(health.interrupted_ms, now_ms),
    )


def offerings_with_prices(
    named: tuple[Offering, ...], known: tuple[Offering, ...]
) -> tuple[Offering, ...]:
    """The settings' offerings, with the cloud's prices where the settings have none; if there are
    no such offerings, those of the cloud.
    """
    prices = {offering.name: offering.price_per_hour for offering in known}
    with_prices = (
        replace(offering, price_per_hour=offering.price_per_hour or prices.get(offering.name, 0))
        for offering in named
    )
    return tuple(with_prices) or known


def usable_offerings(
    settings: ProvisionerSettings,
    offerings: tuple[Offering, ...],
    health: Mapping[str, OfferingHealth],
    now_ms: int,
) -> tuple[tuple[Offering, ...], tuple[Offering, ...]]:
    """The offerings that may be launched now, the best first, and the on-demand ones that may.

    None while the cloud throttles: its limit is on our calls, not on an offering.
    """
    if any(
        offering_health.kind is ErrorKind.THROTTLED and offering_health.retry_ms > now_ms
        for offering_health in health.values()
    ):
        return (), ()

    def is_avoided(offering: Offering) -> bool:
        taken_ms = health.get(offering.name, FRESH).interrupted_ms
        return taken_ms > 0 and now_ms - taken_ms < AVOID_AFTER_INTERRUPTION_MS

    able = [item for item in offerings if _can_try(health.get(item.name, FRESH), now_ms)]
    spot = sorted((item for item in able if item.market is Market.SPOT), key=is_avoided)
    on_demand = tuple(item for item in able if item.market is Market.ON_DEMAND)
    has_spot = any(item.market is Market.SPOT for item in offerings)
    falls_back = settings.on_demand_fallback or not has_spot
    return (*spot, *(on_demand if falls_back else ())), on_demand


def cheapest_offerings(offerings: tuple[Offering, ...]) -> tuple[Offering, ...]:
    """The cheapest offerings for a slot, at most so many as a fleet's row keeps; those whose price
    nobody knows come last.
    """
    by_price = sorted(
        offerings,
        key=lambda offering: (
            not offering.price_per_hour,
            offering.price_per_hour / max(1, offering.slots),
            offering.name,
        ),
    )
    return tuple(by_price[:OFFERED_MAX])


def supply_gap(
    settings: ProvisionerSettings,
    offerings: tuple[Offering, ...],
    health: Mapping[str, OfferingHealth],
    now_ms: int,
) -> tuple[str, int]:
    """Why no offering may be launched now, if all that the pool would launch lack capacity or
    quota, and when the first is tried again; "" and 0 otherwise.
    """
    spot = tuple(offering for offering in offerings if offering.market is Market.SPOT)
    wanted = spot if spot and not settings.on_demand_fallback else offerings
    known = [health.get(offering.name, FRESH) for offering in wanted]
    if not known or any(
        offering_health.kind not in _SCARCE_KINDS or _can_try(offering_health, now_ms)
        for offering_health in known
    ):
        return "", 0
    first = min(range(len(known)), key=lambda number: known[number].retry_ms)
    message = known[first].message[:_MESSAGE_CHARACTERS_MAX]
    text = f"no offering has capacity or quota; {wanted[first].name}: {message}"
    return text, known[first].retry_ms


def unavailability_text(
    offerings: tuple[Offering, ...], health: Mapping[str, OfferingHealth], now_ms: int
) -> str:
    """Why the offerings that cannot be launched now cannot, in words for users; "" if all can."""
    reasons = []
    for offering in offerings:
        known = health.get(offering.name, FRESH)
        if _can_try(known, now_ms):
            continue
        wait = f"in {max(0, known.retry_ms - now_ms) // 1000} s"
        until = f"tried again {wait}"
        if known.given_up:
            until = f"given up after {known.faults} errors; one instance is tried {wait}"
        reasons.append(f"{offering.name}: {known.kind}: {known.message} ({until})")
    return "; ".join(reasons)


def limit_to_probes(
    launches: Sequence[Launch], health: Mapping[str, OfferingHealth]
) -> tuple[tuple[Launch, ...], str]:
    """The launches with one instance of each offering that is given up, and why, "" if none is."""
    limited, reasons = [], []
    for launch in launches:
        known = health.get(launch.offering.name, FRESH)
        limited.append(Launch(launch.offering, 1) if known.given_up else launch)
        if known.given_up and launch.count > 1:
            reasons.append(
                f"{launch.offering.name} failed {known.faults} times: one instance is launched "
                "as a test before more"
            )
    return tuple(limited), "; ".join(reasons)


def _can_try(health: OfferingHealth, now_ms: int) -> bool:
    return health.retry_ms <= now_ms
