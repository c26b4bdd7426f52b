"""Preemption: the choice of running allocations to stop for a request, least important first."""

from collections.abc import Iterator, Sequence
from decimal import Decimal

from control_plane.scheduling.fitting import AgentSet
from control_plane.scheduling.model import AllocationRequest, Job, RunningAllocation

_QueuePlace = tuple[int, Decimal]
_BEFORE_ALL: _QueuePlace = (2**31, Decimal(0))


class PreemptionCandidates:
    """The running allocations of one pass in the order in which they are preempted: those that are
    stopping already, then what can be preempted from the back of the queue, of one job the youngest
    first.

    `unservable_sizes`: slots, and whether on one agent, of requests that no preemption could serve.
    """

    def __init__(self, order: Sequence[Job], with_slots: bool) -> None:
        self._order = order
        self._with_slots = with_slots
        self._remaining = self._candidates_in_order()
        self._candidates: list[tuple[_QueuePlace, RunningAllocation]] = []
        self._taken = 0
        # Later requests of these sizes may preempt nothing: others may have taken some of it.
        self.unservable_sizes: set[tuple[int, bool]] = set()

    def select_victims(
        self, request: AllocationRequest, job: Job, agent_set: AgentSet
    ) -> list[RunningAllocation]:
        """Remove allocations from `agent_set` until the request fits; return them, all of which
        have to stop. If it never fits, none is removed.

        A request may preempt what has a lower priority and, at its own, what is strictly behind it.
        """
        size = (request.slots, request.single_agent)
        may_spread = agent_set.can_spread(*size)
        removed: list[RunningAllocation] = []
        if agent_set.can_ever_fit(*size):
            for running in self._candidates_behind((job.priority, job.position)):
                freed = agent_set.release_placements(running.placements)
                removed.append(running)
                # It did not fit before, so that only what has just become free matters.
                if 0 < request.slots <= freed or (may_spread and agent_set.can_fit_now(*size)):
                    self._taken += len(removed)
                    return removed
        for running in removed:
            agent_set.take_placements(running.placements)
        if agent_set.is_ruled_out(*size):
            self.unservable_sizes.add(size)
        return []

    def restore(self, removed: Sequence[RunningAllocation], agent_set: AgentSet) -> None:
        """Undo the last selection: none of these has to stop."""
        self._taken -= len(removed)
        for running in removed:
            agent_set.take_placements(running.placements)

    def _candidates_behind(self, place: _QueuePlace) -> Iterator[RunningAllocation]:
        at = self._taken
        while True:
            if at == len(self._candidates):
                found = next(self._remaining, None)
                if found is None:
                    return
                self._candidates.append(found)
            other, running = self._candidates[at]
            if other <= place:
                return
            yield running
            at += 1

    def _candidates_in_order(self) -> Iterator[tuple[_QueuePlace, RunningAllocation]]:
        for job in self._order:
            for running in job.allocations if job.leaving_slots or not self._with_slots else ():
                if running.leaving and self._belongs_to_pass(running):
                    yield _BEFORE_ALL, running
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
        return (running.slots > 0) == self._with_slots


def _start_number(running: RunningAllocation) -> int:
    return running.start
