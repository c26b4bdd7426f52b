"""The limits on a list of launches: the pool's bounds and the on-demand share. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil

from control_plane.fleet.records import Market, Offering
from provisioner.model import Launch, ProvisionerSettings


@dataclass(frozen=True, slots=True)
class LaunchBounds:
    """The bounds of the number of instances to launch."""

    least: int
    """The number of instances to launch even without pending work, for the pool's minimum."""
    most: int
    """The number of instances that the pool's maximum allows."""


@dataclass(frozen=True, slots=True)
class MarketCounts:
    """The number of instances that count against the pool's maximum or are being launched."""

    total: int
    """The number of instances on both markets."""
    on_demand: int
    """The number of on-demand instances, which `total` includes."""


def clamp_launches(
    launches: Sequence[Launch], bounds: LaunchBounds, first: Offering
) -> tuple[Launch, ...]:
    """Return the launches, limited to `bounds.most` instances and raised to `bounds.least`.

    First, the launches are limited (`_limit_launches`). If fewer than `bounds.least` instances are
    left, the missing ones are added with the offering `first`, but only as many as `bounds.most`
    allows. If instances are added, `merge_launches` merges the launches of each offering. Otherwise
    the limited launches are returned in order. The result is empty if `bounds.most` <= 0.
    """
    kept = _limit_launches(launches, bounds.most)
    total = sum(launch.count for launch in kept)
    missing = min(max(0, bounds.most) - total, bounds.least - total)
    return tuple(kept if missing <= 0 else merge_launches([*kept, Launch(first, missing)]))


def _limit_launches(launches: Sequence[Launch], most: int) -> list[Launch]:
    """Return the launches in order, limited to `most` instances; earlier launches count first.

    A launch that exceeds the limit is reduced to the rest. A launch with `together`, for a request
    on several instances, is left out as a whole instead, and later launches may still fit. A launch
    without an instance is left out. Empty if `most` <= 0.
    """
    kept: list[Launch] = []
    left = max(0, most)
    for launch in launches:
        count = min(left, launch.count)
        if launch.together and count < launch.count:
            continue
        kept += [replace(launch, count=count)] if count else []
        left -= count
    return kept


def apply_on_demand_base(
    launches: Sequence[Launch],
    settings: ProvisionerSettings,
    on_demand: Sequence[Offering],
    existing: MarketCounts,
) -> tuple[Launch, ...]:
    """Return the launches, moving spot launches to on-demand offerings for the on-demand base.

    The share `settings.on_demand_base` of all existing and launched instances, rounded up, is to be
    on demand. Earlier launches move first, until the share is reached (`_moved_to_on_demand`). The
    share is missed if too few launches can move. In the result, launches with `together` come
    first, and other launches of an offering are merged. The total number of instances stays.

    Args:
        launches: the launches, in order of precedence.
        settings: the pool's settings.
        on_demand: the on-demand offerings that may be launched, the best first.
        existing: the number of instances that exist or are being launched.
    """
    total = existing.total + sum(launch.count for launch in launches)
    missing = ceil(settings.on_demand_base * total) - existing.on_demand
    missing -= sum(item.count for item in launches if item.offering.market is Market.ON_DEMAND)
    done: list[Launch] = []
    for launch in launches:
        moved = _moved_to_on_demand(launch, on_demand, missing)
        count = 0
        if moved is not None:
            done.append(moved)
            count = moved.count
            missing -= count
        if launch.count > count:
            done.append(replace(launch, count=launch.count - count))
    return tuple(merge_launches(done))


def _moved_to_on_demand(
    launch: Launch, on_demand: Sequence[Offering], missing: int
) -> Launch | None:
    """Return the part of a spot launch that moves to the on-demand market.

    The part has up to `missing` instances, of the first offering in `on_demand` with the same
    number of slots. A launch with `together`, for a request on several instances, moves as a whole,
    also beyond `missing`. Return None if `missing` <= 0, for an on-demand launch, or without such
    an offering.
    """
    slots = launch.offering.slots
    instead = next((offering for offering in on_demand if offering.slots == slots), None)
    if missing <= 0 or instead is None or launch.offering.market is not Market.SPOT:
        return None
    # All instances of a gang are bought on a single market.
    count = launch.count if launch.together else min(launch.count, missing)
    return replace(launch, offering=instead, count=count)


def merge_launches(launches: Sequence[Launch]) -> Iterator[Launch]:
    """Yield the launches with `together` unchanged, then the sum of the rest for each offering.

    A sum has no zone. The offerings keep the order in which they first appear.
    """
    counts: dict[Offering, int] = {}
    for launch in launches:
        if not launch.together:
            counts[launch.offering] = counts.get(launch.offering, 0) + launch.count
    yield from (launch for launch in launches if launch.together)
    yield from (Launch(offering, count) for offering, count in counts.items())
