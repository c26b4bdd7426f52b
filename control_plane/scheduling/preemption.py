"""Preemption: the choice of running allocations to stop for a request, least important first."""

from collections.abc import Iterator, Sequence
from decimal import Decimal

from control_plane.scheduling.fitting import AgentSet
from control_plane.scheduling.model import (
    AllocationRequest,
    Job,
    RequestSize,
    RunningAllocation,
)

_QueuePlace = tuple[int, Decimal]
"""The priority and position of a job."""
_BEHIND_ALL: _QueuePlace = (2**31, Decimal(0))
"""The place of allocations that are already stopping, behind all jobs."""


class PreemptionCandidates:
    """The running allocations of a pass in the order of preemption.

    Allocations that are already stopping come first. Preemptible allocations follow, from the back
    of the queue to the front, and within a job the youngest first.

    Args:
        order: the jobs in queue order.
        with_slots: whether the candidates are the allocations with slots, or the zero-slot
            allocations.

    Attributes:
        unservable_sizes: sizes of requests that no preemption can serve.
    """

    def __init__(self, order: Sequence[Job], with_slots: bool) -> None:
        self._order = order
        self._with_slots = with_slots
        self._remaining = self._candidates_in_order()
        self._candidates: list[tuple[_QueuePlace, RunningAllocation]] = []
        self._taken = 0
        # Sizes stay in the set: earlier requests may have used slots that preemption would free.
        self.unservable_sizes: set[RequestSize] = set()

    def select_victims(
        self, request: AllocationRequest, job: Job, agent_set: AgentSet
    ) -> list[RunningAllocation]:
        """Release allocations in `agent_set` until the request fits. Return the released
        allocations.

        Candidates are allocations that are already stopping, allocations of lower priority, and
        allocations strictly behind the job in its own priority. Released allocations are no longer
        candidates. The request's own slots are not taken.

        If the request never fits, return an empty list and leave `agent_set` unchanged. Record the
        size as unservable, unless later placements can help (`AgentSet.is_ruled_out`) or the
        request excludes agents. Allocations that only use agents which the request must not use
        are not released.

        The request must not fit before the call.
        """
        size = request.size
        may_spread = agent_set.can_spread(*size)
        if request.excluded_agents or request.refused_kinds:
            return self._select_elsewhere(request, job, agent_set)
        removed: list[RunningAllocation] = []
        if agent_set.sizes.can_ever_fit(*size):
            for running in self._candidates_behind((job.priority, job.position)):
                freed = agent_set.release_placements(running.placements)
                removed.append(running)
                # The request did not fit before, so only the agents just released can matter.
                if 0 < request.slots <= freed or (may_spread and agent_set.can_fit_now(*size)):
                    self._taken += len(removed)
                    return removed
        for running in removed:
            agent_set.take_placements(running.placements)
        if agent_set.is_ruled_out(*size):
            self.unservable_sizes.add(size)
        return []

    def _select_elsewhere(
        self, request: AllocationRequest, job: Job, agent_set: AgentSet
    ) -> list[RunningAllocation]:
        """Release allocations for a request that excludes agents or refuses kinds of agents, as
        `select_victims` does.

        Skipped candidates move behind the released candidates, and stay candidates.
        """
        victims: list[RunningAllocation] = []
        if agent_set.sizes.can_ever_fit(*request.size, request.excluded_agents):
            victims = self._release_others(request, job, agent_set)
        if not victims and not request.excluded_agents and agent_set.is_ruled_out(*request.size):
            self.unservable_sizes.add(request.size)
        return victims

    def _release_others(
        self, request: AllocationRequest, job: Job, agent_set: AgentSet
    ) -> list[RunningAllocation]:
        """Release candidates on the agents that the request may use until the request fits.

        Return the released allocations. If the request never fits, return an empty list and leave
        `agent_set` unchanged.
        """
        avoided = agent_set.forbidden_agents(request)
        removed: list[tuple[_QueuePlace, RunningAllocation]] = []
        skipped: list[tuple[_QueuePlace, RunningAllocation]] = []
        first = self._taken
        behind = self._candidates_behind((job.priority, job.position))
        for at, running in enumerate(behind, first):
            if avoided.issuperset(place.agent for place in running.placements):
                skipped.append(self._candidates[at])
                continue
            agent_set.release_placements(running.placements)
            removed.append(self._candidates[at])
            if agent_set.find_placements(request):
                self._candidates[first : at + 1] = [*removed, *skipped]
                self._taken += len(removed)
                return [released for _, released in removed]
        for _, released in removed:
            agent_set.take_placements(released.placements)
        return []

    def restore(self, removed: Sequence[RunningAllocation], agent_set: AgentSet) -> None:
        """Undo the last selection: take the slots of the `removed` allocations in `agent_set`
        again.

        The allocations become candidates again.

        Args:
            removed: the result of the last `select_victims`.
        """
        self._taken -= len(removed)
        for running in removed:
            agent_set.take_placements(running.placements)

    def _candidates_behind(self, place: _QueuePlace) -> Iterator[RunningAllocation]:
        """Yield the candidates that are not selected yet and are behind a place of the queue.

        Stopping allocations are behind every place.
        """
        at = self._taken
        while True:
            if at == len(self._candidates):
                candidate = next(self._remaining, None)
                if candidate is None:
                    return
                self._candidates.append(candidate)
            candidate_place, running = self._candidates[at]
            if candidate_place <= place:
                return
            yield running
            at += 1

    def _candidates_in_order(self) -> Iterator[tuple[_QueuePlace, RunningAllocation]]:
        """Yield all candidates: stopping allocations, then the queue from the back."""
        for job in self._order:
            for running in job.allocations if job.leaving_slots or not self._with_slots else ():
                if running.leaving and self._belongs_to_pass(running):
                    yield _BEHIND_ALL, running
        for job in reversed(self._order):
            if job.held_slots or not self._with_slots:
                for running in sorted(job.allocations, key=_start_number, reverse=True):
                    if (
                        running.preemptible
                        and not running.leaving
                        and self._belongs_to_pass(running)
                    ):
                        yield (job.priority, job.position), running

    def _belongs_to_pass(self, running: RunningAllocation) -> bool:
        """Return whether the allocation has slots, or in a pass over zero-slot allocations, no
        slots.
        """
        return (running.slots > 0) == self._with_slots


def _start_number(running: RunningAllocation) -> int:
    """Return the number of the allocation's start; larger numbers are younger."""
    return running.start
