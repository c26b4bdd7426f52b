"""The starts of a plan as they are placed."""

from control_plane.scheduling.fitting import Fleet
from control_plane.scheduling.model import Job, Request, Start


class Placing:
    """Places requests on a live copy of the agents, up to so many of them.

    Nothing is given back meanwhile, so a size that did not fit once is not tried again.
    """

    def __init__(self, fleet: Fleet, starts_max: int) -> None:
        self.fleet = fleet
        self.starts: list[Start] = []
        self._starts_max = starts_max
        self._too_large: set[tuple[int, bool]] = set()

    @property
    def is_full(self) -> bool:
        """Whether the plan has as many starts as it may have."""
        return len(self.starts) >= self._starts_max

    def place(self, request: Request) -> bool:
        """Starts the request; False: it does not fit."""
        size = (request.slots, request.single_agent)
        if size in self._too_large:
            return False
        places = self.fleet.place(request)
        if not places:
            if self.fleet.fits_no_more(*size):
                self._too_large.add(size)
            return False
        self.starts.append(Start(request, places))
        return True

    def may_start(self, job: Job, slots_max: int | None = None) -> bool:
        """Whether reading the job's pending requests may find one that starts; `slots_max`: what it
        may take.
        """
        for slots in job.pending_slots:
            if slots_max is None or 0 < slots <= slots_max:
                size = (slots, job.single_agent)
                if size not in self._too_large and self.fleet.fitted(*size):
                    return True
        return False
