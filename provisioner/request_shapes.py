"""The shapes of pending requests, and the instances that can serve them."""

from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

from control_plane.fleet.records import Market
from control_plane.scheduling.sizes import AGENTS_MAX
from provisioner.model import Demand, JobDemand


@dataclass(frozen=True, slots=True)
class InstanceBounds:
    """The most instances of the pool, how many more than are there it may have, and how many of
    those that are there drain, after which it may have that many more.
    """

    instances_max: int
    room: int
    draining: int = 0


class RequestShape(NamedTuple):
    """A request's slots, whether it must fit on one agent, and the market it is restricted to."""

    slots: int
    single_agent: bool
    market: Market | None = None


def can_serve(slots: int, need: RequestShape, instances_max: int) -> bool:
    """Whether a request fits into one instance of so many slots, or into several that it fills,
    not more than agents can work together.
    """
    if need.slots <= slots:
        return True
    whole = slots > 0 and need.slots % slots == 0 and not need.single_agent
    return whole and need.slots // slots <= min(instances_max, AGENTS_MAX)


def request_shapes(demand: Demand) -> set[RequestShape]:
    """The shapes of all pending requests."""
    return {request_shape(size, job) for job in demand.jobs for size in job.pending_slots}


def request_shape(size: int, job: JobDemand) -> RequestShape:
    """The shape of a job's request for so many slots."""
    return RequestShape(size, job.single_agent, job.market)


def count_requests(demand: Demand, needs: set[RequestShape]) -> Counter[RequestShape]:
    """The requests of these shapes that their jobs may have at once, a job's small ones first."""
    requests = Counter[RequestShape]()
    for job in demand.jobs:
        room = job.remaining_slots
        for size, count in sorted(job.pending_slots.items()):
            shape = request_shape(size, job)
            if shape not in needs:
                continue
            if room is not None:
                count = min(count, max(0, room) // size) if size else count
                room -= count * size
            requests[shape] += count
    return requests
