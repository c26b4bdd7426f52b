"""The departure of running allocations from machines that people use. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from control_plane.scheduling.model import AgentCapacity, Job, SchedulePlan, Victim


def occupied_agents(agents: Iterable[AgentCapacity]) -> frozenset[str]:
    """Return the names of the agents that running allocations leave."""
    return frozenset([agent.agent for agent in agents if agent.checkpoints])


def add_departures(
    plan: SchedulePlan, jobs: Sequence[Job], occupied: frozenset[str]
) -> SchedulePlan:
    """Return the plan with all preemptible allocations on occupied agents as victims.

    Allocations that cannot be preempted, such as commands, and allocations that were asked before
    are left out.

    Args:
        plan: a plan of the scheduler.
        jobs: all jobs of the pool.
        occupied: the names from `occupied_agents`.
    """
    if not occupied:
        return plan
    chosen = {victim.allocation.allocation_id for victim in plan.victims}
    return replace(plan, victims=(*plan.victims, *_departures(jobs, occupied, chosen)))


def _departures(
    jobs: Iterable[Job], occupied: frozenset[str], chosen: set[str]
) -> Iterator[Victim]:
    for job in jobs:
        for running in job.allocations:
            agent = next((x.agent for x in running.placements if x.agent in occupied), None)
            is_asked = running.leaving or running.allocation_id in chosen
            if agent is not None and running.preemptible and not is_asked:
                yield Victim(running, f"people use the machine of agent {agent}")
