"""The number of instances to launch, of which offerings, for the pending work.

With one size of instance and requests that fill it this is the decider of Determined 0.19: the
pending slots, capped for each job by what it may still have, in whole instances, less those that
are starting. Requests that do not fill an instance are packed, the largest first, each into the
fullest instance that has room (best fit decreasing). With several sizes of instance each request
counts for the first offering that can serve it, alone or as one of several whole instances.

A request over several instances is served by all of them or not at all. Those of it that are
there without work, which nothing else could use, count like those that start; where even with them
it cannot have enough below the maximum, it counts for the next offering that can serve it, and
none is launched for it where there is no other. The one that has waited too long comes first, and
counts those with work too: the pool holds them for it, but only once all are there (reservations.py
of the scheduler).
"""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import NamedTuple

from control_plane.fleet.records import Market, Offering
from provisioner.model import Demand, Launch, ProvisionerSettings
from provisioner.overdue_requests import OverdueRequest, servable_needs, waits_for_capacity
from provisioner.request_shapes import (
    InstanceBounds,
    RequestShape,
    can_serve,
    count_requests,
    request_shapes,
)


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
class FreeCapacity:
    """Slots of an instance that are not yet assigned to any request; `size` is all it has. One
    with work has none.

    `is_connected`: its agent is there, and the scheduler has used it for what fits on it alone;
    `zone`: where it is, "" where that is not known.
    """

    size: int
    slots: int
    market: Market
    is_connected: bool = False
    zone: str = ""
    has_work: bool = False

    def may_serve(self, market: Market | None) -> bool:
        """Whether a request of a market may run here: on what is there, which the scheduler uses
        however it was bought, or on a fresh one of the market. Spot requests may run on demand too.
        """
        return self.is_connected or market in (None, Market.SPOT) or market is self.market

    @property
    def is_empty(self) -> bool:
        """Whether nothing is assigned to it."""
        return self.slots == self.size


class SizedLaunches(NamedTuple):
    """Launches, and whether a request over several instances gets none for want of room."""

    launches: tuple[Launch, ...]
    is_short: bool


def launches_for_demand(
    demand: Demand,
    order: Sequence[Offering],
    capacity: Sequence[FreeCapacity],
    bounds: InstanceBounds,
    on_demand: Sequence[Offering] = (),
    overdue: OverdueRequest | None = None,
) -> SizedLaunches:
    """The launches that serve all pending requests, beside the instances in `capacity`, whose free
    slots are used up.

    `order`: the offerings that may be launched, the best first; `on_demand`: those that requests
    restricted to that market may use, even if they are not in `order`; `overdue`: the request that
    has waited too long.
    """
    launches: list[Launch] = []
    left, served = request_shapes(demand), Counter[RequestShape]()
    room, short = bounds.room, set[RequestShape]()
    able = (*order, *(item for item in on_demand if item not in order))
    starting = sum(not free_capacity.is_connected for free_capacity in capacity)
    if overdue is not None:
        # Before the others: these would take the room below the maximum.
        launches, fresh = _launches_for_overdue(
            demand, overdue, able, order, capacity, bounds, served
        )
        there = Counter(free_capacity.size for free_capacity in capacity)
        if not any(served.values()) and waits_for_capacity(overdue, there, bounds):
            return SizedLaunches((), True)
        capacity = [*capacity, *fresh]
        room -= sum(launch.count for launch in launches)
    for offering in able:
        needs = servable_needs(left, offering, order, bounds.instances_max)
        gangs, lacking = _launches_for_spanning(demand, needs, offering, capacity, room, served)
        left -= needs - lacking
        short = (short - needs) | lacking
        singles = _instances_for_single(
            demand, needs, offering.slots, offering.market, capacity, served
        )
        room = max(0, room - singles - sum(gang.count for gang in gangs))
        launches += gangs
        if singles:
            launches.append(Launch(offering, singles))
    return SizedLaunches(_add_zero_slot_launches(launches, demand, order, starting), bool(short))


def _launches_for_overdue(
    demand: Demand,
    overdue: OverdueRequest,
    able: Sequence[Offering],
    order: Sequence[Offering],
    capacity: Sequence[FreeCapacity],
    bounds: InstanceBounds,
    served: Counter[RequestShape],
) -> tuple[list[Launch], list[FreeCapacity]]:
    """The launches for the request that has waited too long, and what of them it leaves to others;
    none where an instance that is there can hold it alone.
    """
    launches, fresh, room = list[Launch](), list[FreeCapacity](), bounds.room
    if any(free_capacity.size >= overdue.slots for free_capacity in capacity):
        return launches, fresh
    for offering in able:
        needs = servable_needs(overdue.shapes, offering, order, bounds.instances_max)
        if overdue.slots > offering.slots:
            gangs, _ = _launches_for_spanning(
                demand, needs, offering, capacity, room, served, overdue.shapes
            )
            room -= sum(gang.count for gang in gangs)
            launches += gangs
        elif needs and room > 0 and not any(served[need] for need in overdue.shapes):
            served[min(needs, key=str)] += 1
            room -= 1
            launches.append(Launch(offering, 1))
            left = offering.slots - overdue.slots
            fresh.append(FreeCapacity(offering.slots, left, offering.market, zone=offering.zone))
    return launches, fresh


def count_kept_idle(
    demand: Demand, size: int, idle: int, busy: int, starting: int, bounds: InstanceBounds
) -> int:
    """How many of the idle instances of so many slots pending requests fit: those that need one
    instance, and those over several, once those that start or may be launched have come, and for
    the one that has waited too long the `busy` ones too.

    The scheduler does not mind on which market an instance was bought.
    """
    if demand.hold_reason:
        return 0
    demand = replace(demand, jobs=tuple(replace(job, market=None) for job in demand.jobs))
    kept = min(idle, _instances_for_single(demand, request_shapes(demand), size, Market.SPOT))
    overdue = next(
        (
            slots
            for slots, single_agent in demand.overdue
            if can_serve(size, RequestShape(slots, single_agent), bounds.instances_max)
        ),
        0,
    )
    if overdue > size and overdue // size <= idle + busy + starting + bounds.room:
        kept = max(kept, min(idle, overdue // size))
    for need, count in _ordered_requests(demand, request_shapes(demand)):
        if need.slots <= size or not can_serve(size, need, bounds.instances_max):
            continue
        for _ in range(count):
            wanted = need.slots // size
            if kept >= idle or wanted > idle - kept + starting + bounds.room:
                break
            kept += min(wanted, idle - kept)
    return kept


def needs_instances(demand: Demand, sizes: Collection[int], instances_max: int) -> bool:
    """Whether any pending request may have slots, and instances of one of these sizes serve it."""
    needs = {
        need
        for need in request_shapes(demand)
        if any(can_serve(size, need, instances_max) for size in sizes)
    }
    return bool(demand.zero_slot_requests) or any(count_requests(demand, needs).values())


def needs_more_room(
    demand: Demand, sizes: Collection[int], other: int, bounds: InstanceBounds
) -> bool:
    """Whether a pending request that instances of `other` slots do not serve needs more of those
    that do, of any of these sizes, than there is room for.
    """
    for need in request_shapes(demand):
        if not can_serve(other, need, bounds.instances_max):
            able = [size for size in sizes if can_serve(size, need, bounds.instances_max)]
            if able and min(ceil(need.slots / size) for size in able) > bounds.room:
                return True
    return False


def clamp_launches(
    launches: Sequence[Launch], bounds: LaunchBounds, first: Offering
) -> tuple[Launch, ...]:
    """The launches within the bounds; added ones are of `first`. The upper bound wins."""
    kept: list[Launch] = []
    left = max(0, bounds.most)
    for launch in launches:
        count = min(left, launch.count)
        if launch.together and count < launch.count:
            continue
        kept += [replace(launch, count=count)] if count else []
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
    lacking -= sum(item.count for item in launches if item.offering.market is Market.ON_DEMAND)
    done: list[Launch] = []
    for launch in launches:
        slots = launch.offering.slots
        instead = next((offering for offering in on_demand if offering.slots == slots), None)
        swaps = launch.offering.market is Market.SPOT and instead is not None
        count = min(launch.count, max(0, lacking)) if swaps else 0
        if launch.together and count:
            # A gang is on one market.
            count = launch.count
        if instead is not None and count:
            done.append(replace(launch, offering=instead, count=count))
            lacking -= count
        if launch.count > count:
            done.append(replace(launch, count=launch.count - count))
    return tuple(_merge_launches(done))


def unservable_sizes(
    demand: Demand, offerings: Sequence[Offering], instances_max: int
) -> list[int]:
    """The pending sizes, in slots, that no offering can serve."""
    large = {
        need.slots
        for need in request_shapes(demand)
        if not any(can_serve(offering.slots, need, instances_max) for offering in offerings)
    }
    return sorted(large)


def _ordered_requests(
    demand: Demand, needs: set[RequestShape], served: Counter[RequestShape] | None = None
) -> list[tuple[RequestShape, int]]:
    """The requests of these shapes that their jobs may have at once, the smallest first, without
    those that are `served` already.
    """
    requests = count_requests(demand, needs) - (served or Counter())
    return sorted(
        requests.items(),
        key=lambda item: (item[0].slots, item[0].single_agent, str(item[0].market)),
    )


def _launches_for_spanning(
    demand: Demand,
    needs: set[RequestShape],
    offering: Offering,
    capacity: Sequence[FreeCapacity],
    room: int,
    served: Counter[RequestShape],
    overdue: Collection[RequestShape] = (),
) -> tuple[list[Launch], set[RequestShape]]:
    """A launch for each request that needs several whole instances, of which `room` may be had, and
    the shapes of those for which that is too few. `served` counts those that have enough;
    `overdue`: the shapes of which the first request may count on instances with work.
    """
    launches: list[Launch] = []
    lacking = set[RequestShape]()
    spanning = {need for need in needs if need.slots > offering.slots}
    for need, count in _ordered_requests(demand, spanning, served):
        for _ in range(count - _take_starting(need, count, capacity, served)):
            wanted = need.slots // offering.slots
            is_next = need in overdue and not any(served[one] for one in overdue)
            usable = [
                free_capacity
                for free_capacity in sorted(capacity, key=lambda one: one.has_work)
                if free_capacity.size == offering.slots
                and (free_capacity.is_empty or (is_next and free_capacity.has_work))
                and free_capacity.may_serve(need.market)
            ][:wanted]
            fresh = wanted - len(usable)
            if fresh > room:
                lacking.add(need)
                break
            room -= fresh
            served[need] += 1
            if fresh:
                zones = Counter(
                    free_capacity.zone for free_capacity in usable if free_capacity.zone
                )
                zone = zones.most_common(1)[0][0] if zones else ""
                launches.append(Launch(offering, fresh, together=True, zone=zone))
            for instance in usable:
                instance.slots = 0
    return launches, lacking


def _take_starting(
    need: RequestShape, count: int, capacity: Sequence[FreeCapacity], served: Counter[RequestShape]
) -> int:
    """Assign up to this many requests to larger instances that start, each to one; returns how
    many.
    """
    taken = 0
    for instance in sorted(capacity, key=lambda item: item.slots):
        while taken < count and not instance.is_connected and instance.slots >= need.slots:
            if not instance.may_serve(need.market):
                break
            instance.slots -= need.slots
            taken += 1
    served[need] += taken
    return taken


def _instances_for_single(
    demand: Demand,
    needs: set[RequestShape],
    size: int,
    market: Market,
    capacity: Sequence[FreeCapacity] = (),
    served: Counter[RequestShape] | None = None,
) -> int:
    """Fresh instances for the requests that fit on one, after what starts has taken its share, but
    for those that have been `served` by several.
    """
    single = {need for need in needs if 0 < need.slots <= size}
    fresh: list[FreeCapacity] = []
    for need, count in reversed(_ordered_requests(demand, single, served)):
        left = count
        for instance in sorted((*capacity, *fresh), key=lambda item: item.slots):
            if left and not instance.is_connected and instance.may_serve(need.market):
                taken = min(left, instance.slots // need.slots)
                instance.slots -= taken * need.slots
                left -= taken
        while left:
            instance = FreeCapacity(size, size, market)
            taken = min(left, instance.slots // need.slots)
            instance.slots -= taken * need.slots
            left -= taken
            fresh.append(instance)
    return len(fresh)


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
    """The launches with those of one offering as one, but each gang's by itself."""
    counts: dict[Offering, int] = {}
    for launch in launches:
        if not launch.together:
            counts[launch.offering] = counts.get(launch.offering, 0) + launch.count
    yield from (launch for launch in launches if launch.together)
    yield from (Launch(offering, count) for offering, count in counts.items())
