"""The health of offerings: back-off after failures, and the choice of launchable offerings. Pure.

An offering that failed is not tried again before its back-off ends. The back-off doubles with each
consecutive error up to a maximum; half of it is fixed and the other half is random. After
`launch_error_limit` faults (errors other than capacity, quota or throttling), the offering is given
up: until an agent of one of its instances enrols, it is tried with a single instance, once an hour
at most. No offering is closed for ever.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from control_plane.fleet.records import ErrorKind, Market, Offering, OfferingHealth
from provisioner.model import MINUTE_MS, Launch, ProvisionerSettings

FRESH = OfferingHealth()
# After an interruption, an offering is sorted last within the market for this time.
AVOID_AFTER_INTERRUPTION_MS = 10 * MINUTE_MS
# The maximum time between two attempts with an offering that is given up.
PROBE_PERIOD_MS = 60 * MINUTE_MS

# Errors that cost nothing and may pass at any time; an offering is never given up for them.
_TRANSIENT_KINDS = frozenset({ErrorKind.CAPACITY, ErrorKind.THROTTLED, ErrorKind.QUOTA})
# Errors that mean that no more instances are available for now.
_SCARCE_KINDS = frozenset({ErrorKind.CAPACITY, ErrorKind.QUOTA})
# Each pass writes the fleet's row, so the row keeps few offerings.
OFFERED_MAX = 12
# The maximum length of a cloud's message in a pool's state.
_MESSAGE_CHARACTERS_MAX = 300
# The first and the maximum back-off after each kind of error.
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
    """Return an offering's health after another error.

    - `errors`: one more.
    - `faults`: one more, unless the error is a lack of capacity, a used-up quota or throttling.
    - `given_up`: whether the faults reach `limit`. A given-up offering is launched with a single
      instance only.
    - `kind`, `message`, `failed_ms`: those of `failure`.
    - `retry_ms`: the time of the next attempt. The back-off from the error's time is random, from
      half to all of the longest time. This is PROBE_PERIOD_MS for a given-up offering. Otherwise
      the longest time doubles with each consecutive error, up to a maximum for the error's kind.
    - `boot_failed_ms`, `interrupted_ms`: unchanged.

    Args:
        health: the health before.
        failure: the error, with its time.
        limit: the pool's `launch_error_limit`; 0 never gives up.
        draw: returns a random number from 0 to below 1.
    """
    faults = health.faults + (failure.kind not in _TRANSIENT_KINDS)
    given_up = 0 < limit <= faults
    ceiling_ms = PROBE_PERIOD_MS if given_up else _backoff_ms(failure.kind, health.errors)
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


def _backoff_ms(kind: ErrorKind, errors: int) -> int:
    """Return the longest back-off after an error of `kind` that follows `errors` earlier errors.

    The time doubles with each earlier error, up to the kind's maximum.
    """
    first_ms, most_ms = _BACKOFF_MS[kind]
    return min(most_ms, first_ms << min(errors, 20))


def health_after_failed_boot(
    health: OfferingHealth, failure: Failure, limit: int, draw: Callable[[], float]
) -> OfferingHealth:
    """Return an offering's health after a failed boot: as after an error, with `boot_failed_ms`.

    The failure counts in `errors`, and in `faults` unless its kind is capacity, quota or throttling
    (`health_after_failure`). The offering gets a new back-off, and is given up from `limit` faults
    on. `boot_failed_ms` is the failure's time, and protects the back-off from
    `health_after_launch`.

    Args:
        health: the health before.
        failure: the failed boot, with the time.
        limit: the pool's `launch_error_limit`, the faults after which the offering is given up; 0
            never gives up.
        draw: returns a random number from 0 to below 1.
    """
    failed = health_after_failure(health, failure, limit, draw)
    return replace(failed, boot_failed_ms=failure.time_ms)


def health_after_launch(health: OfferingHealth, now_ms: int) -> OfferingHealth:
    """Return an offering's health after a successful launch.

    - The offering is given up, so a single instance was launched: only the next attempt moves, to
      PROBE_PERIOD_MS after `now_ms`.
    - The last error was a failed boot: the health is unchanged, with the back-off.
    - In any other case, the last error, the back-off and the count `errors` are reset.

    `faults`, `boot_failed_ms` and `interrupted_ms` stay in all cases, because only a connected
    agent proves the offering.
    """
    if health.given_up:
        return replace(health, retry_ms=now_ms + PROBE_PERIOD_MS)
    if health.boot_failed_ms and health.boot_failed_ms == health.failed_ms:
        return health
    return replace(health, errors=0, kind=None, message="", failed_ms=0, retry_ms=0)


def health_after_connection(health: OfferingHealth) -> OfferingHealth:
    """Return an offering's health after an agent connected: only the last interruption stays.

    Errors, faults and back-off are reset, and launches of several instances are allowed again.
    """
    return OfferingHealth(interrupted_ms=health.interrupted_ms)


def health_after_freed_quota(health: OfferingHealth, now_ms: int) -> OfferingHealth:
    """Return an offering's health after an instance of the pool has ended, which may free a quota.

    If the last error was a used-up quota, the next attempt is due now. The error and its count
    stay, so that another failure has a longer back-off. An offering that is given up keeps its
    back-off.
    """
    if health.kind is not ErrorKind.QUOTA or health.given_up:
        return health
    return replace(health, retry_ms=min(health.retry_ms, now_ms))


def health_without_future(health: OfferingHealth, now_ms: int) -> OfferingHealth:
    """Return an offering's health, moving times in the future to `now_ms`.

    A clock that was ahead has set such times. The retry moves by the same amount as the failure,
    and is due within PROBE_PERIOD_MS.
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
    """Return the offerings of the settings with prices. Without any, return the cloud's offerings.

    An offering without a price in the settings gets the cloud's price of the offering with the same
    name, or 0 if that is unknown. The cloud's other offerings are left out, and the order of the
    settings stays. If the settings name no offering, return `known` unchanged.

    Args:
        named: the offerings of the settings.
        known: the cloud's offerings, with prices in dollars per hour.
    """
    prices = {offering.name: offering.price_per_hour for offering in known}
    with_prices = (
        replace(offering, price_per_hour=offering.price_per_hour or prices.get(offering.name, 0))
        for offering in named
    )
    return tuple(with_prices) or known


class UsableOfferings(NamedTuple):
    """The offerings that may be launched now; offerings in back-off are left out."""

    order: tuple[Offering, ...] = ()
    """The offerings to launch, the best first.

    The spot offerings come first, and those interrupted within AVOID_AFTER_INTERRUPTION_MS last
    among them. The on-demand offerings follow if the pool falls back to them, or sells no spot
    offering.
    """
    on_demand: tuple[Offering, ...] = ()
    """The on-demand offerings, also if `order` lacks them."""


def usable_offerings(
    settings: ProvisionerSettings,
    offerings: tuple[Offering, ...],
    health: Mapping[str, OfferingHealth],
    now_ms: int,
) -> UsableOfferings:
    """Return the offerings without a back-off, which may be launched now.

    Both fields of the result keep the given order within a market. Spot offerings that were
    interrupted within AVOID_AFTER_INTERRUPTION_MS come last on their market. On-demand offerings
    are in `order` only if `settings.on_demand_fallback` is set, or if `offerings` has no spot
    offering. Both fields are empty while any offering in `health` is in back-off after throttling,
    because throttling limits all calls.
    """
    if any(
        offering_health.kind is ErrorKind.THROTTLED and offering_health.retry_ms > now_ms
        for offering_health in health.values()
    ):
        return UsableOfferings()

    def is_avoided(offering: Offering) -> bool:
        taken_ms = health.get(offering.name, FRESH).interrupted_ms
        return taken_ms > 0 and now_ms - taken_ms < AVOID_AFTER_INTERRUPTION_MS

    able = [item for item in offerings if _can_try(health.get(item.name, FRESH), now_ms)]
    spot = sorted((item for item in able if item.market is Market.SPOT), key=is_avoided)
    on_demand = tuple(item for item in able if item.market is Market.ON_DEMAND)
    has_spot = any(item.market is Market.SPOT for item in offerings)
    falls_back = settings.on_demand_fallback or not has_spot
    return UsableOfferings((*spot, *(on_demand if falls_back else ())), on_demand)


def cheapest_offerings(offerings: tuple[Offering, ...]) -> tuple[Offering, ...]:
    """Return up to OFFERED_MAX offerings, the lowest price per slot first.

    Offerings with the price 0, which is unknown, come last. Equal prices are sorted by name. An
    offering with 0 slots is sorted by the price of the instance.
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


class SupplyGap(NamedTuple):
    """A time in which a pool can get no instances. By default, no gap."""

    reason: str = ""
    """Why no offering is available, for users; "" if an offering may be available."""
    until_ms: int = 0
    """The time of the next launch attempt in epoch milliseconds; 0 without a gap."""


def supply_gap(
    settings: ProvisionerSettings,
    offerings: tuple[Offering, ...],
    health: Mapping[str, OfferingHealth],
    now_ms: int,
) -> SupplyGap:
    """Return why the pool can get no instances for lack of capacity or quota, and until when.

    A gap exists only if all offerings that the pool may use are in back-off, each after a lack of
    capacity or quota. Without offerings, no gap exists. On-demand offerings count only if
    `settings.on_demand_fallback` is set or the pool has no spot offering. The reason names the
    offering whose back-off ends first, with the shortened message of its error. The gap ends with
    this back-off.
    """
    spot = tuple(offering for offering in offerings if offering.market is Market.SPOT)
    wanted = spot if spot and not settings.on_demand_fallback else offerings
    known = [health.get(offering.name, FRESH) for offering in wanted]
    if not known or any(
        offering_health.kind not in _SCARCE_KINDS or _can_try(offering_health, now_ms)
        for offering_health in known
    ):
        return SupplyGap()
    first = min(range(len(known)), key=lambda number: known[number].retry_ms)
    message = known[first].message[:_MESSAGE_CHARACTERS_MAX]
    text = f"no offering has capacity or quota; {wanted[first].name}: {message}"
    return SupplyGap(text, known[first].retry_ms)


def unavailability_text(
    offerings: tuple[Offering, ...], health: Mapping[str, OfferingHealth], now_ms: int
) -> str:
    """Return why offerings cannot be launched now, for users; "" if no offering is in back-off.

    The text names each offering in back-off, in the given order, with the last error and the
    seconds until the next attempt. For a given-up offering, the text names the number of faults.
    """
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
) -> tuple[Launch, ...]:
    """Return the launches in order, with a single instance for each given-up offering's launch.

    An offering is given up after `launch_error_limit` faults (`OfferingHealth.given_up`). Each
    launch of a given-up offering is reduced separately, has `together` unset and no zone, also if
    its count was 1 before. The other launches stay as they are.
    """
    return tuple(
        Launch(launch.offering, 1) if health.get(launch.offering.name, FRESH).given_up else launch
        for launch in launches
    )


def probe_reason(launches: Sequence[Launch], health: Mapping[str, OfferingHealth]) -> str:
    """Return why `limit_to_probes` reduces launches, for users; "" without a reduction.

    The text names each given-up offering with a launch of several instances, and the number of its
    faults. `launches` are the launches before the reduction.
    """
    return "; ".join(
        f"{launch.offering.name} failed {health[launch.offering.name].faults} times: one instance "
        "is launched as a test before more"
        for launch in launches
        if launch.count > 1 and health.get(launch.offering.name, FRESH).given_up
    )


def _can_try(health: OfferingHealth, now_ms: int) -> bool:
    """Whether the offering's back-off is over; True for an offering without a back-off."""
    return health.retry_ms <= now_ms
