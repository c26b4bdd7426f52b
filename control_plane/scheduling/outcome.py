"""What a scheduler decided, and the words for what waits on."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from control_plane.scheduling.fitting import Fleet
from control_plane.scheduling.model import Job, Request, Start, Victim
from control_plane.scheduling.sizes import advice, counted


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a scheduler decided for the agents of one label.

    `order`: jobs as they are served. `why` says what a request left behind waits for beside slots,
    when so many were given to its job.
    """

    starts: list[Start]
    victims: list[Victim]
    order: Sequence[Job]
    fleet: Fleet
    why: Callable[[Job, Request, int], str]

    def reason(self, job: Job, request: Request, started_slots: int) -> str:
        """Why a request left behind waits, when so many slots were given to its job."""
        slots, fleet = request.slots, self.fleet
        if not fleet.count:
            return f"no agent has the label {job.label}" if job.label else "there is no agent"
        if not fleet.is_possible(slots, job.single_agent):
            return advice(slots, fleet.sizes, job.single_agent, fleet.heterogeneous)
        room = room_of(job)
        if room is not None and 0 < slots > room - started_slots:
            return f"max_slots {job.max_slots} reached"
        said = "; ".join(
            filter(None, (lack(request, fleet), self.why(job, request, started_slots)))
        )
        return said or "its turn comes next"


def room_of(job: Job) -> int | None:
    """Slots that a job may take beside those it has; None: any number."""
    return None if job.max_slots is None else job.max_slots - job.held_slots


def lack(request: Request, fleet: Fleet) -> str:
    """What a request lacks on the agents; "" if it fits."""
    slots, free = request.slots, fleet.free
    if fleet.fits(slots, request.single_agent):
        return ""
    if slots == 0:
        return "needs a place beside the slots, 0 free"
    if free < slots:
        return f"needs {counted(slots)}, {free} free"
    if request.single_agent or any(slots <= size for size in fleet.sizes):
        return f"needs {counted(slots)} on one agent, {fleet.most_free} free on one"
    return f"needs {counted(slots)} of unused agents, {fleet.unused} free on such"
