"""The handles of an agent and of a slot."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from detcloud.client.resource import Field, Resource


class Agent(Resource):
    """A machine that runs trials, or a lost machine.

    The fields are those of the cluster's latest answer to this handle.
    """

    id = Field[str]("The id of the agent.")
    name = Field[str]("The name that the agent enrolled with.")
    resource_pool = Field[str]("The name of the agent's resource pool.")
    label = Field[str](
        "The label that a job must request in `resources.agent_label`; empty for no label."
    )
    state = Field[str](
        "The state: ALIVE, or LOST if the agent was silent for the length of its lease."
    )
    enabled = Field[bool]("Whether trials may be placed on the agent.")
    draining = Field[bool](
        "Whether the agent finishes its running trials before it counts as disabled."
    )
    version = Field[str]("The version of detcloud on the agent.")
    behind = Field[bool]("Whether the agent runs other code than the cluster has.")
    updatable = Field[bool]("Whether the agent can update itself to the code of the cluster.")
    enrolled_ms = Field[int]("The time of the enrollment, in epoch milliseconds.")

    @property
    def slots(self) -> list[Slot]:
        """The slots in the cluster's latest answer to this handle: GPUs, or shares of the CPUs.

        No request is sent; `refresh` updates the slots.
        """
        return [Slot(self, slot) for slot in self.data["slots"]]

    def enable(self) -> None:
        """Allow trials on the agent again. Admins only."""
        self.act("enable")

    def disable(self, *, drain: bool = False) -> None:
        """Start no more trials on the agent. Admins only. The cluster refuses for a lost agent.

        Args:
            drain: whether running trials can finish. Otherwise they have 15 seconds to store a
                checkpoint.
        """
        self.act("disable", {"drain": drain})

    def upgrade(self) -> None:
        """Let the agent start the code of the cluster now, without a stop of trials. Admins only.

        The cluster refuses agents that `detcloud agent add` did not install.
        """
        self.act("upgrade")

    def act(self, path: str, body: dict[str, Any] | None = None) -> None:
        """Post `body` to a path below the agent's path, and update this handle from the answer."""
        self.data = self._client.post(f"/agents/{quote(self.id, safe='')}/{path}", body)


class Slot(Resource):
    """A slot of an agent: a GPU, or a share of the CPUs.

    Methods that change the slot also update the fields of this handle and of its agent.
    """

    id = Field[int]("The number of the slot on its agent, from 0.")
    type = Field[str]("The type of the slot: `cuda`, `rocm`, `mps` or `cpu`.")
    allocation = Field[str | None](
        "The id of the first allocation on the slot; None if the slot is free."
    )
    enabled = Field[bool]("Whether trials may be placed on the slot.")

    def __init__(self, agent: Agent, data: dict[str, Any]) -> None:
        super().__init__(agent._client, data)
        self.agent = agent

    def enable(self) -> None:
        """Allow trials on the slot again. Admins only."""
        self._act("enable")

    def disable(self) -> None:
        """Start no more trials on the slot. A trial there has 15 seconds to store a checkpoint.

        Admins only.
        """
        self._act("disable")

    def _act(self, verb: str) -> None:
        self.agent.act(f"slots/{self.id}/{verb}")
        self.data = next(slot.data for slot in self.agent.slots if slot.id == self.id)
