"""The number of instances to launch, of which offerings, for the pending work.

With one size of instance this is the decider of Determined 0.19: the pending slots, capped for each
job by what it may still have, in whole instances, less those that are starting. With several sizes
each request counts for the first offering that can serve it, alone or as one of several whole
instances, and starting instances count in slots.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

from control_plane.fleet.records import Market, Offering
from provisioner.model import Demand, JobDemand, Launch, ProvisionerSettings


@dataclass(frozen=True, slots=True)
class LaunchBounds:
    """The least number of instances to launch, whatever is pending, and the most."""

    least: int
    most: int


@dataclass(frozen=True, slots=True)
class MarketCounts:
    """Instances that run or start: all of them, and those on demand."""

    total: int
    on_demand: int


@dataclass
class StartingCapacity:
    """Slots of a starting instance that are not yet assigned to any request."""

    slots: int
    market: Market


class RequestShape(NamedTuple):
    """A request's slots, whether it must fit on one agent, and the market it is restricted to."""

    slots: int
    single_agent: bool
    market: Market | None = None


def can_serve(slots: int, need: RequestShape, instances_max: int) -> bool:
    """Whether a request fits into one instance of so many slots, or into several that it fills."""
    if need.slots <= slots:
        return True
    whole = slots > 0 and need.slots % slots == 0 and not need.single_agent
    return whole and need.slots // slots <= instances_max


def launches_for_demand(
    demand: Demand,
    order: Sequence[Offering],
    coming: Sequence[Offering],
    instances_max: int,
    on_demand: Sequence[Offering] = (),
) -> tuple[Launch, ...]:
    """The launches that serve all pending requests, beside the instances in `coming`.

    `order`: the offerings that may be launched, the best first; `on_demand`: those that requests
    restricted to that market may use, even if they are not in `order`.
    """
    credit = [StartingCapacity(offering.slots, offering.market) for offering in coming]
    launches = []
    left = _request_shapes(demand)
    for offering in (*order, *(it for it in on_demand if it not in order)):
        needs = {
            need
            for need in left
            if can_serve(offering.slots, need, instances_max)
            and (need.market is offering.market or (need.market is None and offering in order))
        }
        left -= needs
        slots = sum(_requested_slots(job, needs) for job in demand.jobs)
        slots -= _slots_served_by_starting(slots, credit, needs, instances_max)
        if slots > 0:
            launches.append(Launch(offering, ceil(slots / offering.slots)))
    return _add_zero_slot_launches(launches, demand, order, len(coming))


def clamp_launches(
    launches: Sequence[Launch], bounds: LaunchBounds, first: Offering
) -> tuple[Launch, ...]:
    """The launches within the bounds; added ones are of `first`. The upper bound wins."""
    kept: list[Launch] = []
    left = max(0, bounds.most)
    for launch in launches:
        count = min(left, launch.count)
        kept += [Launch(launch.offering, count)] if count else []
        left -= count
    total = sum(launch.count for launch in kept)
    lacking = min(left, bounds.least - total)
    return tuple(kept if lacking <= 0 else _merge_launches([*kept, Launch(first, lacking)]))


def apply_on_demand_base(
    launches: Sequence[Launch],
    settings: ProvisionerSettings,
    on_demand: Sequence[Offering],
    there: MarketCounts,
) -> tuple[Launch, ...]:
    """The launches with as many moved to on-demand offerings of the same size as the base share
    asks for, where there are such.
    """
    total = there.total + sum(launch.count for launch in launches)
    lacking = ceil(settings.on_demand_base * total) - there.on_demand
    lacking -= sum(it.count for it in launches if it.offering.market is Market.ON_DEMAND)
    done: list[Launch] = []
    for launch in launches:
        slots = launch.offering.slots
        instead = next((it for it in on_demand if it.slots == slots), None)
        swaps = launch.offering.market is Market.SPOT and instead is not None
        count = min(launch.count, max(0, lacking)) if swaps else 0
        if instead is not None and count:
            done.append(Launch(instead, count))
            lacking -= count
        if launch.count > count:
            done.append(Launch(launch.offering, launch.count - count))
    return tuple(_merge_launches(done))


def unservable_sizes(
    demand: Demand, offerings: Sequence[Offering], instances_max: int
) -> list[int]:
    """The pending sizes, in slots, that no offering can serve."""
    large = {
        need.slots
        for need in _request_shapes(demand)
        if not any(can_serve(it.slots, need, instances_max) for it in offerings)
    }
    return sorted(large)


def _request_shapes(demand: Demand) -> set[RequestShape]:
    return {_request_shape(size, job) for job in demand.jobs for size in job.pending_slots}


def _request_shape(size: int, job: JobDemand) -> RequestShape:
    return RequestShape(size, job.single_agent, job.market)


def _requested_slots(job: JobDemand, needs: set[RequestShape]) -> int:
    """Slots that the job can use at once: whole requests, the small ones first."""
    room, total = job.remaining_slots, 0
    for size, count in sorted(job.pending_slots.items()):
        if _request_shape(size, job) not in needs:
            continue
        if room is not None:
            count = min(count, max(0, room - total) // size)
        total += count * size
    return total


def _slots_served_by_starting(
    slots: int, credit: list[StartingCapacity], needs: set[RequestShape], instances_max: int
) -> int:
    """The part of `slots` that starting instances serve; their capacity is used up."""
    used = 0
    for coming in credit:
        fits = (
            can_serve(coming.slots, need, instances_max) and need.market in (None, coming.market)
            for need in needs
        )
        if coming.slots and any(fits):
            taken = min(coming.slots, slots - used)
            used += taken
            coming.slots -= taken
    return used


def _add_zero_slot_launches(
    launches: list[Launch], demand: Demand, order: Sequence[Offering], coming: int
) -> tuple[Launch, ...]:
    """The launches with enough instances for requests without slots too, which share instances with
    the others.
    """
    if not demand.aux_per_agent or not order:
        return tuple(launches)
    needed = ceil(demand.zero_slot_requests / demand.aux_per_agent) - coming
    lacking = needed - sum(launch.count for launch in launches)
    return tuple(
        _merge_launches([*launches, Launch(order[0], lacking)] if lacking > 0 else launches)
    )


def _merge_launches(launches: Sequence[Launch]) -> Iterator[Launch]:
    counts: dict[Offering, int] = {}
    for launch in launches:
        counts[launch.offering] = counts.get(launch.offering, 0) + launch.count
    return (Launch(offering, count) for offering, count in counts.items())
