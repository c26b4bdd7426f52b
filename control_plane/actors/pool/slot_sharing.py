"""Slots that several trials of a job share.

The scheduler sees the first of the trials that will share a slot as a request for a whole slot, and
the trials on a shared slot as one allocation. So each job counts by whole slots, as without
sharing. The other trials start on slots that their job already holds, without a decision of the
scheduler.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from control_plane.actors.pool.agent_slots import SharedSlot
from control_plane.actors.pool.state import agents_of, job_queue_of
from control_plane.actors.step import StepContext
from control_plane.scheduling.model import AllocationRequest, Job


@dataclass(frozen=True, slots=True)
class SharedStart:
    """The start of a queued request on a slot that the request's job already holds."""

    request: AllocationRequest
    agent: str
    """The name of the agent."""
    slot: int
    """The id of the slot."""


def plan_shared_starts(context: StepContext, jobs: Iterable[Job]) -> Iterator[SharedStart]:
    """Iterate over the starts of queued requests on slots that the request's job already holds.

    Requests start in the order of tickets, on the fullest slot with room. A request that excludes
    the agents of all slots with room waits, and later requests start. The caller may start each
    request at once, because the requests and slots of a job are read before the first start.

    Args:
        jobs: the jobs of a snapshot. A job without pending requests is skipped. Requests are read
            again, because the pool may have changed since the snapshot.
    """
    queue, agents = job_queue_of(context), agents_of(context)
    for job in jobs:
        if job.slot_sharers == 1 or not job.pending_slots:
            continue
        slots = [slot for slot in agents.shared_slots(job.group) if slot.takes_more]
        room = {
            slot: job.slot_sharers - slot.sharers
            for slot in slots
            if slot.sharers < job.slot_sharers
        }
        if room:
            yield from _fill_slots(tuple(queue.requests(job.group)), room)


def _fill_slots(
    requests: Iterable[AllocationRequest], room: dict[SharedSlot, int]
) -> Iterator[SharedStart]:
    """Iterate over the starts of requests on slots. `room` is reduced by each start.

    Args:
        room: the number of further allocations of each slot.
    """
    for request in requests:
        fitting = [
            slot
            for slot, count in room.items()
            if count > 0 and slot.agent not in request.excluded_agents
        ]
        if fitting:
            slot = min(fitting, key=lambda item: (room[item], item.agent, item.slot))
            room[slot] -= 1
            yield SharedStart(request, slot.agent, slot.slot)
