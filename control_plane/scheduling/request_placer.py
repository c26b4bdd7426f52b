"""The placement of the requests that a plan starts."""

from control_plane.scheduling.fitting import AgentSet
from control_plane.scheduling.model import AllocationRequest, AllocationStart, Job, RequestSize


class RequestPlacer:
    """A placer of requests on a set of agents. The caller stops when the placer `is_full`.

    Slots are only taken, never released. So a size that did not fit once is not tried again.
    `agents` and `starts` are the agents and the starts so far.
    """

    def __init__(self, agent_set: AgentSet, starts_max: int) -> None:
        self.agents = agent_set
        self.starts: list[AllocationStart] = []
        self._starts_max = starts_max
        self._too_large: set[RequestSize] = set()

    @property
    def is_full(self) -> bool:
        """Whether the plan has reached the maximum number of starts."""
        return len(self.starts) >= self._starts_max

    def place_request(self, request: AllocationRequest) -> bool:
        """Take slots for the request in `agents`, and add the start to `starts`. Return True.

        Return False, without a change, if the request does not fit. The maximum number of starts is
        not checked here.
        """
        size = request.size
        if size in self._too_large:
            return False
        places = self.agents.place_request(request)
        if not places:
            if self.agents.is_ruled_out(*size) and not request.excluded_agents:
                self._too_large.add(size)
            return False
        self.starts.append(AllocationStart(request, places))
        return True

    def can_start_any(self, job: Job, slots_max: int | None = None) -> bool:
        """Return whether a pending size of the job may fit, so that requests are worth reading.

        A size may fit if it fitted before any placement and did not fail since. True does not
        promise that a request fits now. Return False without pending requests.

        Args:
            slots_max: the most slots of a request, which must then need at least one slot. None for
                any request.
        """
        for slots in job.pending_slots:
            if slots_max is None or 0 < slots <= slots_max:
                size = job.size_of(slots)
                if size not in self._too_large and self.agents.could_fit_initially(*size):
                    return True
        return False
