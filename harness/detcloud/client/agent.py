"""Handles on one agent and on one of its slots."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from detcloud.client.resource import Field, Resource


class Agent(Resource):
    """A machine that runs trials."""

    id = Field[str]("The agent's id.")
    name = Field[str]("The name it enrolled with.")
    resource_pool = Field[str]("The pool it belongs to.")
    label = Field[str]("Only jobs with the same `resources.agent_label` run on it.")
    state = Field[str]("ALIVE, or LOST when it has not been heard of for its lease.")
    enabled = Field[bool]("Whether trials may be placed on it.")
    draining = Field[bool]("Whether it waits for what runs there before it counts as disabled.")
    version = Field[str]("The version of detcloud on it.")
    enrolled_ms = Field[int]("When it enrolled, epoch milliseconds.")

    @property
    def slots(self) -> list[Slot]:
        """The agent's GPUs, or shares of its CPUs."""
        return [Slot(self, slot) for slot in self.data["slots"]]

    def enable(self) -> None:
        """Lets trials be placed on the agent again."""
        self.act("enable")

    def disable(self, *, drain: bool = False) -> None:
        """Places no more trials on the agent; what runs is preempted, or can finish (`drain`)."""
        self.act("disable", {"drain": drain})

    def act(self, path: str, body: dict[str, Any] | None = None) -> None:
        """Posts to a path below the agent's own and takes the answer as its state."""
        self.data = self._client.post(f"/agents/{quote(self.id, safe='')}/{path}", body)


class Slot(Resource):
    """A slot of an agent: what one trial needs at least."""

    id = Field[int]("The number of the slot on its agent, from 0.")
    type = Field[str]("`cuda` or `cpu`.")
    allocation = Field[str | None]("The allocation that runs there, None when it is free.")
    enabled = Field[bool]("Whether trials may be placed on it.")

    def __init__(self, agent: Agent, data: dict[str, Any]) -> None:
        super().__init__(agent._client, data)
        self.agent = agent

    def enable(self) -> None:
        """Lets trials be placed on the slot again."""
        self._act("enable")

    def disable(self) -> None:
        """Places no more trials on the slot; what runs there is preempted."""
        self._act("disable")

    def _act(self, verb: str) -> None:
        self.agent.act(f"slots/{self.id}/{verb}")
        self.data = next(slot.data for slot in self.agent.slots if slot.id == self.id)
