"""A handle on one resource pool."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from detcloud.client.resource import Field, Resource, path_segment


class ResourcePool(Resource):
    """Agents, and a queue of work for them."""

    name = Field[str]("The name.")
    description = Field[str]("A text for users.")
    scheduler = Field[dict[str, Any]]("How it decides: type, preemption, fitting_policy and more.")
    state = Field[str]("OPEN, or DRAINING when it starts no more trials.")
    slots = Field[int]("Slots of its agents that may be used.")
    free_slots = Field[int]("The slots that nobody has.")
    agents = Field[int]("How many agents it has.")
    running = Field[int]("Trials that have slots.")
    queued = Field[int]("Trials that wait for slots.")
    waits = Field[str]("Why the first in its queue waits, empty if nobody does.")
    offerings = Field[list[dict[str, Any]]]("The cheapest instances it would launch, with prices.")
    config = Field[dict[str, Any]]("Every setting, as the cluster configuration file has it.")

    def set(self, config: dict[str, Any] | None = None, *, overrides: Sequence[str] = ()) -> None:
        """Replaces the settings, with `overrides` alone only those (Client.set_resource_pool)."""
        changed = self._client.set_resource_pool(self.name, config, overrides=overrides)
        self.data = changed.data

    def drain(self) -> None:
        """Takes no new jobs and starts nothing more; what runs there can finish."""
        self._act("drain")

    def undrain(self) -> None:
        """Takes new jobs and starts trials again."""
        self._act("undrain")

    def remove(self) -> None:
        """Removes the pool; the cluster refuses that while it is in use."""
        self._client.delete(pool_path(self.name))

    def _act(self, verb: str) -> None:
        self.data = self._client.post(f"{pool_path(self.name)}/{verb}")


def pool_path(name: str) -> str:
    """The pool's path below the API's base path."""
    return f"/resource-pools/{path_segment(name)}"
