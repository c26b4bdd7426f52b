"""The placement of a plan's starts."""

from control_plane.scheduling.fitting import AgentSet
from control_plane.scheduling.model import AllocationRequest, AllocationStart, Job


class RequestPlacer:
    """Places requests on a live set of agents, up to so many of them.

    Nothing is released meanwhile, so a size that did not fit once is not tried again.
    """

    def __init__(self, agent_set: AgentSet, starts_max: int) -> None:
        self.agents = agent_set
        self.starts: list[AllocationStart] = []
        self._starts_max = starts_max
        self._too_large: set[tuple[int, bool]] = set()

    @property
    def is_full(self) -> bool:
        """Whether the plan has as many starts as it may have."""
        return len(self.starts) >= self._starts_max

    def place_request(self, request: AllocationRequest) -> bool:
        """Start the request; False: it does not fit."""
        size = (request.slots, request.single_agent)
        if size in self._too_large:
            return False
        places = self.agents.place_request(request)
        if not places:
            if self.agents.is_ruled_out(*size):
                self._too_large.add(size)
            return False
        self.starts.append(AllocationStart(request, places))
        return True

    def can_start_any(self, job: Job, slots_max: int | None = None) -> bool:
        """Whether reading the job's pending requests may find one that starts; `slots_max`: the
        slots it may take.
        """
        for slots in job.pending_slots:
            if slots_max is None or 0 < slots <= slots_max:
                size = (slots, job.single_agent)
                if size not in self._too_large and self.agents.could_fit_initially(*size):
                    return True
        return False
