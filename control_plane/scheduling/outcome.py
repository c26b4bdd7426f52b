"""What a scheduler decided, and the words for what waits on."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

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
    _known: dict[tuple[int, bool], tuple[bool, str]] = field(default_factory=dict)

    def reason(self, job: Job, request: Request, started_slots: int) -> str:
        """Why a request left behind waits, when so many slots were given to its job."""
        if not self.fleet.count:
            return f"no agent has the label {job.label}" if job.label else "there is no agent"
        slots, room = request.slots, room_of(job)
        is_possible, lacking = self._lacking(slots, job.single_agent)
        if not is_possible:
            return lacking
        if room is not None and 0 < slots > room - started_slots:
            return f"max_slots {job.max_slots} reached"
        said = "; ".join(filter(None, (lacking, self.why(job, request, started_slots))))
        return said or "its turn comes next"

    def _lacking(self, slots: int, single_agent: bool) -> tuple[bool, str]:
        """Whether agents could ever hold so many slots, and what they lack now; "" for nothing."""
        size = (slots, single_agent)
        if size not in self._known:
            fleet = self.fleet
            is_possible = fleet.is_possible(*size)
            self._known[size] = (
                is_possible,
                lack(slots, single_agent, fleet)
                if is_possible
                else advice(slots, fleet.sizes, single_agent, fleet.heterogeneous),
            )
        return self._known[size]


def room_of(job: Job) -> int | None:
    """Slots that a job may take beside those it has; None: any number."""
    return None if job.max_slots is None else job.max_slots - job.held_slots


def lack(slots: int, single_agent: bool, fleet: Fleet) -> str:
    """What a request lacks on the agents; "" if it fits."""
    if fleet.fits(slots, single_agent):
        return ""
    if slots == 0:
        return "needs a place beside the slots, 0 free"
    if fleet.free < slots:
        return f"needs {counted(slots)}, {fleet.free} free"
    if single_agent or any(slots <= size for size in fleet.sizes):
        return f"needs {counted(slots)} on one agent, {fleet.most_free} free on one"
    return f"needs {counted(slots)} of unused agents, {fleet.unused} free on such"
