"""The number and the offerings of instances to launch for the pending work. Pure.

For requests that fill instances of a single size, the rule is that of Determined 0.19: the pending
slots in whole instances, less the starting instances. The slots of a job are capped by its limit.
Smaller requests are packed, the largest first, each into the fullest instance that has room (best
fit decreasing). With several instance sizes, a request counts for the first offering that can serve
it, on one instance or on several that it fills.

A gang (a request that fills several instances) gets all of its instances or none. Idle and starting
instances count towards it. If the maximum leaves too little room, the gang counts for the next
offering that can serve it. If no offering is left, nothing is launched for the gang.

The overdue request is served first. Instances with work count towards an overdue gang as well: the
scheduler reserves them, but only once all are connected (scheduling/reservations.py).
"""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import NamedTuple

from control_plane.fleet.records import Market, Offering
from provisioner.launch_limits import merge_launches
from provisioner.model import Demand, Launch
from provisioner.overdue_requests import OverdueRequest, servable_shapes, waits_for_capacity
from provisioner.request_shapes import (
    InstanceBounds,
    RequestShape,
    can_serve,
    count_requests,
    request_shapes,
)


@dataclass
class FreeCapacity:
    """The unused slots of an instance."""

    size: int
    """The number of slots that the instance has."""
    slots: int
    """The number of slots that are not assigned to a request; 0 for an instance with work."""
    market: Market
    """The market on which the instance was bought."""
    is_connected: bool = False
    """Whether the agent is connected.

    The scheduler has already offered a connected agent to every request that fits on one instance.
    """
    zone: str = ""
    """The instance's zone, or "" if unknown."""
    has_work: bool = False
    """Whether allocations run on the instance."""
    agent: str = ""
    """The id of the instance's agent, or "" if no instance exists yet."""
    instance_type: str = ""
    """The instance type."""

    def may_serve(self, shape: RequestShape) -> bool:
        """Whether a request of a market may run on this instance. Free slots do not matter.

        False if the request excludes the agent, or refuses the type of an instance whose agent is
        not connected. True for a request without a market. True also if the instance is connected,
        since the scheduler ignores the market of connected instances. Otherwise, on-demand
        instances may serve spot requests, but not the reverse.
        """
        if self.agent in shape.excluded_agents:
            return False
        if not self.is_connected and self.instance_type in shape.refused_types:
            return False
        market = shape.market
        return self.is_connected or market in (None, Market.SPOT) or market is self.market

    @property
    def is_empty(self) -> bool:
        """Whether all of the instance's slots are unassigned."""
        return self.slots == self.size


class SizedLaunches(NamedTuple):
    """The launches for the pending work."""

    launches: tuple[Launch, ...]
    is_short: bool
    """Whether a request lacks room below the maximum.

    This is a gang (a request on several instances) whose missing instances exceed the room. Or this
    is the overdue request, the first that has waited longer than the pool allows, while instances
    drain for the request.
    """


class _OverdueLaunches(NamedTuple):
    """The launches for the overdue request, in order."""

    launches: list[Launch]
    unused: list[FreeCapacity]
    """The new instance of a single-instance request, with the slots that the request leaves free.

    Empty without such an instance; a gang leaves no slots free.
    """


class _GangLaunches(NamedTuple):
    """The launches of an offering for gangs, which are requests on several instances."""

    launches: list[Launch]
    """A launch for each gang that lacks instances."""
    too_large: set[RequestShape]
    """The shapes of the gangs whose missing instances exceed the room."""


def launches_for_demand(
    demand: Demand,
    order: Sequence[Offering],
    capacity: Sequence[FreeCapacity],
    bounds: InstanceBounds,
    on_demand: Sequence[Offering] = (),
    overdue: OverdueRequest | None = None,
) -> SizedLaunches:
    """Return the launches that the pending requests need in addition to `capacity`.

    - A single-instance request first uses free slots of starting instances. The scheduler has
      already offered connected instances to the request, so their free slots do not prevent a
      launch. The launches may exceed `bounds.room`; the caller clamps the result.
    - A gang (a request on several instances) first uses empty instances, connected or not. Its
      launch never exceeds `bounds.room`.
    - Zero-slot requests share the starting and the launched instances. Missing instances are of the
      first offering in `order`, and may exceed `bounds.room`.
    - A request that no usable offering serves gets nothing, and `is_short` does not count it.

    The records in `capacity` are changed: the slots that requests use are subtracted. Nothing is
    launched in a cloud here.

    Args:
        demand: the pending work.
        order: the offerings that may be launched, the best first.
        capacity: the instances that exist or are being launched.
        bounds: the room for launches, and the number of draining instances.
        on_demand: the offerings for requests that are restricted to the on-demand market; they may
            be absent from `order`.
        overdue: the request to serve first. If it gets nothing now, but draining instances will
            make room for it, nothing is launched at all.
    """
    launches: list[Launch] = []
    unserved, served = request_shapes(demand), Counter[RequestShape]()
    room, short = bounds.room, set[RequestShape]()
    usable = (*order, *(item for item in on_demand if item not in order))
    starting = sum(not instance.is_connected for instance in capacity)
    if overdue is not None:
        # Requests without precedence would use up the room below the maximum.
        launches, unused = _launches_for_overdue(
            demand, overdue, usable, order, capacity, bounds, served
        )
        sizes = Counter(instance.size for instance in capacity)
        if not any(served.values()) and waits_for_capacity(overdue, sizes, bounds):
            return SizedLaunches((), True)
        capacity = [*capacity, *unused]
        room -= sum(launch.count for launch in launches)
    for offering in usable:
        shapes = servable_shapes(unserved, offering, order, bounds.instances_max)
        gangs, too_large = _launches_for_gangs(demand, shapes, offering, capacity, room, served)
        unserved -= shapes - too_large
        short = (short - shapes) | too_large
        singles = _instances_for_single(
            demand, shapes, offering.slots, offering.market, capacity, served
        )
        room = max(0, room - singles - sum(gang.count for gang in gangs))
        launches += gangs
        if singles:
            launches.append(Launch(offering, singles))
    return SizedLaunches(_add_zero_slot_launches(launches, demand, order, starting), bool(short))


def _launches_for_overdue(
    demand: Demand,
    overdue: OverdueRequest,
    usable: Sequence[Offering],
    order: Sequence[Offering],
    capacity: Sequence[FreeCapacity],
    bounds: InstanceBounds,
    served: Counter[RequestShape],
) -> _OverdueLaunches:
    """Return the launches for the overdue request.

    `overdue` is the first servable request that has waited longer than the pool allows. Return no
    launches if an instance in `capacity` is large enough for the request, busy or not.

    The offerings in `usable` are tried in order.

    - The first offering with enough slots gives one instance for one request, unless a request of
      the overdue shapes was served before.
    - A smaller offering gives the missing instances of each pending gang of these shapes, while the
      room suffices. Only the first gang may use instances with work. The gangs use up free slots in
      `capacity`.

    Count the requests that get their instances in `served`. The launches together do not exceed
    `bounds.room`; without room, or without a fitting offering, return no launches.
    """
    launches, unused, room = list[Launch](), list[FreeCapacity](), bounds.room
    if any(instance.size >= overdue.slots for instance in capacity):
        return _OverdueLaunches([], [])
    for offering in usable:
        shapes = servable_shapes(overdue.shapes, offering, order, bounds.instances_max)
        if overdue.slots > offering.slots:
            gangs = _launches_for_gangs(
                demand, shapes, offering, capacity, room, served, overdue.shapes
            ).launches
            room -= sum(gang.count for gang in gangs)
            launches += gangs
        elif shapes and room > 0 and not any(served[shape] for shape in overdue.shapes):
            served[min(shapes, key=str)] += 1
            room -= 1
            launches.append(Launch(offering, 1))
            left = offering.slots - overdue.slots
            unused.append(
                FreeCapacity(
                    offering.slots,
                    left,
                    offering.market,
                    zone=offering.zone,
                    instance_type=offering.instance_type,
                )
            )
    return _OverdueLaunches(launches, unused)


def count_kept_idle(
    demand: Demand, size: int, idle: int, busy: int, starting: int, bounds: InstanceBounds
) -> int:
    """Return how many of the `idle` instances with `size` slots pending requests will use.

    Single-instance requests count first. A gang, a request on several instances, counts if idle,
    starting and launchable instances suffice. For the overdue gang, which has waited longer than
    the pool allows, busy instances count as well. Markets are ignored, as by the scheduler.
    Zero-slot requests do not count. The caller leaves out instances that the requests exclude. The
    result is 0 if the demand has a hold reason. Nothing is changed.

    Args:
        demand: the pending work.
        size: the size of the instances in slots.
        idle, busy, starting: the numbers of instances of this size in each condition.
        bounds: `bounds.room` is the number of launchable instances.
    """
    if demand.hold_reason:
        return 0
    jobs = (
        replace(job, market=None, excluded_agents=(), refused_types=frozenset())
        for job in demand.jobs
    )
    demand = replace(demand, jobs=tuple(jobs))
    kept = min(idle, _instances_for_single(demand, request_shapes(demand), size, Market.SPOT))
    wanted = _overdue_gang_size(demand, size, bounds.instances_max)
    if wanted <= idle + busy + starting + bounds.room:
        kept = max(kept, min(idle, wanted))
    for shape, count in _ordered_requests(demand, request_shapes(demand)):
        if shape.slots <= size or not can_serve(size, shape, bounds.instances_max):
            continue
        for _ in range(count):
            wanted = shape.slots // size
            if kept >= idle or wanted > idle - kept + starting + bounds.room:
                break
            kept += min(wanted, idle - kept)
    return kept


def _overdue_gang_size(demand: Demand, size: int, instances_max: int) -> int:
    """Return how many instances with `size` slots the first overdue request needs, if a gang.

    Skip overdue requests that instances of this size cannot serve, and sizes without a job in the
    demand. Return 0 without an overdue request, or if the first one fits on a single instance.
    """
    shapes = {shape[:2] for shape in request_shapes(demand)}
    for slots, single_agent in demand.overdue:
        shape = RequestShape(slots, single_agent)
        if shape[:2] in shapes and can_serve(size, shape, instances_max):
            return slots // size if slots > size else 0
    return 0


def _ordered_requests(
    demand: Demand, shapes: set[RequestShape], served: Counter[RequestShape] | None = None
) -> list[tuple[RequestShape, int]]:
    """Return the number of unserved requests of each shape in `shapes`, the smallest first.

    Count only requests that their jobs may start now, and leave out shapes with none. `served`
    counts requests that have instances; None means no request.
    """
    requests = count_requests(demand, shapes) - (served or Counter())
    return sorted(
        requests.items(),
        key=lambda item: (
            *item[0][:2],
            str(item[0].market),
            item[0].excluded_agents,
            sorted(item[0].refused_types),
        ),
    )


def _launches_for_gangs(
    demand: Demand,
    shapes: set[RequestShape],
    offering: Offering,
    capacity: Sequence[FreeCapacity],
    room: int,
    served: Counter[RequestShape],
    overdue: Collection[RequestShape] = (),
) -> _GangLaunches:
    """Return the launches for gangs of `offering`, within `room`.

    A gang is a request with more slots than an instance. A gang first uses a single starting
    instance of any offering that has enough free slots. Otherwise a gang uses empty instances of
    this size. Its launch is for the missing instances, in the zone of most of the used instances. A
    gang without missing instances gets no launch. Nothing is launched for a gang whose missing
    instances exceed `room`, nor for further gangs of its shape.

    Count each gang that has its instances in `served`, and reduce the free slots of the used
    instances.

    Args:
        demand: the pending work.
        shapes: the shapes that `offering` can serve; those that fit on one instance are ignored.
        offering: the offering to launch.
        capacity: the instances that exist or are being launched.
        room: the number of instances that may be launched.
        served: the number of served requests by shape; changed.
        overdue: the shapes of the overdue request; its first gang may use instances with work.
    """
    launches: list[Launch] = []
    too_large = set[RequestShape]()
    gang_shapes = {shape for shape in shapes if shape.slots > offering.slots}
    for shape, count in _ordered_requests(demand, gang_shapes, served):
        for _ in range(count - _assign_to_starting(shape, count, capacity, served)):
            wanted = shape.slots // offering.slots
            is_next = shape in overdue and not any(served[other] for other in overdue)
            usable = [
                instance
                for instance in sorted(capacity, key=lambda item: item.has_work)
                if instance.size == offering.slots
                and (instance.is_empty or (is_next and instance.has_work))
                and instance.may_serve(shape)
            ][:wanted]
            fresh = wanted - len(usable)
            if fresh > room:
                too_large.add(shape)
                break
            room -= fresh
            served[shape] += 1
            if fresh:
                zones = Counter(instance.zone for instance in usable if instance.zone)
                zone = zones.most_common(1)[0][0] if zones else ""
                launches.append(Launch(offering, fresh, together=True, zone=zone))
            for instance in usable:
                instance.slots = 0
    return _GangLaunches(launches, too_large)


def _assign_to_starting(
    shape: RequestShape, count: int, capacity: Sequence[FreeCapacity], served: Counter[RequestShape]
) -> int:
    """Assign up to `count` requests to starting instances, each to a single large enough instance.

    Fill the fullest instances first, if they were bought on a market that the requests allow.
    Connected instances are skipped. Reduce the free slots of the instances, and count the requests
    in `served`. Return the number of assigned requests, 0 if no instance is large enough.
    """
    assigned = 0
    for instance in sorted(capacity, key=lambda item: item.slots):
        while assigned < count and not instance.is_connected and instance.slots >= shape.slots:
            if not instance.may_serve(shape):
                break
            instance.slots -= shape.slots
            assigned += 1
    served[shape] += assigned
    return assigned


def _instances_for_single(
    demand: Demand,
    shapes: set[RequestShape],
    size: int,
    market: Market,
    capacity: Sequence[FreeCapacity] = (),
    served: Counter[RequestShape] | None = None,
) -> int:
    """Return the number of instances with `size` slots to launch for single-instance requests.

    Pack the requests, the largest first, into starting instances in `capacity` whose market the
    request accepts, and the rest into new instances of `market`. New instances serve every request
    of `shapes`, so the caller leaves out shapes that do not accept `market`.

    Reduce the free slots of the starting instances; `served` is unchanged. Skip requests with 0
    slots or more than `size`, and the requests that `served` counts. Skip connected instances,
    which the scheduler has already offered to these requests. Limits on the number of instances do
    not matter.
    """
    single = {shape for shape in shapes if 0 < shape.slots <= size}
    fresh: list[FreeCapacity] = []
    for shape, count in reversed(_ordered_requests(demand, single, served)):
        left = count
        for instance in sorted((*capacity, *fresh), key=lambda item: item.slots):
            if left and not instance.is_connected and instance.may_serve(shape):
                assigned = min(left, instance.slots // shape.slots)
                instance.slots -= assigned * shape.slots
                left -= assigned
        while left:
            instance = FreeCapacity(size, size, market)
            assigned = min(left, instance.slots // shape.slots)
            instance.slots -= assigned * shape.slots
            left -= assigned
            fresh.append(instance)
    return len(fresh)


def _add_zero_slot_launches(
    launches: list[Launch], demand: Demand, order: Sequence[Offering], starting: int
) -> tuple[Launch, ...]:
    """Return the launches, adding instances of the best offering for zero-slot requests.

    Zero-slot requests share the `starting` and the launched instances with other requests, so only
    the missing instances are added; connected instances do not count. The best offering is the
    first in `order`. Return the launches unchanged without an offering in `order`, or if instances
    take no zero-slot requests. Otherwise `merge_launches` merges the launches of each offering,
    also if no instance is missing.
    """
    if not demand.aux_per_agent or not order:
        return tuple(launches)
    needed = ceil(demand.zero_slot_requests / demand.aux_per_agent) - starting
    missing = needed - sum(launch.count for launch in launches)
    return tuple(
        merge_launches([*launches, Launch(order[0], missing)] if missing > 0 else launches)
    )
