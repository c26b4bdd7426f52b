"""The instance types that meet the needs of jobs for devices. Pure."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace

from control_plane.fleet.records import InstanceRow, Offering
from control_plane.scheduling.agent_needs import AgentDevice, AgentNeeds, meets_device_needs
from provisioner.model import Demand, JobDemand

DevicesOf = Callable[[str], tuple[AgentDevice, ...]]
"""Returns the devices of an instance type. () if they are unknown."""


def with_refused_types(
    demand: Demand,
    offered: Collection[Offering],
    rows: Iterable[InstanceRow],
    agents: Collection[str],
    devices_of: DevicesOf,
) -> Demand:
    """Return the demand with the refused instance types of each job that needs certain devices.

    A connected agent shows whether its instance type meets the needs. The cloud's table decides for
    types without a connected agent, and refuses unknown types. A job without any remaining offering
    is left out, because no launch would help.

    Args:
        demand: the pending work.
        offered: the offerings that the pool may launch.
        rows: the instances of the pool.
        agents: the ids of the connected agents.
        devices_of: returns the devices of an instance type.
    """
    if not any(_needs_devices(job.needs) for job in demand.jobs):
        return demand
    agents_of: dict[str, set[str]] = {}
    for row in rows:
        if row.id in agents:
            agents_of.setdefault(row.offering.instance_type, set()).add(row.id)
    types = {offering.instance_type for offering in offered}
    jobs: list[JobDemand] = []
    for job in demand.jobs:
        refused = frozenset(
            name for name in types if not _is_fit(name, job, agents_of.get(name, set()), devices_of)
        )
        if refused != types or not types:
            jobs.append(replace(job, refused_types=refused))
    return replace(demand, jobs=tuple(jobs))


def _is_fit(name: str, job: JobDemand, agents: set[str], devices_of: DevicesOf) -> bool:
    """Return whether an instance type meets the needs of a job.

    Args:
        agents: the ids of the connected agents of this type.
    """
    if not _needs_devices(job.needs):
        return True
    if agents:
        return not agents <= job.unfit_agents
    return meets_device_needs(devices_of(name), job.needs)


def _needs_devices(needs: AgentNeeds) -> bool:
    return bool(needs.slot_type or needs.slot_memory)
