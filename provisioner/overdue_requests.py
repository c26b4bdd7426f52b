"""The request that has waited too long: which it is, and which instances drain to make room for it.

A pool holds agents for one request at a time (reservations.py of the scheduler), but only agents
that are there. Where the maximum leaves no room for the instances that can serve it, as few others
as it needs drain: those without work first, then those with the least. They finish what they have,
so that the longest run on them bounds the wait.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import ceil

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
    """The next request that has waited too long: its slots, its shapes by the markets on which it
    is wanted, and the sizes of instances that can serve it there. `single_agent`: it must fit on
    one agent.
    """

    slots: int
    single_agent: bool
    shapes: frozenset[RequestShape]
    sizes: frozenset[int]

    def instances_needed(self, size: int) -> int:
        """The number of instances of one of its sizes that it needs."""
        return ceil(self.slots / size)


def find_overdue(
    demand: Demand,
    order: Sequence[Offering],
    on_demand: Sequence[Offering],
    instances_max: int,
) -> OverdueRequest | None:
    """The first of the requests that have waited too long that may have instances now and that
    one or several of these offerings can serve.
    """
    for slots, single_agent in demand.overdue:
        alike = {
            need
            for need in request_shapes(demand)
            if (need.slots, need.single_agent) == (slots, single_agent)
        }
        shapes = frozenset(need for need, count in count_requests(demand, alike).items() if count)
        able = (*order, *on_demand)
        sizes = frozenset(
            offering.slots
            for offering in able
            if servable_needs(shapes, offering, order, instances_max)
        )
        if sizes:
            return OverdueRequest(slots, single_agent, shapes, sizes)
    return None


def servable_needs(
    needs: Collection[RequestShape],
    offering: Offering,
    order: Sequence[Offering],
    instances_max: int,
) -> set[RequestShape]:
    """The needs, of these, that instances of the offering can serve on their market; in `order`
    are the offerings for those of any market.
    """
    return {
        need
        for need in needs
        if can_serve(offering.slots, need, instances_max)
        and (need.market is offering.market or (need.market is None and offering in order))
    }


def capacity_to_free(
    request: OverdueRequest,
    there: Mapping[int, int],
    removable: Mapping[int, int],
    bounds: InstanceBounds,
) -> tuple[int, int]:
    """The size of instances that the request needs, and the least number of instances of other
    sizes to drain for them; (0, 0) if nothing has to drain, or if draining would not be enough.

    `there`: by size, the instances on which work can be placed, now or once they have started;
    `removable`: those of them that may drain.
    """
    if any(count and size >= request.slots for size, count in there.items()):
        return 0, 0
    coming = bounds.room + bounds.draining
    lacking = {
        size: request.instances_needed(size) - there.get(size, 0) - coming for size in request.sizes
    }
    others = sum(removable.values())
    possible = [
        (count, size) for size, count in lacking.items() if count <= others - removable.get(size, 0)
    ]
    count, size = min(possible, default=(0, 0))
    return (size, count) if count > 0 else (0, 0)


def waits_for_capacity(
    request: OverdueRequest, there: Mapping[int, int], bounds: InstanceBounds
) -> bool:
    """Whether draining instances will free the capacity that the request lacks, so that no other
    request may take what is free already.
    """
    coming = bounds.room + bounds.draining
    return bounds.draining > 0 and any(
        request.instances_needed(size) <= there.get(size, 0) + coming for size in request.sizes
    )
