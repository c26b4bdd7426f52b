"""The shapes of pending requests, and the fit of requests on instances. Pure."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

from control_plane.fleet.records import Market, Offering
from control_plane.scheduling.sizes import AGENTS_MAX
from provisioner.model import Demand, JobDemand


@dataclass(frozen=True, slots=True)
class InstanceBounds:
    """The pool's limits on the number of instances."""

    instances_max: int
    """The pool's maximum."""
    room: int
    """The number of instances that may be launched now without exceeding the maximum; at least 0.

    Launches in progress use up room. Instances with an interruption notice use up no room.
    """
    draining: int = 0
    """The number of instances that drain or whose agent is silent.

    The room grows by this number once these instances have ended.
    """


class RequestShape(NamedTuple):
    """The properties of a request that decide which instances can serve the request."""

    slots: int
    single_agent: bool
    """Whether the request must fit on a single agent."""
    market: Market | None = None
    """The market that the request is restricted to; None for both."""
    excluded_agents: tuple[str, ...] = ()
    """The ids of the agents that must not run the request, sorted."""
    refused_types: frozenset[str] = frozenset()
    """The instance types that do not meet the needs of the request."""


def can_serve(slots: int, shape: RequestShape, instances_max: int) -> bool:
    """Whether instances with `slots` slots can serve a request. The market does not matter.

    The request must fit on one instance, or fill several instances completely. Several means at
    most `instances_max` and at most AGENTS_MAX, the largest gang. A single-agent request must fit
    on one instance.
    """
    if shape.slots <= slots:
        return True
    fills_several = slots > 0 and shape.slots % slots == 0 and not shape.single_agent
    return fills_several and shape.slots // slots <= min(instances_max, AGENTS_MAX)


def request_shapes(demand: Demand) -> set[RequestShape]:
    """Return the distinct shapes of all pending requests with slots; empty without requests.

    Limits of jobs and a hold reason do not matter. Zero-slot requests have no shape.
    """
    return {request_shape(size, job) for job in demand.jobs for size in job.pending_slots}


def request_shape(size: int, job: JobDemand) -> RequestShape:
    """Return the shape of a job's request for `size` slots, with the job's restrictions.

    Whether the job has such a request does not matter.
    """
    return RequestShape(size, job.single_agent, job.market, job.excluded_agents, job.refused_types)


def count_requests(demand: Demand, shapes: set[RequestShape]) -> Counter[RequestShape]:
    """Return the number of pending requests of each shape in `shapes` that jobs may start at once.

    A job with a limit on its slots gets its small requests counted first, until the limit is
    reached. Requests of other shapes do not use up the limit. A shape without requests is absent or
    0.
    """
    requests = Counter[RequestShape]()
    for job in demand.jobs:
        room = job.remaining_slots
        for size, count in sorted(job.pending_slots.items()):
            shape = request_shape(size, job)
            if shape not in shapes:
                continue
            if room is not None:
                count = min(count, max(0, room) // size) if size else count
                room -= count * size
            requests[shape] += count
    return requests


def needs_instances(demand: Demand, sizes: Collection[int], instances_max: int) -> bool:
    """Whether instances of any size in `sizes` would serve a pending request that may start now.

    True also for any pending zero-slot request, even without sizes. A request may not start if its
    job has used up its slots. Present instances do not matter.
    """
    shapes = {
        shape
        for shape in request_shapes(demand)
        if any(can_serve(size, shape, instances_max) for size in sizes)
    }
    return bool(demand.zero_slot_requests) or any(count_requests(demand, shapes).values())


def needs_more_room(
    demand: Demand, sizes: Collection[int], other: int, bounds: InstanceBounds
) -> bool:
    """Whether a pending request needs more instances than `bounds.room`.

    Skip requests that instances with `other` slots can serve, and requests that no size in `sizes`
    can serve. A request needs the fewest instances that any size in `sizes` allows. Limits of jobs
    do not matter.
    """
    for shape in request_shapes(demand):
        if not can_serve(other, shape, bounds.instances_max):
            able = [size for size in sizes if can_serve(size, shape, bounds.instances_max)]
            if able and min(ceil(shape.slots / size) for size in able) > bounds.room:
                return True
    return False


def unservable_sizes(
    demand: Demand, offerings: Sequence[Offering], instances_max: int
) -> list[int]:
    """Return the sizes, in slots, of pending requests that no offering can serve, sorted.

    Markets, limits of jobs and back-offs do not matter. Empty if each request can be served.
    """
    large = {
        shape.slots
        for shape in request_shapes(demand)
        if not any(
            can_serve(offering.slots, shape, instances_max)
            for offering in offerings
            if offering.instance_type not in shape.refused_types
        )
    }
    return sorted(large)
