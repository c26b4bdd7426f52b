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

    Earlier launches take precedence. A launch that exceeds the limit is reduced to the rest. A
    launch for a gang (`together`: a request on several instances) is left out as a whole instead,
    and later launches may still fit. Added instances have the offering `first`, and are merged with
    its other launches without `together`. If instances are added, gangs come first in the result.
    The upper bound wins over the lower one. The result is empty if `bounds.most` <= 0.
    """
    kept: list[Launch] = []
    left = max(0, bounds.most)
    for launch in launches:
        count = min(left, launch.count)
        if launch.together and count < launch.count:
            continue
        kept += [replace(launch, count=count)] if count else []
        left -= count
    total = sum(launch.count for launch in kept)
    missing = min(left, bounds.least - total)
    return tuple(kept if missing <= 0 else merge_launches([*kept, Launch(first, missing)]))


def apply_on_demand_base(
    launches: Sequence[Launch],
    settings: ProvisionerSettings,
    on_demand: Sequence[Offering],
    existing: MarketCounts,
) -> tuple[Launch, ...]:
    """Return the launches, moving spot launches to on-demand offerings for the on-demand base.

    The share `settings.on_demand_base` of all existing and launched instances, rounded up, is to be
    on demand. Earlier launches move first, until the share is reached. A launch moves to the first
    offering in `on_demand` with the same number of slots. Without such an offering, the launch
    stays on the spot market, and the share may be missed. The launch for a gang, a request on
    several instances, moves as a whole, also beyond the share. Any other launch may be split. In
    the result, gangs come first, and other launches of an offering are merged. The total number of
    instances stays.

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
        slots = launch.offering.slots
        instead = next((offering for offering in on_demand if offering.slots == slots), None)
        swaps = launch.offering.market is Market.SPOT and instead is not None
        count = min(launch.count, max(0, missing)) if swaps else 0
        if launch.together and count:
            # All instances of a gang are bought on a single market.
            count = launch.count
        if instead is not None and count:
            done.append(replace(launch, offering=instead, count=count))
            missing -= count
        if launch.count > count:
            done.append(replace(launch, count=launch.count - count))
    return tuple(merge_launches(done))


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
