"""The section `provider` of a pool whose instances are processes on the server's machine."""

from __future__ import annotations

from typing import Literal

from control_plane.config.providers import Provider
from control_plane.field_types import Count
from control_plane.scheduling.agent_needs import AgentDevice


class LocalProvider(Provider):
    """Instances are agent processes on the machine of the cluster's server."""

    type: Literal["local"]
    instance_slots: Count = 1
    """Slots of one instance, on CPUs."""

    def slots_offered(self) -> tuple[int, ...]:
        """Return the sizes in slots of the instances that the pool may launch, in ascending order.

        Without offerings, return `instance_slots`.
        """
        return super().slots_offered() or (self.instance_slots,)

    def types_offered(self) -> tuple[str, ...]:
        """Return the offered types. Without offerings, return the type of the single offering."""
        return super().types_offered() or ("process",)

    def devices_of(self, instance_type: str) -> tuple[AgentDevice, ...]:
        """Return the processors of the machine, which the agents of all instances report."""
        return (AgentDevice("cpu", ""),)
