"""The choice of the overdue request, and of instances that drain to make room. Pure.

A request is overdue if it has waited longer than the pool allows. The scheduler reserves connected
agents for a single request at a time (scheduling/reservations.py). If the pool's maximum leaves no
room for instances that can serve that request, the provisioner drains instances of other sizes: as
few as needed, those with the least work first. They finish their work, so the longest run on them
bounds the wait.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

from control_plane.fleet.records import Offering
from provisioner.model import Demand
from provisioner.request_shapes import (
    InstanceBounds,
    RequestShape,
    can_serve,
    count_requests,
    request_shapes,
)


@dataclass(frozen=True, slots=True)
class OverdueRequest:
    """The next overdue request that instances can serve."""

    slots: int
    single_agent: bool
    """Whether the request must fit on a single agent."""
    shapes: frozenset[RequestShape]
    """The request's shapes, one for each market on which jobs want it."""
    sizes: frozenset[int]
    """The sizes, in slots, of instances that can serve the request."""

    def instances_needed(self, size: int) -> int:
        """Return the number of instances with `size` slots that the request needs, rounded up."""
        return ceil(self.slots / size)


def find_overdue(
    demand: Demand,
    order: Sequence[Offering],
    on_demand: Sequence[Offering],
    instances_max: int,
) -> OverdueRequest | None:
    """Return the first overdue request of `demand` that an offering can serve.

    Skip requests of jobs whose limit of slots leaves too few slots now, and requests that no
    offering in `order` or `on_demand` serves. Return None if no request is left. Present instances
    do not matter.

    Args:
        demand: the pending work. `overdue` has the multi-slot requests that have waited longer than
            the pool allows, in the order of the scheduler.
        order: the offerings that may be launched, the best first.
        on_demand: the offerings for requests that are restricted to the on-demand market.
        instances_max: the pool's maximum of instances.
    """
    for slots, single_agent in demand.overdue:
        candidates = {
            shape
            for shape in request_shapes(demand)
            if (shape.slots, shape.single_agent) == (slots, single_agent)
        }
        shapes = frozenset(
            shape for shape, count in count_requests(demand, candidates).items() if count
        )
        sizes = frozenset(
            offering.slots
            for offering in (*order, *on_demand)
            if servable_shapes(shapes, offering, order, instances_max)
        )
        if sizes:
            return OverdueRequest(slots, single_agent, shapes, sizes)
    return None


def servable_shapes(
    shapes: Collection[RequestShape],
    offering: Offering,
    order: Sequence[Offering],
    instances_max: int,
) -> set[RequestShape]:
    """Return the shapes that instances of `offering` can serve.

    The shape must not refuse the instance type. A shape that is restricted to a market needs an
    offering of that market, also outside of `order`. Any other shape needs an offering in `order`.
    Empty if no shape fits. `instances_max` limits the number of instances for one request.
    """
    return {
        shape
        for shape in shapes
        if can_serve(offering.slots, shape, instances_max)
        and offering.instance_type not in shape.refused_types
        and (shape.market is offering.market or (shape.market is None and offering in order))
    }


class RoomToMake(NamedTuple):
    """The drains that make room for an overdue request. By default, no drain is needed."""

    size: int = 0
    """The size, in slots, of the instances that get the room; 0 without drains."""
    drains: int = 0
    """The number of instances of other sizes to drain."""


def capacity_to_free(
    request: OverdueRequest,
    capacity: Mapping[int, int],
    removable: Mapping[int, int],
    bounds: InstanceBounds,
) -> RoomToMake:
    """Return the drains that make room for the overdue request. Nothing is drained here.

    The room is for the size of `request.sizes` that needs the fewest drains; of equal counts, for
    the smallest size. Instances that drain already count as room. Return no drains in these cases:

    - An instance in `capacity` has enough slots for the whole request.
    - The present instances of one of the sizes, and the room, suffice for the request.
    - Draining all removable instances of other sizes would not suffice.

    Args:
        request: the request that has waited longer than the pool allows.
        capacity: the number of instances by size that take work now or after they have started.
        removable: the number of instances by size, out of `capacity`, that may drain.
        bounds: the room below the pool's maximum.
    """
    if any(count and size >= request.slots for size, count in capacity.items()):
        return RoomToMake()
    coming = bounds.room + bounds.draining
    missing = {
        size: request.instances_needed(size) - capacity.get(size, 0) - coming
        for size in request.sizes
    }
    others = sum(removable.values())
    possible = [
        (count, size) for size, count in missing.items() if count <= others - removable.get(size, 0)
    ]
    count, size = min(possible, default=(0, 0))
    return RoomToMake(size, count) if count > 0 else RoomToMake()


def waits_for_capacity(
    request: OverdueRequest, capacity: Mapping[int, int], bounds: InstanceBounds
) -> bool:
    """Whether draining instances will free enough room below the maximum for the request.

    True if present instances of one of the request's sizes, the room and the draining instances
    together suffice. Then no other request may use the room that is free already. False if no
    instance drains. `capacity` counts the instances by size that take work now or after they have
    started.
    """
    coming = bounds.room + bounds.draining
    return bounds.draining > 0 and any(
        request.instances_needed(size) <= capacity.get(size, 0) + coming for size in request.sizes
    )
